"""Tables of many commits, many partitions and many rows against a model: `python -m tests.scale --help`."""
