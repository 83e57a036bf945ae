"""What changes the rows of a table: ingest, MetaGen, both at once (`inline`), one commit a business snapshot, bootstrap.

`ingest_job`, `metagen_job` and `bootstrap_job` are the courses of these operations from start to commit; `ingest_task` and `inline` are
what one task of an ingest does. `set_properties` changes no row. Columns and keys stay as they were created.
"""
