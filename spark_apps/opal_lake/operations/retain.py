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

    Versions of the last `window` are recent; by default that is the table's property. `grace` is
    the time that jobs and readers may take, by default a day. A dry run lists the files that would
    be deleted.
    """

    name: ClassVar[str] = "retain"

    window: Annotated[
        Span | None,
        Help("how long versions stay readable, such as 30d (default: the table's property)"),
    ] = None
    grace: Annotated[Span | None, GRACE] = None
    dry_run: Annotated[bool, Help("change nothing; list what would be deleted")] = False

    def run(self, table: "OpenTable") -> JobResult:
        """Expire versions, and delete the files that they leave."""
        from opal_lake.retention.retention import no_progress

        return self.run_with(table, no_progress)

    def run_with(self, table: "OpenTable", at_file: "AtFile") -> JobResult:
        """Run, and call `at_file` for each deleted file with its number and the total."""
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
