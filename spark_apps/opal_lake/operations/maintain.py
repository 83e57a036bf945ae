"""Maintain: compaction, Z-order and retention, each if it is due."""

from collections.abc import Callable, Mapping
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
    """The conditions under which the steps of a maintenance are due.

    An argument that is not given has the value of the table's property of the same name. Only
    `grace`, the time that jobs and readers may take, is not a property.
    """

    name: ClassVar[str] = "maintain"

    zorder: Annotated[
        PolicyColumns | None,
        Help(
            "a column that queries filter by; repeat for more, at most 8: "
            "rows with close values go into the same files"
        ),
    ] = None
    window: Annotated[
        Span | None,
        Help("how long versions stay readable; files that only older ones need are deleted"),
    ] = None
    grace: Annotated[Span | None, GRACE] = None
    look_back: Annotated[
        PolicySpan | None,
        Help(
            "span of event time that stays readable, such as 90d, or a number in the unit of the "
            "delta column; rows that are visible only before it are dropped"
        ),
    ] = None
    small_files: Annotated[
        Count | None, Help("a compaction is due when a partition has more small files than this")
    ] = None
    dead_share: Annotated[
        Percent | None,
        Help(
            "a major compaction is due when this percentage of the rows is invisible "
            "at every readable event time"
        ),
    ] = None
    unclustered_share: Annotated[
        Percent | None, Help("a Z-order is due when this percentage of the bytes is out of order")
    ] = None
    archive_after: Annotated[
        PolicySpan | None,
        Help("partitions without rows younger than this are compressed harder, such as 365d"),
    ] = None
    archive_codec: Annotated[Codec | None, Help("codec of these partitions, such as zstd:19")] = (
        None
    )

    @classmethod
    def plain(cls, arguments: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments with `zorder` as a list; it may be a text such as `a,b`."""
        columns = arguments.get("zorder")
        if not isinstance(columns, str):
            return arguments
        names = [name.strip() for name in columns.split(",")]
        return {**arguments, "zorder": [name for name in names if name]}


@declaration
class Maintain(MaintenancePolicy, Job):
    """Run compaction, Z-order and retention, each if it is due by the properties.

    Arguments replace properties of the same name. `delete=False` leaves retention out. A dry run
    only reports which steps are due, and why.
    """

    delete: bool = True
    dry_run: Annotated[bool, Help("only report what is due, and why")] = False

    @property
    def policy(self) -> Mapping[str, Any]:
        """The arguments that replace properties."""
        return MaintenancePolicy.among(vars(self))

    def look(self, table: "OpenTable") -> None:
        """Raise InvalidInputError for an argument that does not fit the table."""
        self._policy_for(table)

    def run(self, table: "OpenTable") -> JobResult:
        """Run the steps that are due, one after the other."""
        from opal_lake.engine.results import run_once
        from opal_lake.maintenance.due import run_maintenance

        def step_named(name: str) -> Callable[[Mapping[str, Any]], JobResult]:
            return lambda arguments: self.job_of(name, arguments).run(table)

        policy = self._policy_for(table)
        steps = {name: step_named(name) for name in STEPS}
        # A dry run stores no result: the token stays free for the run itself
        token = None if self.dry_run else self.token
        return run_once(
            table.log,
            self.name,
            token,
            lambda: run_maintenance(table, policy, steps, dry_run=self.dry_run, delete=self.delete),
        )

    def due_steps(self, table: "OpenTable") -> "list[Due]":
        """Return the steps that are due now, in the order in which they run."""
        from opal_lake.maintenance.due import due_steps

        return due_steps(table, self._policy_for(table), delete=self.delete)

    def job_of(self, step: str, arguments: Mapping[str, Any]) -> Job:
        """Return the operation of a step of `STEPS`."""
        from opal_lake.operations.retain import Retain
        from opal_lake.operations.zorder import ZOrder

        if step == "compact":
            shared = Compacting.among(vars(self))
            return Compact(**{**shared, **arguments})
        if step == "zorder":
            return ZOrder(**arguments)
        return Retain(**arguments)

    def _policy_for(self, table: "OpenTable") -> "Policy":
        from opal_lake.maintenance.due import policy_of

        return policy_of(table.snapshot_at().spec, self.policy)
