"""MaintenanceOperator: the compaction, Z-order and retention that are due for a table."""

from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import AirflowSkipException

from airflow_provider_opal.operators.whole_table import WholeTableOperator
from opal_lake.operations.maintain import Maintain

if TYPE_CHECKING:
    from airflow.sdk import Context

    from opal_lake.result import JobResult
    from opal_lake.table import Table


class MaintenanceOperator(WholeTableOperator):
    """A task that runs the maintenance that is due for a table.

    The steps are minor or major compaction, Z-order by `zorder`, and retention by `window`. The
    default of each argument is the table's property of the same name. A table has no `zorder`,
    `look_back` and `archive_after` at first: then nothing is clustered, no history is dropped, and
    no old partition is compressed harder.

    A step is due at a threshold: `small_files` of a partition, `dead_share` (percent of the rows)
    or `unclustered_share` (percent of the bytes). `grace` is the longest time that jobs and
    readers may take, as in RetentionOperator. `delete=False` leaves retention out. With `dry_run`
    the result names the steps that are due, and nothing is done.

    The task skips while the table does not exist.
    """

    declared = Maintain

    def execute(  # type: ignore[override]  # as the parent's
        self, context: "Context"
    ) -> dict[str, Any]:
        """Run the steps that are due; skip if the table does not exist yet."""
        self.check_key(context)
        from opal_lake.errors import NotFoundError

        try:
            self.opal.table(self.table)
        except NotFoundError as error:
            raise AirflowSkipException(f"{self.table} does not exist yet") from error
        return super().execute(context)

    def rehearse(self, table: "Table") -> "JobResult":
        """Return a result that names the steps that are due, and why."""
        return table.maintain(**self.arguments)
