"""RetentionOperator: files that no readable version needs are deleted."""

from typing import TYPE_CHECKING

from airflow_provider_opal.operators.whole_table import WholeTableOperator
from opal_lake.operations.retain import Retain

if TYPE_CHECKING:
    from opal_lake.result import JobResult
    from opal_lake.table import Table


class RetentionOperator(WholeTableOperator):
    """A task that deletes the files that no readable version needs.

    It keeps the files of the versions of the last `window` (by commit time), of savepoints, and of
    readers that began within `grace`. Versions before the window can no longer be read. The
    defaults of `window` and `grace` are the table's properties. With `dry_run` nothing is deleted,
    no Spark starts, and the result names the files that would be deleted.
    """

    declared = Retain

    def rehearse(self, table: "Table") -> "JobResult":
        """Return a result that names the files that would be deleted."""
        return table.retain(**self.arguments)
