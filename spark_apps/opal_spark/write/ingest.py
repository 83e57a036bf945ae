"""An ingest from Spark: a DataFrame, files or a database; and each micro-batch of a stream."""

from dataclasses import dataclass, replace

from pyspark.sql import DataFrame, SparkSession

from opal_lake.engine.open_table import OpenTable
from opal_lake.errors import InvalidInputError
from opal_lake.job.job import JobResult
from opal_lake.job.source import Files, Jdbc
from opal_lake.spec.table_spec import TableSpec
from opal_lake.table import Table
from opal_lake.write.by_business_snapshot import ingest_by_column
from opal_lake.write.ingest_job import IngestOptions, ingest
from opal_spark.engine.executor import on_spark
from opal_spark.sources import source_errors, source_rows
from opal_spark.sources.fitting import fitting
from opal_spark.write.by_business_snapshot import SparkSplits


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOf:
    """What to ingest, and the session that reads it."""

    spark: SparkSession
    rows: DataFrame | Files | Jdbc


def ingest_source(table: OpenTable, source: SourceOf, options: IngestOptions, column: str | None) -> JobResult:
    """With a column that tells the business snapshot, a commit for each."""
    together = options.metadata == "batch"  # inline the shuffle by key hash parts them again

    def fit(spec: TableSpec) -> DataFrame:
        return fitting(source_rows(source.spark, source.rows, spec), spec, together=together)

    with source_errors(source.spark, source.rows, lambda: table.log.head().spec):
        if column is None:
            return ingest(table, fit, options)
        with SparkSplits(column=column) as splits:
            return ingest_by_column(table, lambda spec: splits.of(fit(spec)), options, column)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sink:
    """What `foreachBatch` calls with each micro-batch. One that was applied before is not applied again."""

    table: Table
    application: str
    options: IngestOptions

    def __post_init__(self) -> None:
        if not self.application:
            raise InvalidInputError("a sink needs the name of its query: sink(application='orders-to-daily'), another for each query")

    def __call__(self, rows: DataFrame, batch: int) -> None:
        """The session is the query's own: over Connect this runs on the server."""
        spark, options = rows.sparkSession, replace(self.options, application=(self.application, batch))
        ingest_source(on_spark(spark, self.table), SourceOf(spark=spark, rows=rows), options, None)
