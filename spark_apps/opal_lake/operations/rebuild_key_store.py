"""Rebuild the key store from the data files."""

from typing import TYPE_CHECKING, ClassVar

from opal_lake.arguments.declared import declaration
from opal_lake.operations.verb import Job
from opal_lake.result import JobResult

if TYPE_CHECKING:
    from opal_lake.engine.open_table import OpenTable


@declaration
class RebuildKeyStore(Job):
    """Build the key store again from the data files, after runs of it were lost or damaged.

    After a failure the same call does what is left. Pending rows stay pending. Others may write
    meanwhile.
    """

    name: ClassVar[str] = "rebuild_key_store"

    def run(self, table: "OpenTable") -> JobResult:
        """Write the runs that are missing, and commit them."""
        from opal_lake.maintenance.rebuild import rebuild_key_store

        return rebuild_key_store(table, self.token)
