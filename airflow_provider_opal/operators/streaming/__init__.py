"""Operators that read Kafka."""
