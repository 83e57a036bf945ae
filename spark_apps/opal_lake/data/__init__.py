"""Rows in files: segments and their data files, columns and encodings, bounds and what they prune, rows put aside as bad.

`segment` has the nouns. `data_file` makes bytes of rows and rows of bytes, by the `encodings` of each column; `column_read` and `pages`
read a part of a file. `bounds` are the extremes of columns, and `prune` says by them which files a filter skips; `condition_bounds`
turns a condition into such a filter. `rejects` are bad rows.
"""
