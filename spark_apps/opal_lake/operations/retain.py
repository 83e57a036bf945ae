"""Retain: let old versions expire, and delete files that nothing needs any more."""

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
    """Delete files that no recent version, no savepoint and no running job needs.

    Versions of the last `window` are recent.

    `window` is by default the table's property. Jobs and readers may take `grace`, by default a
    day. A dry run lists the files that would be deleted.
    """

    name: ClassVar[str] = "retain"

    window: Annotated[
        Span | None,
        Help("how long versions stay readable, as 30d or 12h (default: the table's property)"),
    ] = None
    grace: Annotated[Span | None, GRACE] = None
    dry_run: Annotated[bool, Help("change nothing; list what would be deleted")] = False

    def run(self, table: "OpenTable") -> JobResult:
        """Expire versions, and delete the files that they leave."""
        from opal_lake.retention.retention import no_progress

        return self.run_with(table, no_progress)

    def run_with(self, table: "OpenTable", at_file: "AtFile") -> JobResult:
        """Run, and report each deleted file to `at_file`: its number, of how many."""
        from opal_lake.engine.results import run_once
        from opal_lake.retention.retention import retain

        # A dry run stores no result: the token stays free for the run itself
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
