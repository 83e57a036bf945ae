"""Sources of rows: files and databases. No value is lost silently."""

from opal_spark.sources.errors import source_errors
from opal_spark.sources.read import read_source, source_rows
from opal_spark.sources.schema import source_schema

__all__ = ["read_source", "source_errors", "source_rows", "source_schema"]
