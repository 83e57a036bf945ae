"""Rows between a stream's flush and a commit: files in the table's own store, and the order in which they are committed.

`file` is one of them, `folder` all of a table, `backlog` how many may wait.
"""
