"""Maintain: compaction, Z-order and retention, each if it is due."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from opal_lake.arguments.declared import declaration
from opal_lake.arguments.values import (
    GRACE,
    Codec,
    Count,
    Help,
    Percent,
    PolicyColumns,
    PolicySpan,
    Span,
)
from opal_lake.operations.compact import Compact, Compacting
from opal_lake.operations.verb import Job
from opal_lake.result import JobResult

if TYPE_CHECKING:
    from opal_lake.engine.open_table import OpenTable
    from opal_lake.maintenance.due import Due, Policy

STEPS = ("compact", "zorder", "retain")


@declaration
class MaintenancePolicy(Compacting):
    """When a table is due for what; where nothing is given, the table's properties of these names.

    `grace` is not a property: it is how long jobs and readers may take.
    """

    name: ClassVar[str] = "maintain"

    zorder: Annotated[
        PolicyColumns | None,
        Help(
            "columns that queries filter by, at most 8; repeat for more: "
            "rows with close values go into the same files"
        ),
    ] = None
    window: Annotated[
        Span | None, Help("how long versions stay readable; what only older ones need is deleted")
    ] = None
    grace: Annotated[Span | None, GRACE] = None
    look_back: Annotated[
        PolicySpan | None,
        Help(
            "how far back event times stay readable, as 90d, or in the unit of the delta column; "
            "rows that no event time since then shows are dropped"
        ),
    ] = None
    small_files: Annotated[
        Count | None, Help("a compaction is due when a partition has more small files than that")
    ] = None
    dead_share: Annotated[
        Percent | None,
        Help(
            "a major compaction is due when this percentage of the rows is invisible "
            "at every event time that is kept"
        ),
    ] = None
    unclustered_share: Annotated[
        Percent | None, Help("a Z-order is due when this percentage of the bytes is out of order")
    ] = None
    archive_after: Annotated[
        PolicySpan | None, Help("partitions without younger rows are compressed harder")
    ] = None
    archive_codec: Annotated[Codec | None, Help("how they are compressed, as zstd:19")] = None

    @classmethod
    def plain(cls, arguments: dict[str, Any]) -> dict[str, Any]:
        """Columns may be a text, as the property has them: `a,b`."""
        if isinstance(columns := arguments.get("zorder"), str):
            return {
                **arguments,
                "zorder": [name.strip() for name in columns.split(",") if name.strip()],
            }
        return arguments


@declaration
class Maintain(MaintenancePolicy, Job):
    """Do what is due of compaction, Z-order and retention, by the table's properties.

    What is given here counts before the properties. `delete=False` leaves retention out. A dry run
    only says what is due, and why.
    """

    delete: bool = True
    dry_run: Annotated[bool, Help("only say what is due, and why")] = False

    @property
    def policy(self) -> Mapping[str, Any]:
        """The arguments that stand for properties."""
        return MaintenancePolicy.among(vars(self))

    def look(self, table: "OpenTable") -> None:
        """Raise InvalidInputError for an argument that does not fit the table."""
        self._policy_for(table)

    def run(self, table: "OpenTable") -> JobResult:
        """Run the steps that are due, one after the other."""
        from opal_lake.engine.results import run_once
        from opal_lake.maintenance.due import run_maintenance

        policy = self._policy_for(table)
        steps = {
            name: lambda arguments, name=name: self.job_of(name, arguments).run(table)
            for name in STEPS
        }
        return run_once(
            table.log,
            self.name,
            None if self.dry_run else self.token,
            lambda: run_maintenance(table, policy, steps, dry_run=self.dry_run, delete=self.delete),
        )

    def due_steps(self, table: "OpenTable") -> "list[Due]":
        """Return what is due now, in the order in which to do it."""
        from opal_lake.maintenance.due import due_steps

        return due_steps(table, self._policy_for(table), delete=self.delete)

    def job_of(self, step: str, arguments: Mapping[str, Any]) -> Job:
        """Return the operation that does a step of `STEPS`."""
        from opal_lake.operations.retain import Retain
        from opal_lake.operations.zorder import ZOrder

        if step == "compact":
            return Compact(**{**Compacting.among(vars(self)), **arguments})
        return (ZOrder if step == "zorder" else Retain)(**arguments)

    def _policy_for(self, table: "OpenTable") -> "Policy":
        from opal_lake.maintenance.due import policy_of

        return policy_of(table.snapshot_at().spec, self.policy)
