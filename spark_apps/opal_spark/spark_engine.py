"""Spark as the engine of a table: its tasks, the sources that it reads, and rows as DataFrames."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, StructField, StructType

from opal_lake.definition.added_columns import NewColumns
from opal_lake.definition.table_spec import TableSpec
from opal_lake.engine.executor import ReadAs
from opal_lake.errors import InvalidInputError
from opal_lake.read.changed_rows import CHANGE_TYPE, COMMIT_TIMESTAMP, COMMIT_VERSION, INSERT
from opal_lake.read.region import RegionTest
from opal_lake.read.statement import StatementPlan
from opal_lake.read.view import ChangesPlan, HistoryPlan, View
from opal_lake.source import Files, Jdbc
from opal_lake.table import Table
from opal_spark.engine.by_key import guess_slots
from opal_spark.engine.columns import arrow_of_spark, spark_schema
from opal_spark.engine.executor import SparkTasks
from opal_spark.engine.failures import spark_errors
from opal_spark.engine.session import frame_of_arrow, parallelism
from opal_spark.read.changes import changes
from opal_spark.read.history_view import history
from opal_spark.read.overwrite import (
    region_statement_rows,
    spark_region_test,
    touched_partitions,
)
from opal_spark.read.reader import read
from opal_spark.read.replaced_rows import with_ended
from opal_spark.read.statement import guess_statement_rows, statement_rows
from opal_spark.sources import source_errors
from opal_spark.sources.ingested import SparkRows


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkEngine(SparkTasks):
    """The engine that runs tasks on a session's executors; rows are its DataFrames."""

    @contextmanager
    def fit(
        self,
        source: DataFrame | pa.Table | Files | Jdbc,
        how: ReadAs,
        spec_of: Callable[[], TableSpec],
    ) -> Iterator[SparkRows]:
        """Yield the rows of a source.

        An error that the source causes within the block names the source.
        """
        if how.deleted is not None:
            raise InvalidInputError(
                "deleted= marks rows in memory; rows of a DataFrame delete their key by the "
                "table's delete condition"
            )
        if isinstance(source, pa.Table):
            source = frame_of_arrow(self.spark, source)
        with (
            source_errors(self.spark, source, spec_of),
            SparkRows(spark=self.spark, given=source, how=how) as fitted,
        ):
            yield fitted

    def rows(self, view: View) -> DataFrame:
        """Return a DataFrame of the visible rows; they are read when it is used."""
        return read(self.spark, view)

    def history(self, plan: HistoryPlan) -> DataFrame:
        """Return a DataFrame of the history view."""
        return history(self.spark, plan)

    def changes(self, plan: ChangesPlan) -> DataFrame:
        """Return a DataFrame of the changes.

        A few rows are read now, in this process; more rows are read when the DataFrame is used.
        """
        return changes(self.spark, plan)

    def statement_rows(self, plan: StatementPlan) -> DataFrame:
        """Return a DataFrame of the rows; most are computed when it is used."""
        # Spark computes constant values while it plans, and some rows are read now
        with spark_errors():
            if plan.region is not None:
                return region_statement_rows(self.spark, plan)
            return statement_rows(self.spark, plan)

    def with_ended(self, rows: DataFrame, view: View) -> AbstractContextManager[DataFrame]:
        """Return a source's rows, and a delete for each other row of a view."""
        return with_ended(self.spark, rows, view)

    def statement_slots(self, plan: StatementPlan, rows: DataFrame, entries: int) -> int:
        """Return the number of tasks for the rows of a statement and entries of the store."""
        with spark_errors():
            guess = guess_statement_rows(plan, rows)
        return guess_slots(guess, entries, parallelism(self.spark))

    def touched_partitions(self, plan: StatementPlan) -> pa.Table:
        with spark_errors():
            return touched_partitions(self.spark, plan)

    def region_test(self, plan: StatementPlan) -> RegionTest | None:
        return spark_region_test(plan)

    def as_inserts(self, rows: DataFrame, version: int, committed_us: int) -> DataFrame:
        """Return the rows with the columns of a change feed."""
        columns = {
            CHANGE_TYPE: F.lit(INSERT),
            COMMIT_VERSION: F.lit(version).cast("long"),
            COMMIT_TIMESTAMP: F.timestamp_micros(F.lit(committed_us)),
        }
        return rows.withColumns(columns)

    def no_rows(self, spec: TableSpec) -> DataFrame:
        """Return a DataFrame with the table's columns and without a row."""
        return self.spark.createDataFrame([], spark_schema(spec, physical=False))

    def column_types(self, columns: Mapping[str, Any]) -> NewColumns:
        """Return the new columns with Arrow types in place of Spark's types."""
        arrow_types: dict[str, Any] = {}
        for name, kind in columns.items():
            if isinstance(kind, DataType):
                kind = _arrow_type(name, kind)
            arrow_types[name] = kind
        return arrow_types


def on_spark(spark: SparkSession, table: Table) -> Table[DataFrame]:
    """Return the table with Spark as its engine."""
    return replace(table, executor=SparkEngine(spark=spark))


def _arrow_type(name: str, kind: DataType) -> Any:
    schema = StructType([StructField(name, kind)])
    return arrow_of_spark(schema).field(0).type
