"""The verbs of `opal` that need Spark, and the archive of a cluster's Python."""
