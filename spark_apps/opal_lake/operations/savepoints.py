"""Savepoints and business snapshots, which name versions; and clock repair."""

from dataclasses import field
from typing import TYPE_CHECKING, Annotated, ClassVar

from opal_lake.arguments.declared import declaration
from opal_lake.arguments.values import Help, Version
from opal_lake.operations.verb import Operation
from opal_lake.result import JobResult

if TYPE_CHECKING:
    from opal_lake.engine.open_table import OpenTable


@declaration
class Savepoint(Operation[JobResult]):
    """Keep a version, by default the newest, readable until the savepoint is released.

    The table's window does not matter for it. With `move` an existing savepoint of this name moves
    to the version.
    """

    title: ClassVar[str] = "savepoint"

    name: str = field(kw_only=False)  # type: ignore[misc]  # of the savepoint
    version: Annotated[Version | None, Help("the version to name (default: the newest)", "N")] = (
        field(default=None, kw_only=False)
    )
    move: bool = False

    def run(self, table: "OpenTable") -> JobResult:
        """Name the version."""
        from opal_lake.savepoints.savepoint import set_savepoint

        return set_savepoint(table.log, self.name, self.version, move=self.move)


@declaration
class Release(Operation[JobResult]):
    """Release a savepoint: retention may delete its version."""

    title: ClassVar[str] = "release"

    name: str = field(kw_only=False)  # type: ignore[misc]  # of the savepoint

    def run(self, table: "OpenTable") -> JobResult:
        """Remove the savepoint."""
        from opal_lake.savepoints.savepoint import release_savepoint

        return release_savepoint(table.log, self.name)


@declaration
class FinishBusinessSnapshot(Operation[JobResult]):
    """Finish the open business snapshot: its rows are complete.

    Its version becomes a savepoint of its name, and the next business snapshot opens.
    """

    title: ClassVar[str] = "finish_business_snapshot"

    name: str = field(kw_only=False)  # type: ignore[misc]  # of the business snapshot

    def run(self, table: "OpenTable") -> JobResult:
        """Make the version a savepoint, and open the next business snapshot."""
        from opal_lake.savepoints.business_snapshot import finish_business_snapshot

        return finish_business_snapshot(table.log, self.name)


@declaration
class RepairClock(Operation[JobResult]):
    """Correct commit times that are wrong because a writer's clock was ahead.

    A dry run returns the corrected times.
    """

    name: ClassVar[str] = "repair_clock"

    dry_run: Annotated[bool, Help("change nothing; report the corrected times")] = False

    def run(self, table: "OpenTable") -> JobResult:
        """Commit the corrections."""
        from opal_lake.maintenance.clock_repair import repair_clock

        return repair_clock(table.log, dry_run=self.dry_run)
