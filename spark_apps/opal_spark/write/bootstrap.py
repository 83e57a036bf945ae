"""The source of a bootstrap, which Spark reads; `opal_lake.write.bootstrap_job` is the run."""

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from opal_lake.definition.table_spec import TableSpec
from opal_lake.source import BATCH_MB
from opal_lake.write.bootstrap import BootstrapPlan, SourceTable
from opal_spark.engine.columns import arrow_of_spark, quoted
from opal_spark.sources import source_rows
from opal_spark.sources.fitting import fitting
from opal_spark.sources.tables import batch_rows, plan_source


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkSource:
    """A folder of files, a Delta or an Iceberg table.

    `schema` is the schema of the new table, if the user gives it.
    """

    spark: SparkSession
    source: SourceTable
    schema: StructType | None = None
    batch_bytes: int = BATCH_MB << 20

    def plan(self) -> BootstrapPlan:
        """List the source's files now."""
        return plan_source(self.spark, self.source, self.schema, self.batch_bytes)

    def columns(self, plan: BootstrapPlan) -> pa.Schema:
        """Return the columns of the source's rows."""
        return arrow_of_spark(StructType.fromJson(dict(plan.schema)))

    def rows(self, plan: BootstrapPlan, batch: int, spec: TableSpec) -> DataFrame:
        """Return the rows of a batch with the table's columns."""
        rows = _renamed(batch_rows(self.spark, plan, batch), plan.new_names(spec.schema))
        return fitting(source_rows(self.spark, rows, spec, 0), spec)


def _renamed(rows: DataFrame, new_names: Mapping[str, str | None]) -> DataFrame:
    """Return rows with new names; without the columns whose name is None."""
    if not new_names:
        return rows
    columns: list[Column] = []
    for name in rows.columns:
        new_name = new_names.get(name.casefold(), name)
        if new_name is not None:
            columns.append(F.col(quoted(name)).alias(new_name))
    return rows.select(*columns)
