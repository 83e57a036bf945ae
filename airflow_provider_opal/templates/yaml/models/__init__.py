"""What a YAML file may say: the models of a version, single values, rules between them, and the words for each mistake.

`version_1` has the keys of a pipeline; `run_options`, `sources` and `mutation` those of its parts.
"""
