"""The part of a table's face that writes metadata only: properties, columns, savepoints, business snapshots, the clock."""

from dataclasses import dataclass

from opal_lake.engine.open_table import OpenTable
from opal_lake.job.job import JobResult
from opal_lake.job.operations.rows import Discard
from opal_lake.retention.business_snapshot import finish_business_snapshot
from opal_lake.retention.clock_repair import repair_clock
from opal_lake.retention.savepoint import release_savepoint, set_savepoint
from opal_lake.spec.added_columns import NewColumns
from opal_lake.write.discard import discard
from opal_lake.write.spec_change import Changes, add_columns, set_properties


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptTable(OpenTable):
    """Needs the log alone."""

    def set_properties(self, properties: Changes, *, token: str | None = None) -> JobResult:
        """Change properties; None gives one its default again."""
        return set_properties(self.log, properties, token)

    def add_columns(self, columns: NewColumns, *, token: str | None = None) -> JobResult:
        """Give the table more columns, as `{"discount": "double"}`, null in the rows that it has. What it has already is no change.

        Types are Spark's names, as `long`, `decimal(10,2)` or `timestamp`, or Arrow's types, which may be nested.
        """
        return add_columns(self.log, columns, token)

    def savepoint(self, name: str, version: int | None = None, *, move: bool = False) -> JobResult:
        """Keep a version readable, whatever retention does, until it is released; by default the newest. With `move` instead of another."""
        return set_savepoint(self.log, name, version, move=move)

    def release(self, name: str) -> JobResult:
        """Give a savepoint up."""
        return release_savepoint(self.log, name)

    def finish_business_snapshot(self, name: str) -> JobResult:
        """No more rows of the open business snapshot come: its version becomes a savepoint of its name, and the next one opens."""
        return finish_business_snapshot(self.log, name)

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
        job = Discard(partition_key=partition_key, token=token)
        return discard(
            self.log, partition_key=job.partition_key, token=job.token, job_token=job_token
        )

    def repair_clock(self, *, dry_run: bool = False) -> JobResult:
        """Correct the times of versions since some writer's clock was ahead; a dry run tells what they would be."""
        return repair_clock(self.log, dry_run=dry_run)
