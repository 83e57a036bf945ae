"""The verbs of `opal` that need Spark, the archive of a cluster's Python, and the demo of a table."""
