"""ReconcileOperator: emits events again that a consumer missed. ReconcileReportOperator: how it went for each consumer."""

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

MOST, OPEN_AT_ONCE = 50, 10
KEYS_SHOWN = 5
CONFIRMED = 1  # the third member of what is kept of a redelivery, once a DAG run came of it
REPORT = "report"  # the XCom key of a consumer's line
# Between a worker, which notes when it emits, and Airflow's database, which notes the event
CLOCK_SKEW = timedelta(hours=1)


@declaration
class ReconcileSpans(Declared):
    """The spans of a reconcile: how far it looks back, and when it emits the event of a key."""

    name: ClassVar[str] = "reconcile"

    look_back: Annotated[
        Span, Help("how far the first reconcile of a consumer goes back; later ones go on from it")
    ] = "7d"
    grace: Annotated[
        Span,
        Help(
            "how long to wait for a consumer's run, which may be about to start, "
            "before its event is emitted"
        ),
    ] = "30m"
    again: Annotated[
        Span,
        Help(
            "how long to wait for a consumer that got a run and did not acknowledge it, "
            "before its event is emitted again"
        ),
    ] = "1d"


class ReconcileOperator(BaseOperator):
    """An event is a hint: Airflow drops those for paused DAGs. What the table holds and what a consumer has acknowledged is the truth.

    Compares both and emits the consumer's own `redelivery_asset` for the partition keys, or the version, that it misses. Its DAG
    listens by `consumer_schedule`; no other DAG is woken. All keys count that came since a consumer's first reconcile, which goes back by
    `look_back`, but those that became visible within `grace`: their run may be on its way. At most `most` keys are emitted at a time, the
    oldest first. Skips when there is nothing to emit.

    An event counts as delivered when a DAG run came of it; then its key is emitted again after `again` at the earliest. An event of which
    none came is emitted again by the next reconcile. While the consumer's DAG is paused nothing is emitted, because Airflow would drop it.
    `consumer_dag_id` names that DAG; by default it is the consumer's name, or that name without the task.

    The XCom `report` holds one line on the consumer: what was emitted, that there was nothing, that its DAG is paused, or why it failed.

    By partition nothing is lost when versions expire: later ones have a key's rows too, and what came under it since. By version a
    savepoint keeps the version that the consumer has seen, once it may expire soon, until it is back; where versions have expired unseen
    all the same it fails, and names them.
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
        most: int = MOST,
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
            self.emitted,  # whose events say which runs came of them
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
        """Log the consumer's line, and keep it for a ReconcileReportOperator, also of a task that fails."""
        line = f"{self.consumer}: {text}"
        context["ti"].xcom_push(key=REPORT, value={"state": state, "line": line})
        if state == "failed":
            self.log.error("%s", line)
        else:
            self.log.info("%s", line)

    def _missed(self, context: "Context", now: datetime) -> dict[str, int]:
        """The keys to emit. AirflowSkipException, which says why, when there are none."""
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
        redelivered = self._with_runs(context, redelivered)
        missed = self._due(open_keys, redelivered, now)
        paused_dag = self._paused_dag(context) if missed else None
        sent = {} if paused_dag else {key: [missed[key], now.isoformat()] for key in missed}
        watermark.keep_redelivered({**redelivered, **sent})
        if paused_dag:
            raise AirflowSkipException(
                f"{_named(missed)} of {self.table} wait: the DAG {paused_dag!r} is paused, and Airflow drops events for paused DAGs. "
                "Unpause it; the next reconcile then emits them"
            )
        if not missed:
            raise AirflowSkipException(
                f"nothing to emit: the consumer has seen, or got runs for, all changes of {self.table}"
            )
        return missed

    def _with_runs(self, context: "Context", redelivered: Mapping[str, Any]) -> dict[str, Any]:
        """Mark the redeliveries of which a DAG run came; leave out those that were lost, so that they are due."""
        unconfirmed = {key: sent[1] for key, sent in redelivered.items() if len(sent) == 2}
        if not unconfirmed:
            return dict(redelivered)
        oldest = min(map(datetime.fromisoformat, unconfirmed.values()))
        events = context["inlet_events"][self.emitted].after((oldest - CLOCK_SKEW).isoformat())
        try:
            delivered = _delivered(events)
        except AirflowRuntimeError as error:
            # Airflow 3.3 cannot list events while a run that came of one is still queued
            self.log.warning(
                "%s: Airflow did not tell which runs came of %s, which count as delivered until the next reconcile: %s",
                self.consumer,
                _named(unconfirmed),
                error,
            )
            return dict(redelivered)
        lost = {key for key, emitted in unconfirmed.items() if (key, emitted) not in delivered}
        if lost:
            self.log.warning(
                "%s: no DAG run came of the events emitted for %s; they are due again",
                self.consumer,
                _named(sorted(lost)),
            )
        return {key: [*sent[:2], CONFIRMED] for key, sent in redelivered.items() if key not in lost}

    def _paused_dag(self, context: "Context") -> str | None:
        """The consumer's DAG, if it is paused. None also if no DAG of such a name is known."""
        by_name = (self.consumer, self.consumer.rpartition(".")[0])
        for dag_id in (self.consumer_dag_id,) if self.consumer_dag_id else filter(None, by_name):
            try:
                return dag_id if context["ti"].get_dag(dag_id).is_paused else None
            except AirflowRuntimeError as error:
                self.log.info("there is no DAG %r to look at: %s", dag_id, error)
        return None

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


class ReconcileReportOperator(BaseOperator):
    """Reports on all consumers whose ReconcileOperators are upstream: a line for each in the log, and in the result.

    As the last task of its DAG it decides how the DAG run ends: it fails only if the reconcile failed for every consumer, so that one
    broken consumer, whose own task is red, does not turn all runs red.
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
                "nothing can be emitted to any consumer:\n" + "\n".join(lines.values())
            )
        return lines


def _delivered(events: Iterable[Any]) -> set[tuple[str, str]]:
    """The partition key, and the time of emission, of each event of which a DAG run came."""
    return {
        (event.partition_key, str((event.extra or {}).get("emitted")))
        for event in events
        if event.created_dagruns
    }


def _named(keys: Iterable[str]) -> str:
    """How many keys, and the first of them by name."""
    names = sorted(keys)
    more = f" and {len(names) - KEYS_SHOWN} more" if len(names) > KEYS_SHOWN else ""
    return f"{count_text(len(names), 'key')} ({', '.join(names[:KEYS_SHOWN])}{more})"
