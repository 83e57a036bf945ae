"""The steps from an empty database to the tables of today, and back, run by `lakechime.store.migrate`."""
