"""The events in a database: SQLite next to one Airflow, PostgreSQL for many.

SQLAlchemy is loaded when a store is opened. `register` adds each event once: `digests` defines
which are the same. `sequencer` gives them their order, `queries` finds them, `retention` deletes
them. `watermarks` and `tokens` store the progress of consumers and the access of users.
"""
