"""Sensors: tasks that wait for versions, events, partitions, or a small lag of a stream."""
