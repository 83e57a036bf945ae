"""Kafka as a stream sees it: topics with their ids, partitions with their offsets, and messages.

`source` fetches messages, `topics` says which partitions there are, `offsets` where reading begins, `ranges` what an interval holds.
`applications` are the names under which a table keeps positions.
"""
