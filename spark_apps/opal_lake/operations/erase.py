"""Erase: remove all rows of some keys from every file of a table."""

from dataclasses import field
from typing import TYPE_CHECKING, Annotated, ClassVar

from opal_lake.arguments.declared import declaration
from opal_lake.arguments.values import GRACE, Help, Span
from opal_lake.operations.verb import Job
from opal_lake.result import JobResult

if TYPE_CHECKING:
    from opal_lake.engine.open_table import OpenTable


@declaration
class Erase(Job):
    """Remove all rows of the keys that meet a condition, from every file.

    A key is erased with its whole history if any of its stored rows meets `where`: a visible row,
    an older one, or a delete. Earlier versions of the table become unreadable. Once `grace` has
    passed since the erasure, a repeat of the call deletes the older files; by default that is a
    day, and "0s" deletes immediately and gives up running jobs. `remaining_files` in the counts is
    0 when the erasure is complete. A dry run counts the rows, and names what keeps older versions.
    """

    name: ClassVar[str] = "erase"

    where: Annotated[
        str, Help("erase the keys of which a stored row meets this condition", "CONDITION")
    ] = field(kw_only=False)
    grace: Annotated[Span | None, GRACE] = None
    dry_run: Annotated[bool, Help("change nothing; count what would be erased")] = False

    def run(self, table: "OpenTable") -> JobResult:
        """Erase the rows, and delete older files once the grace has passed."""
        from opal_lake.maintenance.erase import Erasure

        return Erasure(table=table, asked=self).run()
