"""MetaGenOperator: makes ingested rows visible, and tells those who wait for the table."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from airflow_provider_opal.operators.spark import OpalSparkOperator
from airflow_provider_opal.telling import Telling

if TYPE_CHECKING:
    from airflow.sdk import Context

    from opal_lake.job import JobResult


class MetaGenOperator(OpalSparkOperator):
    """Decides which row of each key is the valid one. The table's asset is its outlet: ingested rows alone are not visible yet.

    A second outlet, the asset of the table's versions, gets an event keyed by the version, for consumers that go by versions.
    An event of the table carries the run's partition key, or `partition` (a template), as the ingest's.

    It never skips: with nothing to do it says so and emits all the same, or a cascade of keyed runs would stop.
    """

    operation = "metagen"

    template_fields: Sequence[str] = ("partition", *OpalSparkOperator.template_fields)

    def __init__(self, *, table: str, outlets: Any = None, partition: str | None = None, **kwargs: Any) -> None:
        super().__init__(table=table, **kwargs)
        self.partition = partition
        self.telling = Telling.of(table, self.opal_conn_id)
        self.asset, self.versions = self.telling.asset, self.telling.versions
        self.outlets = [*self.telling.outlets, *(outlets or [])]

    def finish(self, context: "Context", result: "JobResult") -> dict[str, Any]:
        """The events carry the version."""
        told = super().finish(context, result)
        self.telling.tell(context, told, self.partition)
        return told
