"""Views of a table: which files a read needs and which of their rows it shows, by version, time and partition key; and change feeds.

`read` plans a read. `change_range` and `changes` are the change feed, `net_rows` and `changed_rows` its forms; `history_view` and
`history_changes` show every row of a key, `get` looks keys up. `difference` compares two states, as a restore asks. `explain` says what a
read opens and skips.
"""
