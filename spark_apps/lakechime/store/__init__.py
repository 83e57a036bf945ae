"""The events in a database: SQLite beside one Airflow, PostgreSQL for many. SQLAlchemy is loaded when a store is opened."""
