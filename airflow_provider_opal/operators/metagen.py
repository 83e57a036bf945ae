"""MetaGenOperator: makes ingested rows visible, and emits the asset events of the table."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow_provider_opal.asset_events import AssetEvents
from airflow_provider_opal.assets import DEFAULT_CONN_ID, distinct
from airflow_provider_opal.operators.spark import OpalSparkOperator

if TYPE_CHECKING:
    from airflow.sdk import Context

    from opal_lake.job.job import JobResult


class MetaGenOperator(OpalSparkOperator):
    """Decides which row of each key is the valid one. The table's asset is its outlet: ingested rows alone are not visible yet.

    A second outlet, the asset of the table's versions, gets an event keyed by the version, for consumers that go by versions.
    An event of the table carries the run's partition key, or `partition` (a template), as the ingest's.

    With a template in `table`, or mapped over tables, it has these outlets when it runs: whoever listens hears of it.

    It never skips: with nothing to do it says so and emits all the same, or a cascade of keyed runs would stop.
    """

    operation = "metagen"

    template_fields: Sequence[str] = ("partition", *OpalSparkOperator.template_fields)

    def __init__(self, *, table: str, partition: str | None = None, **kwargs: Any) -> None:
        super().__init__(table=table, **kwargs)
        self.partition = partition
        self.asset_events = AssetEvents.known(table, self.opal_conn_id)
        self.asset = self.asset_events and self.asset_events.asset
        self.versions = self.asset_events and self.asset_events.versions
        self.outlets = distinct(
            [*(self.asset_events.outlets if self.asset_events else ()), *self.outlets]
        )

    @classmethod
    def assets_of(cls, given: Mapping[str, Any]) -> Mapping[str, Sequence[Any]]:
        """Of a mapped one."""
        events = AssetEvents.known(given.get("table"), given.get("opal_conn_id", DEFAULT_CONN_ID))
        return {"outlets": events.outlets if events else []}

    def changes_view(self) -> bool:
        return True

    def finish(self, context: "Context", result: "JobResult") -> dict[str, Any]:
        """The events carry the version."""
        xcom = super().finish(context, result)
        events = AssetEvents.of(self.table, self.opal_conn_id)
        self.outlets = distinct(
            [*events.outlets, *self.outlets]
        )  # a template has named the table by now
        events.emit(context, xcom, self.partition)
        return xcom
