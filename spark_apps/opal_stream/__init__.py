"""Streams: topics of Kafka into mutable tables, rows and positions in one commit."""
