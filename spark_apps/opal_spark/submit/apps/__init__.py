"""The spark-submit scripts, one an operation."""
