"""Z-order: put rows that are close in all of some columns into the same files."""

from collections.abc import Callable, Mapping
from dataclasses import field
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from opal_lake.arguments.declared import declaration
from opal_lake.arguments.values import TARGET_MB, ClusterColumns, Help, MegaBytes
from opal_lake.errors import InvalidInputError
from opal_lake.operations.verb import Job
from opal_lake.result import JobResult

if TYPE_CHECKING:
    from opal_lake.engine.open_table import OpenTable


@declaration
class ZOrder(Job):
    """Sort rows so that each file holds close values of all these columns.

    Reads that filter by any of the columns open fewer files. New rows are sorted, and now and then
    larger parts of the table. With `whole` all rows are sorted. With `only_if_due` nothing happens
    while the share of unsorted bytes is below the property `unclustered_share`. Upserts may run
    meanwhile.
    """

    name: ClassVar[str] = "zorder"

    columns: ClusterColumns = field(kw_only=False)
    target_mb: Annotated[MegaBytes | None, TARGET_MB] = None
    whole: Annotated[
        bool,
        Help("sort all rows, also those that have this order already (default: only new rows)"),
    ] = False
    only_if_due: Annotated[
        bool, Help("do nothing unless enough rows are unsorted, by the property unclustered_share")
    ] = False

    @classmethod
    def check_together(cls, given: Mapping[str, Any], is_open: Callable[[Any], bool]) -> None:
        """Raise InvalidInputError for `whole` with `only_if_due`."""
        if given["whole"] is True and given["only_if_due"] is True:
            raise InvalidInputError(
                "whole=True sorts all rows, due or not; leave out whole or only_if_due"
            )

    def look(self, table: "OpenTable") -> None:
        """Raise InvalidInputError for a column that cannot be clustered by."""
        from opal_lake.data.z_value import z_fields

        z_fields(table.snapshot_at().spec, self.columns)

    def run(self, table: "OpenTable") -> JobResult:
        """Sort the rows that are not in the order of these columns yet."""
        from opal_lake.engine.results import run_once
        from opal_lake.maintenance.zorder import zorder

        return run_once(table.log, self.name, self.token, lambda: zorder(table, self))
