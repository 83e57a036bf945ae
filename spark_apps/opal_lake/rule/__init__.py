"""THE rule: which row ends which.

`metagen` applies it to tables of rows, and `slot` to a task's range of the key hash. `outputs` adds
up the outputs of all tasks for the commit, and redoes what the commit of another job has changed
meanwhile.
"""
