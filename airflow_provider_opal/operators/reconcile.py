"""ReconcileOperator: tells a table's consumers again what they have not taken."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowSkipException

from airflow_provider_opal.assets import DEFAULT_CONN_ID, opal_asset, version_key
from airflow_provider_opal.hooks.opal import OpalHook
from airflow_provider_opal.watermark import Watermark

if TYPE_CHECKING:
    from airflow.sdk import Context

LOOK_BACK, GRACE = timedelta(days=7), timedelta(minutes=30)


class ReconcileOperator(BaseOperator):
    """An event is a hint: Airflow drops those for paused DAGs. What the table holds and what its consumers have acknowledged is the truth.

    Compares both, and emits the table's asset again for the partition keys (by partition) or the version (by version) that some consumer
    misses; the event names the consumers that it is for. Looks at the commits of the last `look_back`, and leaves those younger than
    `grace` to the runs that are on their way. Skips when nothing is missed.
    """

    template_fields: Sequence[str] = ("table", "consumers")
    ui_color = "#d8ecf3"

    def __init__(
        self,
        *,
        table: str,
        consumers: Sequence[str],
        by: str = "partition",
        look_back: timedelta = LOOK_BACK,
        grace: timedelta = GRACE,
        opal_conn_id: str = DEFAULT_CONN_ID,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.table = table
        self.consumers = list(consumers)
        self.by = by
        self.look_back = look_back
        self.grace = grace
        self.opal_conn_id = opal_conn_id
        self.asset = opal_asset(table, opal_conn_id=opal_conn_id)  # where consumers acknowledge
        self.emitted = opal_asset(table, opal_conn_id=opal_conn_id, versions=by == "version")
        self.inlets = [*(self.inlets or []), self.asset]
        self.outlets = [*(self.outlets or []), self.emitted]

    def execute(self, context: "Context") -> dict[str, list[str]]:
        """Returns what each consumer missed."""
        now = datetime.now(UTC)
        partitions, version = OpalHook(self.opal_conn_id).settled(self.table, now - self.look_back, now - self.grace)
        wanted = partitions if self.by == "partition" else {} if version is None else {version_key(version): version}
        missed = {consumer: keys for consumer in self.consumers if (keys := self._missed(context, consumer, wanted))}
        if not missed:
            raise AirflowSkipException(f"all {len(self.consumers)} consumers have what {self.table} holds")
        event = context["outlet_events"][self.emitted]
        event.add_partitions(sorted({key for keys in missed.values() for key in keys}))
        event.extra = {"consumers": {consumer: [*keys] for consumer, keys in missed.items()}}
        self.log.info("told again: %s", missed)
        return missed

    def _missed(self, context: "Context", consumer: str, wanted: Mapping[str, int]) -> list[str]:
        watermark = Watermark(context=context, asset=self.asset, consumer=consumer)
        taken = watermark.taken_partition if self.by == "partition" else watermark.taken_version
        return sorted(key for key, version in wanted.items() if taken(key) < version)
