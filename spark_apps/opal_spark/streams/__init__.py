"""Streams from Kafka into a table by Spark's Structured Streaming.

They commit the same rows and positions as `opal_stream` does without Spark.
"""
