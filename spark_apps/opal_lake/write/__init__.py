"""Rows into a table: ingest, MetaGen, both at once (`inline`), another table converted (`bootstrap`); and a table's properties changed."""
