"""Reads of a table: visible rows, change feeds, the history, and rows by key.

- `read` plans a read: which files it needs, and which of their rows it shows. `view` has the inputs
  of an engine, `where` a read's filter, and `result_columns` the columns of its result.
- `change_range` finds the versions of a change feed, `changes` the rows that began and ended in
  them, and `changed_rows` labels these rows, also for a net feed.
- `partition_net` reads the net rows of a partition key.
- `history_view` and `history_changes` show every row of a key; `get` looks up rows by key.
- `marked_rows` reads single rows of a file.
- `difference` compares two states, for a restore. `explain` shows what a read opens and skips.
"""
