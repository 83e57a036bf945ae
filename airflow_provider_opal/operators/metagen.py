"""MetaGenOperator: makes ingested rows visible, and tells those who wait for the table."""

from typing import TYPE_CHECKING, Any

from airflow_provider_opal.assets import opal_asset
from airflow_provider_opal.operators.spark import OpalSparkOperator

if TYPE_CHECKING:
    from airflow.sdk import Context

    from opal_lake.job import JobResult


class MetaGenOperator(OpalSparkOperator):
    """Decides which row of each key is the valid one. The table's asset is its outlet: ingested rows alone are not visible yet.

    It never skips: with nothing to do it says so and emits all the same, or a cascade of keyed runs would stop.
    """

    operation = "metagen"

    def __init__(self, *, table: str, outlets: Any = None, **kwargs: Any) -> None:
        super().__init__(table=table, **kwargs)
        self.asset = opal_asset(table, opal_conn_id=self.opal_conn_id)
        self.outlets = [self.asset, *(outlets or [])]

    def finish(self, context: "Context", result: "JobResult") -> dict[str, Any]:
        """The event carries the version."""
        told = super().finish(context, result)
        context["outlet_events"][self.asset].extra = {"version": told["version"], "counts": told["counts"]}
        return told
