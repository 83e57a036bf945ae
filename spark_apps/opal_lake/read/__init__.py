"""Views of a table: which files a read needs and which of their rows it shows, by version, time and partition key; and change feeds.

`read` plans a read. Of a change feed, `change_range` says from where to where it goes, `changes` which rows began and ended there, and
`changed_rows` makes the feed of them, also the net one. `partition_net` reads what came under one partition key. `history_view` and
`history_changes` show every row of a key, `get` looks keys up. `difference` compares two states, as a restore asks. `explain` says what a
read opens and skips.
"""
