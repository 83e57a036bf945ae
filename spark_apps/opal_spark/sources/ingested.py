"""Sources that Spark ingests: a DataFrame, files or a database, made to fit the table."""

from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from opal_lake.definition.table_spec import TableSpec
from opal_lake.engine.executor import ReadAs
from opal_lake.source import Files, Jdbc
from opal_spark.engine.assign import unknown_fields
from opal_spark.engine.columns import arrow_of_spark
from opal_spark.sources.columnar_files import refuse_reserved
from opal_spark.sources.fitting import fitting
from opal_spark.sources.read import source_rows
from opal_spark.sources.schema import new_columns as new_columns_of
from opal_spark.sources.split import SparkSplit


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkRows:
    """A source of rows and its session, as a context manager.

    Leaving the context frees the rows that Spark has cached.
    """

    spark: SparkSession
    given: DataFrame | Files | Jdbc
    how: ReadAs
    cached: list[DataFrame] = field(default_factory=list)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for rows in self.cached:
            rows.unpersist()

    def rows(self, spec: TableSpec, number: int) -> DataFrame:
        """Return the rows with the table's columns."""
        ignore = self.how.ignores_new_columns
        rows = source_rows(self.spark, self.given, spec, number, ignore=ignore)
        # An inline ingest shuffles the rows by key hash: it needs no order by partition value
        return fitting(rows, spec, together=self.how.in_partitions, ignore=ignore)

    def new_columns(self, spec: TableSpec) -> pa.Schema:
        """Return the columns of the source that the table lacks."""
        given = self.given
        if isinstance(given, Files | Jdbc):
            return arrow_of_spark(new_columns_of(self.spark, given, spec))
        refuse_reserved(given.columns)
        return arrow_of_spark(unknown_fields(given.schema, spec))

    def split(self, spec: TableSpec, number: int, column: str) -> SparkSplit:
        """Return the rows in a form that can be split by the texts in a column."""
        rows = self.rows(spec, number).persist()
        self.cached.append(rows)
        return SparkSplit(rows=rows, column=column)
