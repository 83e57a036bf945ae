"""Rows, events and key-store entries against each other, in bounded memory.

They wait in a spill buffer, by slots of the key hash, until their slot is checked.
"""
