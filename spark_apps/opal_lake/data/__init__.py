"""Rows in files: segments and their data files, columns, encodings, bounds and rejected rows.

`segment` has the nouns. `data_file` encodes and decodes rows, by the `encodings` of each column;
`column_read` and `pages` read a part of a file. `bounds` are the extremes of columns, and `prune`
decides by them which files a filter skips; `condition_bounds` turns a condition into such a filter.
`rejects` are bad rows.
"""
