"""RestoreOperator: a table shows the rows of an older version again."""

from typing import TYPE_CHECKING, Any

from airflow_provider_opal.asset_events import AssetEvents, outlets_of
from airflow_provider_opal.assets import distinct
from airflow_provider_opal.operators.whole_table import WholeTableOperator
from opal_lake.operations.restore import Restore

if TYPE_CHECKING:
    from airflow.sdk import Context

    from opal_lake.result import JobResult
    from opal_lake.table import Table


class RestoreOperator(WholeTableOperator):
    """A task that commits a new version with the rows of an older one.

    The older one is a `version`, the last one up to a `timestamp`, or that of a `savepoint`. The
    table's assets are the outlets, as those of a MetaGen: consumers by version get an event, and
    with `rows="changes"` the rows that were removed and restored. `business_snapshots` also takes
    back the business snapshots that began or were finished since then. With `dry_run` the result
    counts what would change; that emits no event and needs no Spark.
    """

    declared = Restore

    def __init__(self, *, table: str, **kwargs: Any) -> None:
        super().__init__(table=table, **kwargs)
        self.asset_events: AssetEvents | None = None
        if self.arguments.get("dry_run") is not True:
            self.asset_events = AssetEvents.known(self.table, self.opal_conn_id)
        self.outlets = distinct([*outlets_of(self.asset_events), *self.outlets])

    def rehearse(self, table: "Table") -> "JobResult":
        """Return a result with the changes that the restore would make."""
        return table.restore(**self.arguments)

    def changes_view(self) -> bool:
        return True

    def finish(self, context: "Context", result: "JobResult") -> dict[str, Any]:
        """Emit events that carry the version, unless nothing had to change."""
        xcom = super().finish(context, result)
        events = AssetEvents.of(self.table, self.opal_conn_id)
        if result.version is None:
            self.outlets = [outlet for outlet in self.outlets if outlet not in events.outlets]
        else:
            self.outlets = distinct([*events.outlets, *self.outlets])
            events.emit(context, xcom, [])
        return xcom
