"""The traffic of streams, by hour of the week.

It is kept next to the log, derived, and never needed to read or write a table.
"""
