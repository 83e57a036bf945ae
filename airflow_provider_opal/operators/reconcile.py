"""ReconcileOperator: events that a consumer missed are emitted again.

ReconcileReportOperator reports the outcome for each consumer.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import (
    AirflowFailException,
    AirflowRuntimeError,
    AirflowSkipException,
)

from airflow_provider_opal.arguments import takes_arguments_of
from airflow_provider_opal.assets import DEFAULT_CONN_ID, opal_asset, redelivery_asset, version_key
from airflow_provider_opal.hooks.opal import OpalHook, oldest_after
from airflow_provider_opal.watermark import Watermark
from opal_lake.arguments.declared import Declared, declaration
from opal_lake.arguments.values import Help, Span, span_of
from opal_lake.errors import count_text

if TYPE_CHECKING:
    from airflow.sdk import Context

MAX_EMITTED = 50
# The most keys in the state store, as a multiple of the keys that are emitted at a time
MAX_OPEN_BATCHES = 10
MAX_KEYS_SHOWN = 5
# A redelivery is stored as [version, time of emission]. Once a DAG run resulted from it, this is
# added as the third member
CONFIRMED = 1
REPORT = "report"  # the XCom key of a consumer's line
# A worker stores when it emits, and Airflow's database when the event arrived: clocks may differ
CLOCK_SKEW = timedelta(hours=1)


@declaration
class ReconcileSpans(Declared):
    """The spans of a reconcile: its look-back, and when a key's event is emitted."""

    name: ClassVar[str] = "reconcile"

    look_back: Annotated[
        Span,
        Help("how far the first reconcile of a consumer goes back; later ones go on from there"),
    ] = "7d"
    grace: Annotated[
        Span,
        Help(
            "how long to wait for a consumer's run, which may be about to start, "
            "before the event is emitted again"
        ),
    ] = "30m"
    again: Annotated[
        Span,
        Help(
            "how long to wait for a consumer that got a run and did not acknowledge it, "
            "before the event is emitted once more"
        ),
    ] = "1d"


