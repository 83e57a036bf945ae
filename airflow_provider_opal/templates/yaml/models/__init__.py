"""The contents of a YAML file.

These are the models of a version, single values, rules between them, and the messages of mistakes.

`version_1` has the keys of a pipeline; `run_options`, `sources` and `mutation` those of its parts.
"""
