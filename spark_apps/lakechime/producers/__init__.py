"""Who registers: a table's own log is the outbox, and what it holds and is not registered is registered, once and in order."""
