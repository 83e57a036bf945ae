"""Producers: each change in a table's own log is registered once and in order.

`outbox` is the common part: from a log to registered events. `opal`, `delta`, `iceberg` and `hive`
read the logs or folders of their formats. `on_commit` registers every commit of an Opal table.
`watch` looks at many tables in turns, which `tables` lists.
"""
