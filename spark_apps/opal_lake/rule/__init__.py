"""THE rule: which row ends which.

`metagen` applies it to tables of rows, `slot` to a task's range of the key hash, `outputs` adds up what all tasks made, for the commit.
"""
