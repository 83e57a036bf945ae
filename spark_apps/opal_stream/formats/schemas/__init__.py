"""Columns that messages have and a table lacks: which, of which type, as each kind of schema says it."""