class ReconcileOperator(BaseOperator):
    """A task that emits again the events that a consumer missed.

    Airflow drops the events for paused DAGs. So this task compares the rows of the table with the
    consumer's acknowledgements. It emits the consumer's own `redelivery_asset` for the partition
    keys, or the version, that the consumer missed. The consumer's DAG has the schedule
    `consumer_schedule`; the events start no other DAG.

    The first reconcile of a consumer goes back by `look_back`; later ones continue from there. Keys
    that became visible within `grace` wait: their run may be about to start. At most `most` keys
    are emitted at a time, the oldest first. The task skips if no event is missing.

    An event counts as delivered when a DAG run resulted from it. Its key is then emitted again
    after `again` at the earliest. The next reconcile emits an event without a DAG run again. While
    the consumer's DAG is paused nothing is emitted. `consumer_dag_id` names that DAG. By default
    its id is the consumer's name, or that name without the task.

    The XCom `report` holds one line about the consumer: the emitted events, that none were missing,
    that its DAG is paused, or the failure.

    By partition nothing is lost when versions expire, because later versions have all rows of a
    key. By version, a savepoint keeps the last version that the consumer has seen, from when the
    version may expire soon until the consumer has caught up. If unseen versions have expired
    nevertheless, the task fails and names them.
    """

    template_fields: Sequence[str] = ("table", "consumer")
    ui_color = "#d8ecf3"

    @takes_arguments_of(ReconcileSpans)
    def __init__(
        self,
        *,
        table: str,
        consumer: str,
        by: str = "partition",
        most: int = MAX_EMITTED,
        consumer_dag_id: str | None = None,
        opal_conn_id: str = DEFAULT_CONN_ID,
        lakechime_conn_id: str | None = None,
        **kwargs: Any,
    ) -> None:
        spans = ReconcileSpans(**ReconcileSpans.taken_from(kwargs))
        super().__init__(**kwargs)
        self.table = table
        self.consumer = consumer
        self.by = by
        self.look_back = span_of("look_back", spans.look_back)
        self.grace = span_of("grace", spans.grace)
        self.again = span_of("again", spans.again)
        self.most = most
        self.consumer_dag_id = consumer_dag_id
        self.opal_conn_id = opal_conn_id
        self.lakechime_conn_id = lakechime_conn_id
        self.emitted = redelivery_asset(table, consumer, opal_conn_id=opal_conn_id)
        self.inlets = [
            *(self.inlets or []),
            opal_asset(table, opal_conn_id=opal_conn_id),  # where consumers acknowledge
            self.emitted,  # its events name the DAG runs that resulted from them
        ]
        self.outlets = [*(self.outlets or []), self.emitted]

    def execute(self, context: "Context") -> dict[str, int]:
        """Return the version of each key whose event was emitted again."""
        now = datetime.now(UTC)
        try:
            missed = self._missed(context, now)
        except AirflowSkipException as nothing:
            self._report(context, "nothing", str(nothing))
            raise
        except Exception as error:
            self._report(context, "failed", f"{type(error).__name__}: {error}")
            raise
        event = context["outlet_events"][self.emitted]
        event.add_partitions(list(missed))
        event.extra = {"versions": dict(missed), "emitted": now.isoformat()}
        self._report(context, "emitted", f"{_named(missed)} of {self.table} emitted again")
        return missed

    def _report(self, context: "Context", state: str, text: str) -> None:
        """Log the consumer's line, and store it for a ReconcileReportOperator."""
        line = f"{self.consumer}: {text}"
        context["ti"].xcom_push(key=REPORT, value={"state": state, "line": line})
        if state == "failed":
            self.log.error("%s", line)
        else:
            self.log.info("%s", line)

    def _missed(self, context: "Context", now: datetime) -> dict[str, int]:
        """Return the keys to emit now, with their versions.

        Raises AirflowSkipException if no key is due.
        """
        from airflow_provider_opal.backlog import keep_seen_version, unconsumed_keys
        from opal_lake.errors import NotFoundError

        hook = OpalHook(self.opal_conn_id)
        try:
            watermark = Watermark.of(
                context, self.table, self.opal_conn_id, self.consumer, self.lakechime_conn_id
            )
        except NotFoundError as error:
            raise AirflowSkipException(f"{self.table} does not exist yet") from error
        open_keys = dict[str, int]()
        if self.by == "partition":
            since, until = now - self.look_back, now - self.grace
            unconsumed = unconsumed_keys(hook.table(self.table), watermark, since, until)
            open_keys = self._oldest(unconsumed)
        else:
            version = hook.settled_version(self.table, now - self.grace)
            seen = watermark.seen_version
            table = hook.table(self.table)
            oldest_after(table, max(seen, 0))  # raises if unseen versions have expired
            if version is not None and seen < version:
                open_keys = {version_key(version): version}
            keep_seen_version(table, self.consumer, max(seen, 0) if open_keys else None)
        stored = watermark.redelivered
        redelivered = {key: sent for key, sent in stored.items() if key in open_keys}
        redelivered = self._with_runs(context, redelivered)
        missed = self._due(open_keys, redelivered, now)
        if not missed:
            watermark.keep_redelivered(redelivered)
            raise AirflowSkipException(
                "nothing to emit: the consumer has seen, or got runs for, "
                f"all changes of {self.table}"
            )
        paused_dag = self._paused_dag(context)
        if paused_dag:
            watermark.keep_redelivered(redelivered)
            raise AirflowSkipException(
                f"{_named(missed)} of {self.table} wait: the DAG {paused_dag!r} is paused, "
                "and Airflow drops events for paused DAGs. "
                "Unpause the DAG; the next reconcile then emits the keys"
            )
        sent_now = {key: [version, now.isoformat()] for key, version in missed.items()}
        watermark.keep_redelivered({**redelivered, **sent_now})
        return missed

    def _with_runs(self, context: "Context", redelivered: Mapping[str, Any]) -> dict[str, Any]:
        """Return the redeliveries from which a DAG run resulted, marked as CONFIRMED.

        A redelivery without a DAG run is lost and left out, so that it is due again. If Airflow
        cannot list the DAG runs, all redeliveries are returned unchanged.
        """
        unconfirmed = {}
        for key, sent in redelivered.items():
            if len(sent) == 2:  # without CONFIRMED
                unconfirmed[key] = sent[1]
        if not unconfirmed:
            return dict(redelivered)
        oldest = min(map(datetime.fromisoformat, unconfirmed.values()))
        events = context["inlet_events"][self.emitted].after((oldest - CLOCK_SKEW).isoformat())
        try:
            delivered = _delivered(events)
        except AirflowRuntimeError as error:
            # Airflow 3.3 cannot list events while a run that resulted from one is still queued
            self.log.warning(
                "%s: Airflow did not report which runs resulted from %s, "
                "so these count as delivered until the next reconcile: %s",
                self.consumer,
                _named(unconfirmed),
                error,
            )
            return dict(redelivered)
        lost = {key for key, emitted in unconfirmed.items() if (key, emitted) not in delivered}
        if lost:
            self.log.warning(
                "%s: no DAG run resulted from the events emitted for %s; "
                "this reconcile may emit them again",
                self.consumer,
                _named(sorted(lost)),
            )
        confirmed = {}
        for key, sent in redelivered.items():
            if key not in lost:
                confirmed[key] = [*sent[:2], CONFIRMED]
        return confirmed

    def _paused_dag(self, context: "Context") -> str | None:
        """Return the id of the consumer's DAG if it is known and paused."""
        candidates = [self.consumer, self.consumer.rpartition(".")[0]]
        if self.consumer_dag_id:
            candidates = [self.consumer_dag_id]
        for dag_id in candidates:
            if not dag_id:
                continue
            try:
                is_paused = context["ti"].get_dag(dag_id).is_paused
            except AirflowRuntimeError as error:
                self.log.info("Airflow does not know a DAG %r: %s", dag_id, error)
            else:
                return dag_id if is_paused else None
        return None

    def _oldest(self, open_keys: Mapping[str, int]) -> dict[str, int]:
        """Return the keys of the oldest versions, as many as the state store can hold.

        Other keys follow when the consumer has consumed these.
        """
        by_version = sorted((version, key) for key, version in open_keys.items())
        oldest = by_version[: MAX_OPEN_BATCHES * self.most]
        return {key: version for version, key in oldest}

    def _due(
        self, open_keys: Mapping[str, int], redelivered: Mapping[str, Any], now: datetime
    ) -> dict[str, int]:
        """Return the keys to emit now, the oldest first, with their versions.

        A key is due if it was never redelivered, at an older version, or longer than `again` ago.
        """
        due = []
        for key, version in open_keys.items():
            if key in redelivered:
                sent_version, sent_at = redelivered[key][:2]
                is_recent = now - datetime.fromisoformat(sent_at) < self.again
                if sent_version >= version and is_recent:
                    continue
            due.append((version, key))
        return {key: version for version, key in sorted(due)[: self.most]}


