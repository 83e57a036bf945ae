"""ReconcileOperator: tells a consumer again what it has not taken."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowSkipException

from airflow_provider_opal.assets import DEFAULT_CONN_ID, opal_asset, told_asset, version_key
from airflow_provider_opal.hooks.opal import OpalHook
from airflow_provider_opal.watermark import Watermark

if TYPE_CHECKING:
    from airflow.sdk import Context

LOOK_BACK, GRACE, AGAIN = timedelta(days=7), timedelta(minutes=30), timedelta(days=1)
MOST = 50


class ReconcileOperator(BaseOperator):
    """An event is a hint: Airflow drops those for paused DAGs. What the table holds and what a consumer has acknowledged is the truth.

    Compares both, and emits the consumer's own `told_asset` for the partition keys, or the version, that it misses; its DAG listens by
    `consumer_schedule`, and no other DAG is woken. Keys that became visible within `look_back` count, and none that is younger than
    `grace`: its run may be on its way. The same is not told again before `again` has passed, and at most `most` keys at a time, the oldest
    first. Skips when there is nothing to tell.
    """

    template_fields: Sequence[str] = ("table", "consumer")
    ui_color = "#d8ecf3"

    def __init__(
        self,
        *,
        table: str,
        consumer: str,
        by: str = "partition",
        look_back: timedelta = LOOK_BACK,
        grace: timedelta = GRACE,
        again: timedelta = AGAIN,
        most: int = MOST,
        opal_conn_id: str = DEFAULT_CONN_ID,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.table = table
        self.consumer = consumer
        self.by = by
        self.look_back = look_back
        self.grace = grace
        self.again = again
        self.most = most
        self.opal_conn_id = opal_conn_id
        self.emitted = told_asset(table, consumer, opal_conn_id=opal_conn_id)
        self.inlets = [*(self.inlets or []), opal_asset(table, opal_conn_id=opal_conn_id)]  # where consumers acknowledge
        self.outlets = [*(self.outlets or []), self.emitted]

    def execute(self, context: "Context") -> dict[str, int]:
        """Returns the version of each key that was told again."""
        now = datetime.now(UTC)
        missed = self._missed(context, now)
        if not missed:
            raise AirflowSkipException(f"{self.consumer} has, or was told of, what {self.table} holds")
        event = context["outlet_events"][self.emitted]
        event.add_partitions(list(missed))
        event.extra = {"versions": dict(missed)}
        self.log.info("told %s again: %s", self.consumer, missed)
        return missed

    def _missed(self, context: "Context", now: datetime) -> dict[str, int]:
        from opal_lake.errors import NotFoundError

        hook = OpalHook(self.opal_conn_id)
        try:
            watermark = Watermark.of(context, self.table, self.opal_conn_id, self.consumer)
        except NotFoundError as error:
            raise AirflowSkipException(f"{self.table} is not there yet") from error
        if self.by == "partition":
            settled = hook.settled_partitions(self.table, now - self.look_back, now - self.grace)
            open_keys = {key: version for key, version in settled.items() if watermark.taken(key) < version}
        else:
            version = hook.settled_version(self.table, now - self.grace)
            open_keys = {version_key(version): version} if version is not None and watermark.seen_version < version else {}
        told = {key: value for key, value in watermark.told.items() if key in open_keys}
        missed = self._due(open_keys, told, now)
        watermark.tell({**told, **{key: [version, now.isoformat()] for key, version in missed.items()}})
        return missed

    def _due(self, open_keys: Mapping[str, int], told: Mapping[str, Any], now: datetime) -> dict[str, int]:
        """Those that were not told of, or long ago, or that have a newer version since."""
        due = [
            (version, key)
            for key, version in open_keys.items()
            if key not in told or told[key][0] < version or now - datetime.fromisoformat(told[key][1]) >= self.again
        ]
        return {key: version for version, key in sorted(due)[: self.most]}
