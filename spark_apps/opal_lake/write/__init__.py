"""Operations that change the rows of a table.

They are ingest, MetaGen, both at once (`inline`), one commit a business snapshot, and bootstrap.
`ingest_job`, `metagen_job` and `bootstrap_job` hold the steps of these operations from start to
commit; `ingest_task` and `inline` hold the work of one task of an ingest. `set_properties` changes
no row. Columns and keys stay as they were created.
"""
