"""Restore: show again what an older version showed."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from opal_lake.arguments.declared import declaration
from opal_lake.arguments.values import Help, Moment, Version
from opal_lake.errors import InvalidInputError
from opal_lake.operations.verb import Job
from opal_lake.result import JobResult

if TYPE_CHECKING:
    from opal_lake.engine.open_table import OpenTable


@declaration
class Restore(Job):
    """Commit a new version that shows what an older one showed.

    `version`, `timestamp` or `savepoint` selects the older version. All versions stay readable. A
    dry run counts what would change. Rows that were pending as of the older version are pending
    again. Properties, constraints, savepoints and the oldest readable event time do not change. If
    rows of the older version violate a constraint, the restore is refused. The record of applied
    ingests does not change either: a retry of an ingest that this undoes ingests nothing. With
    `business_snapshots` the business snapshots that began or were finished since then are taken
    back, too.
    """

    name: ClassVar[str] = "restore"

    version: Annotated[Version | None, Help("restore this version", "N")] = None
    timestamp: Annotated[
        Moment | None,
        Help("restore the table as of this commit time, such as 2026-01-31T12:00:00+00:00", "TIME"),
    ] = None
    savepoint: Annotated[str | None, Help("restore the version of this savepoint", "NAME")] = None
    business_snapshots: Annotated[
        bool, Help("also take back business snapshots begun or finished after that version")
    ] = False
    dry_run: Annotated[bool, Help("change nothing; count what would change")] = False

    @classmethod
    def check_together(cls, given: Mapping[str, Any], is_open: Callable[[Any], bool]) -> None:
        """Raise InvalidInputError unless exactly one version is selected."""
        named = [name for name in ("version", "timestamp", "savepoint") if given[name] is not None]
        if len(named) != 1:
            selections = ", ".join(named) or "none of them"
            raise InvalidInputError(
                f"restore needs one of version, timestamp and savepoint, got {selections}"
            )

    def run(self, table: "OpenTable") -> JobResult:
        """Commit the version that shows the older one."""
        from opal_lake.engine.results import find_result
        from opal_lake.savepoints.restore import restore
        from opal_lake.savepoints.savepoint import savepoint_version

        if not self.dry_run:
            # Before the version is looked up: since then it may have expired
            earlier = find_result(table.log, table.log.head(), self.name, self.token)
            if earlier is not None:
                return earlier
        version = self.version
        if self.savepoint is not None:
            version = savepoint_version(table.log.head(), self.savepoint)
        return restore(
            table,
            table.snapshot_at(version, self.timestamp),
            business_snapshots=self.business_snapshots,
            dry_run=self.dry_run,
            token=self.token,
        )
