"""Retain: let old versions expire, and delete what nothing needs any more."""

from typing import TYPE_CHECKING, Annotated, ClassVar

from opal_lake.arguments.declared import declaration
from opal_lake.arguments.values import GRACE, Help, Span
from opal_lake.operations.verb import Job
from opal_lake.result import JobResult

if TYPE_CHECKING:
    from opal_lake.engine.open_table import OpenTable
    from opal_lake.retention.retention import AtFile


@declaration
class Retain(Job):
    """Delete files that no version of the last `window`, no savepoint and no running job needs.

    `window` is the table's own by default. Jobs and readers may take `grace`, by default a day. A
    dry run lists what would be deleted.
    """

    name: ClassVar[str] = "retain"

    window: Annotated[
        Span | None,
        Help("how long versions stay readable, as 30d or 12h (default: the table's property)"),
    ] = None
    grace: Annotated[Span | None, GRACE] = None
    dry_run: Annotated[bool, Help("change nothing, and list what would go")] = False

    def run(self, table: "OpenTable") -> JobResult:
        """Expire versions, and delete what is left over."""
        from opal_lake.retention.retention import no_progress

        return self.run_with(table, no_progress)

    def run_with(self, table: "OpenTable", at_file: "AtFile") -> JobResult:
        """Report each deleted file to `at_file`: how many of how many."""
        from opal_lake.engine.results import run_once
        from opal_lake.retention.retention import retain

        token = None if self.dry_run else self.token
        return run_once(
            table.log,
            self.name,
            token,
            lambda: retain(
                table.log,
                window=self.window,
                grace=self.grace,
                dry_run=self.dry_run,
                at_file=at_file,
            ),
        )
