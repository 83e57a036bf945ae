"""An ingest from Spark: a DataFrame, files or a database; and each micro-batch of a stream."""

from dataclasses import dataclass, replace

from pyspark.sql import DataFrame, SparkSession

from opal_lake.errors import InvalidInputError
from opal_lake.job.job import JobResult
from opal_lake.job.source import Files, Jdbc
from opal_lake.table import Table
from opal_lake.write.ingest_job import IngestOptions, ingest
from opal_spark.engine.executor import on_spark
from opal_spark.sources import source_errors, source_rows
from opal_spark.sources.fitting import fitting


def ingest_source(spark: SparkSession, table: Table, rows: DataFrame | Files | Jdbc, options: IngestOptions) -> JobResult:
    """Append rows, with the tasks on Spark."""
    together = options.metadata == "batch"  # inline the shuffle by key hash parts them again
    with source_errors(spark, rows, lambda: table.snapshot_at().spec):
        return ingest(on_spark(spark, table), lambda spec: fitting(source_rows(spark, rows, spec), spec, together=together), options)


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
        ingest_source(rows.sparkSession, self.table, rows, replace(self.options, application=(self.application, batch)))
