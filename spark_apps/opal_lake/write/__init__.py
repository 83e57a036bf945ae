"""Rows into a table: ingest, MetaGen, both at once (`inline`), several business snapshots, another table converted (`bootstrap`).

And commits without rows: `restore` and `set_properties`. Columns and keys stay as they were created.
"""
