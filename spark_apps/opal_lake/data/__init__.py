"""Rows in files: segments and their data files, columns and encodings, bounds and what they prune, rows put aside as bad."""
