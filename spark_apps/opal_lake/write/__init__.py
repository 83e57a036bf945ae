"""Operations that change the rows of a table.

They are ingest, MetaGen and bootstrap. An `inline` ingest is an ingest and a MetaGen in one commit.
`by_business_snapshot` makes a commit for each business snapshot. `ingest_job`, `metagen_job` and
`bootstrap_job` hold the steps of an operation from start to commit; `ingest_task` and `inline` hold
the work of one task of an ingest. `spec_change` changes properties and adds columns, but changes no
row. Keys stay as they were created.
"""
