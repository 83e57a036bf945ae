"""RestoreOperator: takes a table back to what an older version showed, and emits its asset events."""

from typing import TYPE_CHECKING, Any

from airflow_provider_opal.asset_events import AssetEvents
from airflow_provider_opal.assets import distinct
from airflow_provider_opal.operators.whole_table import WholeTableOperator
from opal_lake.operations.restore import Restore

if TYPE_CHECKING:
    from airflow.sdk import Context

    from opal_lake.result import JobResult
    from opal_lake.table import Table


class RestoreOperator(WholeTableOperator):
    """A new version that shows what a `version` showed, the last one up to a `timestamp`, or the one of a `savepoint`.

    The table's assets are its outlets, as those of a MetaGen: consumers by version hear of it, and with `rows="changes"` get what it took
    back and what it brought again. With `business_snapshots` it also takes back those that began or were finished since. With `dry_run`
    the result counts what would change, no event is emitted, and no Spark is needed.
    """

    declared = Restore

    def __init__(self, *, table: str, **kwargs: Any) -> None:
        super().__init__(table=table, **kwargs)
        is_dry = self.arguments.get("dry_run") is True
        self.asset_events = None if is_dry else AssetEvents.known(self.table, self.opal_conn_id)
        self.outlets = distinct(
            [*(self.asset_events.outlets if self.asset_events else ()), *self.outlets]
        )

    def rehearse(self, table: "Table") -> "JobResult":
        """What would change."""
        return table.restore(**self.arguments)

    def changes_view(self) -> bool:
        return True

    def finish(self, context: "Context", result: "JobResult") -> dict[str, Any]:
        """The events carry the version; where nothing had to change there is none."""
        xcom, events = (
            super().finish(context, result),
            AssetEvents.of(self.table, self.opal_conn_id),
        )
        if result.version is None:
            self.outlets = [outlet for outlet in self.outlets if outlet not in events.outlets]
        else:
            self.outlets = distinct([*events.outlets, *self.outlets])
            events.emit(context, xcom, [])
        return xcom
