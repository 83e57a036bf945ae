"""An ingest of a DataFrame, of files or of a database."""

from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession

from opal_lake.engine.open_table import OpenTable
from opal_lake.job.job import JobResult
from opal_lake.job.source import Files, Jdbc
from opal_lake.spec.table_spec import TableSpec
from opal_lake.write.by_business_snapshot import ingest_by_column
from opal_lake.write.ingest_job import IngestOptions, ingest
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
