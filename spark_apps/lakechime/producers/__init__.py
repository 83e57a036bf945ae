"""Who registers: a table's own log is the outbox, and what it holds and is not registered is registered, once and in order.

`outbox` is what all have in common: from a log to registered events. `opal`, `delta`, `iceberg` and `hive` read the logs, or folders, of
their formats. `on_commit` registers every commit of an Opal table, `watch` looks at many tables in turns, which `tables` lists.
"""
