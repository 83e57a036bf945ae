"""The events in a database: SQLite beside one Airflow, PostgreSQL for many. SQLAlchemy is loaded when a store is opened.

`register` adds events, once: `digests` says which are the same. `sequencer` gives them their order, `queries` finds them, `retention`
deletes them. `watermarks` and `tokens` keep what consumers and users have.
"""
