"""Keeps a table fast: compaction, Z-order, and the rebuild of the key store. `maintenance` decides which of these is due, and runs it.

`zorder_plan` chooses files, `zorder` sorts their rows.
"""
