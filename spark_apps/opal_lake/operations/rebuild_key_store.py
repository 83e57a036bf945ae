"""Rebuild the key store from the data files."""

from typing import TYPE_CHECKING, ClassVar

from opal_lake.arguments.declared import declaration
from opal_lake.operations.verb import Job
from opal_lake.result import JobResult

if TYPE_CHECKING:
    from opal_lake.engine.open_table import OpenTable


@declaration
class RebuildKeyStore(Job):
    """Rebuild the key store from the data files, if its runs are lost or damaged.

    After a failure the same call continues. Pending rows stay pending. Other jobs may write
    meanwhile.
    """

    name: ClassVar[str] = "rebuild_key_store"

    def run(self, table: "OpenTable") -> JobResult:
        """Write the missing runs, and commit them."""
        # Imported here, as in all operations: Airflow parses these modules
        from opal_lake.maintenance.rebuild import rebuild_key_store

        return rebuild_key_store(table, self.token)
