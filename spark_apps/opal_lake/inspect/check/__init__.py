"""The check of a table against FORMAT.md.

`check` has the order of the steps; the other modules verify one part each, and `content` verifies
what rows, events and key-store entries mean for each other.
"""
