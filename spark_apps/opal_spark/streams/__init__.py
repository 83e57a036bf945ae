"""Kafka into a table by Spark's Structured Streaming: the same rows and positions as `opal_stream` makes without Spark."""
