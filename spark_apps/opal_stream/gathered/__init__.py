"""Rows between a stream's flush and its commit: files in the table's store, committed in order.

`file` encodes one of them, `folder` lists all of a table, `backlog` limits how many may wait.
"""
