"""MaintenanceOperator: runs the compaction, Z-order and retention that are due for a table."""

from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import AirflowSkipException

from airflow_provider_opal.operators.whole_table import WholeTableOperator
from opal_lake.operations.maintain import Maintain

if TYPE_CHECKING:
    from airflow.sdk import Context

    from opal_lake.result import JobResult
    from opal_lake.table import Table


class MaintenanceOperator(WholeTableOperator):
    """Runs what is due: minor or major compaction, Z-order by `zorder`, and retention by `window`.

    What is not given the table's properties of these names say; by default they name no `zorder`, no `look_back` and no `archive_after`,
    so that nothing is clustered, no history dropped, and nothing compressed harder for its age. `small_files` of a partition,
    `dead_share` (percent of the rows) and `unclustered_share` (percent of the bytes) have to have gathered before a step is due.
    `grace`, as a RetentionOperator's, is how long jobs and readers may take. `delete=False` leaves retention out; with `dry_run` nothing
    is done, and the result tells what would be.

    Skips while the table is not there yet.
    """

    declared = Maintain

    def execute(self, context: "Context") -> dict[str, Any]:  # type: ignore[override]  # as OpalSparkOperator's
        """Its schedule may come round before the table's first rows do."""
        self.check_key(context)
        from opal_lake.errors import NotFoundError

        try:
            self.opal.table(self.table)
        except NotFoundError as error:
            raise AirflowSkipException(f"{self.table} is not there yet") from error
        return super().execute(context)

    def rehearse(self, table: "Table") -> "JobResult":
        """What is due, and why."""
        return table.maintain(**self.arguments)
