"""Sources of rows: files and databases. No value is lost silently.

`read` reads any source: files by `text`, `columnar_files` and `named`, databases by `jdbc`.
`assign` checks that columns fit the table without loss, `cells` converts texts to values, and
`marks` adds a reader's notes to each row, such as why it is bad.
"""

from opal_spark.sources.errors import source_errors
from opal_spark.sources.read import read_source, source_rows
from opal_spark.sources.schema import source_schema

__all__ = ["read_source", "source_errors", "source_rows", "source_schema"]
