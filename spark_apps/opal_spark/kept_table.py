"""The part of OpalTable that writes metadata only: properties, columns, savepoints, business snapshots, the clock."""

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.types import DataType, StructField, StructType

from opal_lake.job.job import JobResult
from opal_lake.table import Table
from opal_lake.write.spec_change import Changes
from opal_spark.engine.columns import arrow_of_spark


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class KeptOpalTable:
    """A table, and the session that works on it."""

    spark: SparkSession
    table: Table

    def set_properties(self, properties: Changes, *, token: str | None = None) -> JobResult:
        """Change properties. None gives a property its default again."""
        return self.table.set_properties(properties, token=token)

    def add_columns(
        self, columns: Mapping[str, str | pa.DataType | DataType], *, token: str | None = None
    ) -> JobResult:
        """Give the table more columns, as `{"discount": "double"}`, null in the rows that it has. What it has already is no change.

        Types are Spark's names, as `long`, `decimal(10,2)` or `timestamp`, or types of Spark or Arrow, which may be nested.
        """
        arrow = {
            name: _arrow(name, kind) if isinstance(kind, DataType) else kind
            for name, kind in columns.items()
        }
        return self.table.add_columns(arrow, token=token)

    def savepoint(self, name: str, version: int | None = None) -> JobResult:
        """Keep a version readable until it is released, whatever the window; by default the newest version."""
        return self.table.savepoint(name, version)

    def release(self, name: str) -> JobResult:
        """Release a savepoint."""
        return self.table.release(name)

    def finish_business_snapshot(self, name: str) -> JobResult:
        """No more rows of the open business snapshot come: its version becomes a savepoint of its name, and the next one opens."""
        return self.table.finish_business_snapshot(name)

    def discard(
        self,
        *,
        partition_key: str | None = None,
        token: str | None = None,
        job_token: str | None = None,
    ) -> JobResult:
        """Withdraw pending rows: those of a partition key, or of the ingest with a token. No MetaGen takes them up any more.

        Rows that are visible already are an error. `job_token` makes a repeat of this call harmless.
        """
        return self.table.discard(partition_key=partition_key, token=token, job_token=job_token)

    def repair_clock(self, *, dry_run: bool = False) -> JobResult:
        """Correct commit times that are wrong because a writer's clock was ahead. A dry run returns the corrected times."""
        return self.table.repair_clock(dry_run=dry_run)


def _arrow(name: str, kind: DataType) -> pa.DataType:
    return arrow_of_spark(StructType([StructField(name, kind)])).field(0).type
