"""RetentionOperator: deletes the files that nothing needs any more."""

from typing import TYPE_CHECKING

from airflow_provider_opal.operators.whole_table import WholeTableOperator
from opal_lake.operations.retain import Retain

if TYPE_CHECKING:
    from opal_lake.result import JobResult
    from opal_lake.table import Table


class RetentionOperator(WholeTableOperator):
    """Deletes what no version of the last `window` (by commit time) needs, no savepoint, and no reader that began within `grace`.

    Versions before the window can no longer be read. Without `window` and `grace` the table's own count. With `dry_run` nothing is
    deleted, and the result tells what would be; that needs no Spark.
    """

    declared = Retain

    def rehearse(self, table: "Table") -> "JobResult":
        """What would be deleted."""
        return table.retain(**self.arguments)
