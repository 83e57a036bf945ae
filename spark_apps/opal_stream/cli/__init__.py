"""The verb `opal stream`."""
