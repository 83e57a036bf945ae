"""Kafka as a stream sees it: topics with their ids, partitions with their offsets, and messages."""
