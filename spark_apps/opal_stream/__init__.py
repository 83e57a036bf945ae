"""Kafka into tables, without Spark: consume, decode, ingest inline, with the offsets inside the table's own commits."""
