"""An ingest from Spark: a DataFrame, files or a database; and each micro-batch of a stream."""

from dataclasses import dataclass, replace

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from opal_lake.engine.open_table import OpenTable
from opal_lake.errors import InvalidInputError
from opal_lake.job.job import JobResult
from opal_lake.job.source import Files, Jdbc
from opal_lake.spec.table_spec import TableSpec
from opal_lake.table import Table
from opal_lake.write.by_business_snapshot import ingest_by_column
from opal_lake.write.ingest_job import IngestOptions, ingest
from opal_spark.engine.columns import arrow_of_spark
from opal_spark.engine.executor import on_spark
from opal_spark.sources import source_errors, source_rows
from opal_spark.sources.assign import unknown_fields
from opal_spark.sources.columnar_files import refuse_reserved
from opal_spark.sources.fitting import fitting
from opal_spark.sources.schema import new_columns as new_columns_of
from opal_spark.write.by_business_snapshot import SparkSplits


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOf:
    """What to ingest, and the session that reads it."""

    spark: SparkSession
    rows: DataFrame | Files | Jdbc


def ingest_source(
    table: OpenTable, source: SourceOf, options: IngestOptions, column: str | None
) -> JobResult:
    """With a column that tells the business snapshot, a commit for each."""
    together = options.metadata == "batch"  # inline the shuffle by key hash parts them again

    ignore = options.on_new_columns == "ignore"

    def fit(spec: TableSpec, number: int) -> DataFrame:
        return fitting(
            source_rows(source.spark, source.rows, spec, number, ignore=ignore),
            spec,
            together=together,
            ignore=ignore,
        )

    def new_columns(spec: TableSpec) -> pa.Schema:
        rows = source.rows
        if isinstance(rows, Files | Jdbc):
            return arrow_of_spark(new_columns_of(source.spark, rows, spec))
        refuse_reserved(rows.columns)
        return arrow_of_spark(unknown_fields(rows.schema, spec))

    with source_errors(source.spark, source.rows, lambda: table.log.head().spec):
        if column is None:
            return ingest(table, fit, options, new_columns)
        with SparkSplits(column=column) as splits:
            return ingest_by_column(
                table,
                lambda spec, number: splits.of(fit(spec, number)),
                options,
                column,
                new_columns,
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Sink:
    """What `foreachBatch` calls with each micro-batch. One that was applied before is not applied again."""

    table: Table
    application: str
    options: IngestOptions

    def __post_init__(self) -> None:
        if not self.application:
            raise InvalidInputError(
                "application is empty; name each streaming query differently, as sink(application='orders-to-daily')"
            )

    def __call__(self, rows: DataFrame, batch: int) -> None:
        """The session is the query's own: over Connect this runs on the server."""
        spark, options = (
            rows.sparkSession,
            replace(self.options, application=(self.application, batch)),
        )
        ingest_source(on_spark(spark, self.table), SourceOf(spark=spark, rows=rows), options, None)
