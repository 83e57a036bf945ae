"""Kafka as a stream sees it: topics with their ids, partitions with their offsets, and messages.

`source` fetches messages, `topics` lists the partitions, `offsets` decides where reading begins,
`ranges` resolves an interval of time to offsets. `applications` are the names under which a table
keeps positions.
"""
