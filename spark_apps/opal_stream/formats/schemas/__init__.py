"""Columns that messages have and a table lacks, with their types, by each kind of schema."""
