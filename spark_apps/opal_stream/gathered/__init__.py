"""Gathered files: rows that a stream has flushed into the table's store, and not committed yet.

`file` encodes a file, `folder` lists those of a table, `backlog` limits how many may wait.
"""
