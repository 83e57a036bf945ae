"""The jobs of `opal_lake` that write, carried out by Spark's tasks."""