class ReconcileReportOperator(BaseOperator):
    """A task that reports on all consumers whose ReconcileOperators are upstream.

    It logs and returns a line for each consumer. As the last task of its DAG it decides how the
    DAG run ends: it fails only if the reconcile failed for every consumer. The task of a broken
    consumer fails alone, and does not fail every DAG run.
    """

    ui_color = "#d8ecf3"

    def __init__(self, *, trigger_rule: str = "all_done", **kwargs: Any) -> None:
        super().__init__(trigger_rule=trigger_rule, **kwargs)

    def execute(self, context: "Context") -> dict[str, str]:
        """Return a line for each upstream task."""
        lines, failed = {}, []
        for task_id in sorted(self.upstream_task_ids):
            report = context["ti"].xcom_pull(task_ids=task_id, key=REPORT)
            if report is None:  # its process was killed, or it did not run
                report = {"state": "failed", "line": f"{task_id}: no report; see the task's log"}
            lines[task_id] = report["line"]
            if report["state"] == "failed":
                failed.append(task_id)
                self.log.error("%s", report["line"])
            else:
                self.log.info("%s", report["line"])
        if failed and len(failed) == len(lines):
            raise AirflowFailException(
                "the reconcile failed for every consumer; the logs of its tasks have the details:\n"
                + "\n".join(lines.values())
            )
        return lines


def _delivered(events: Iterable[Any]) -> set[tuple[str, str]]:
    """Return pairs of partition key and time of emission of the events with a DAG run."""
    delivered = set()
    for event in events:
        if event.created_dagruns:
            emitted = (event.extra or {}).get("emitted")
            delivered.add((event.partition_key, str(emitted)))
    return delivered


def _named(keys: Iterable[str]) -> str:
    """Return the number of keys and the first of them by name, as a text for messages."""
    names = sorted(keys)
    shown = ", ".join(names[:MAX_KEYS_SHOWN])
    if len(names) > MAX_KEYS_SHOWN:
        shown += f" and {len(names) - MAX_KEYS_SHOWN} more"
    return f"{count_text(len(names), 'key')} ({shown})"
