"""Rows, logs and runs moved into other files without a change of what they say: bins of files, tasks, and the commit that swaps them."""
