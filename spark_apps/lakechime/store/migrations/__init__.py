"""The steps from an empty database to the tables of today, and back.

`lakechime.store.migrate` runs them.
"""
