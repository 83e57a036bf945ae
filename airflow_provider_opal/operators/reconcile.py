"""ReconcileOperator: emits events again that a consumer missed."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowSkipException

from airflow_provider_opal.assets import DEFAULT_CONN_ID, opal_asset, redelivery_asset, version_key
from airflow_provider_opal.hooks.opal import OpalHook, oldest_after
from airflow_provider_opal.watermark import Watermark
from opal_lake.job.operations.values import Span, span_of

if TYPE_CHECKING:
    from airflow.sdk import Context

LOOK_BACK, GRACE, AGAIN = timedelta(days=7), timedelta(minutes=30), timedelta(days=1)
MOST, OPEN_AT_ONCE = 50, 10


class ReconcileOperator(BaseOperator):
    """An event is a hint: Airflow drops those for paused DAGs. What the table holds and what a consumer has acknowledged is the truth.

    Compares both and emits the consumer's own `redelivery_asset` for the partition keys, or the version, that it misses. Its DAG
    listens by `consumer_schedule`; no other DAG is woken. All keys count that came since a consumer's first reconcile, which goes back by
    `look_back`, but those that became visible within `grace`: their run may be on its way. A key is emitted again after `again` at the
    earliest, and at most `most` keys at a time, the oldest first. Skips when there is nothing to emit.

    By partition nothing is lost when versions expire: later ones have a key's rows too, and what came under it since. By version a
    savepoint keeps the version that the consumer has seen, once it may expire soon, until it is back; where versions have expired unseen
    all the same it fails, and names them.
    """

    template_fields: Sequence[str] = ("table", "consumer")
    ui_color = "#d8ecf3"

    def __init__(
        self,
        *,
        table: str,
        consumer: str,
        by: str = "partition",
        look_back: Span = LOOK_BACK,
        grace: Span = GRACE,
        again: Span = AGAIN,
        most: int = MOST,
        opal_conn_id: str = DEFAULT_CONN_ID,
        lakechime_conn_id: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.table = table
        self.consumer = consumer
        self.by = by
        self.look_back = span_of("look_back", look_back)
        self.grace = span_of("grace", grace)
        self.again = span_of("again", again)
        self.most = most
        self.opal_conn_id = opal_conn_id
        self.lakechime_conn_id = lakechime_conn_id
        self.emitted = redelivery_asset(table, consumer, opal_conn_id=opal_conn_id)
        self.inlets = [
            *(self.inlets or []),
            opal_asset(table, opal_conn_id=opal_conn_id),
        ]  # where consumers acknowledge
        self.outlets = [*(self.outlets or []), self.emitted]

    def execute(self, context: "Context") -> dict[str, int]:
        """Returns the version of each key whose event was emitted again."""
        now = datetime.now(UTC)
        missed = self._missed(context, now)
        if not missed:
            raise AirflowSkipException(
                f"{self.consumer} has seen, or was sent, all changes of {self.table}"
            )
        event = context["outlet_events"][self.emitted]
        event.add_partitions(list(missed))
        event.extra = {"versions": dict(missed)}
        self.log.info("events emitted again for %s: %s", self.consumer, missed)
        return missed

    def _missed(self, context: "Context", now: datetime) -> dict[str, int]:
        from airflow_provider_opal.backlog import keep_seen_version, untaken_keys
        from opal_lake.errors import NotFoundError

        hook = OpalHook(self.opal_conn_id)
        try:
            watermark = Watermark.of(
                context, self.table, self.opal_conn_id, self.consumer, self.lakechime_conn_id
            )
        except NotFoundError as error:
            raise AirflowSkipException(f"{self.table} is not there yet") from error
        if self.by == "partition":
            open_keys = self._oldest(
                untaken_keys(
                    hook.table(self.table), watermark, now - self.look_back, now - self.grace
                )
            )
        else:
            version, seen = (
                hook.settled_version(self.table, now - self.grace),
                watermark.seen_version,
            )
            table = hook.table(self.table)
            oldest_after(table, max(seen, 0))
            open_keys = (
                {version_key(version): version} if version is not None and seen < version else {}
            )
            keep_seen_version(table, self.consumer, max(seen, 0) if open_keys else None)
        redelivered = {
            key: value for key, value in watermark.redelivered.items() if key in open_keys
        }
        missed = self._due(open_keys, redelivered, now)
        watermark.keep_redelivered(
            {**redelivered, **{key: [version, now.isoformat()] for key, version in missed.items()}}
        )
        return missed

    def _oldest(self, open_keys: Mapping[str, int]) -> dict[str, int]:
        """The oldest ones, no more than the state store can keep; the others follow when these were consumed."""
        ordered = sorted((version, key) for key, version in open_keys.items())
        return {key: version for version, key in ordered[: OPEN_AT_ONCE * self.most]}

    def _due(
        self, open_keys: Mapping[str, int], redelivered: Mapping[str, Any], now: datetime
    ) -> dict[str, int]:
        """Keys that were not redelivered, or long ago, or at an older version."""
        due = [
            (version, key)
            for key, version in open_keys.items()
            if key not in redelivered
            or redelivered[key][0] < version
            or now - datetime.fromisoformat(redelivered[key][1]) >= self.again
        ]
        return {key: version for version, key in sorted(due)[: self.most]}
