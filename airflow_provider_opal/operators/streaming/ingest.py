"""StreamingIngestOperator: reads topics of Kafka into a table, for as long as the task runs, or once for each run of its DAG."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator, conf
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from airflow_provider_opal.asset_events import AssetEvents
from airflow_provider_opal.assets import DEFAULT_CONN_ID, DEFAULT_LAKECHIME_CONN_ID, distinct
from airflow_provider_opal.events.commits import register_commits
from airflow_provider_opal.hooks.kafka import DEFAULT_KAFKA_CONN_ID
from airflow_provider_opal.hooks.opal import OpalHook
from airflow_provider_opal.operators.ingest import CreateTable
from airflow_provider_opal.operators.spark import KEY_HINT
from airflow_provider_opal.partition_keys import KeyedInterval
from airflow_provider_opal.streaming.job import StreamJob
from airflow_provider_opal.streaming.process import RESTARTS, Outcome, StreamProcess
from airflow_provider_opal.streaming.source import Kafka
from airflow_provider_opal.streaming.tables import make_table
from airflow_provider_opal.triggers.stream import StreamTrigger
from opal_stream.operations.reading import ON_BAD_MESSAGE
from opal_stream.operations.verbs import Run

if TYPE_CHECKING:
    from airflow.sdk import Context


class StreamingIngestOperator(BaseOperator):
    """Runs `opal stream run`: messages are visible about a second after they were produced, and each counts once.

        StreamingIngestOperator(task_id="read", table="shop.orders", source=Kafka(topics="orders", mode="continuous"), deferrable=True)

    `mode="continuous"` reads until somebody ends the task, or for so long as `run_for` says: then it succeeds, and the next run goes on
    behind the last commit. To drain and stop it, mark it success or failed: the process flushes what it has, and ends. `"until_empty"` ends
    when everything is read that was there at its start. `"interval"` reads what lies between two times, by the stamps of the messages, and
    gives the rows the run's partition key: by `start_timestamp` and `end_timestamp` (templates), or by `schedule`, that of the DAG, whose
    partition key names the interval. A rerun reads the same offsets, and commits what is not there yet.

    Deferred (`deferrable=True`) the process is a child of the triggerer, and takes no worker's slot; else of the task's own process. It
    lives as long as its watcher (`streaming/process.py`); a retry, a clear or another triggerer goes on where the table stands. What fails
    is started again, up to `restarts` times in a row. `Kafka(processes=3)` shares the partitions over three processes by load, and
    `Kafka(processes=3, commit="gathered")` has a fourth one make their commits. The machine that watches needs the extra `kafka`.

    `create` makes the table, which needs a `schema` here, as messages have none. At its end the table's assets get their events, as by a
    MetaGenOperator; while it runs, a SnapshotTriggerSensor or LakeChime hears of its commits.
    """

    template_fields: Sequence[str] = (
        "table", "topics", "stream", "start_timestamp", "end_timestamp", "opal_conn_id", "kafka_conn_id", "bootstrap_servers", "registry",
        "lakechime_conn_id",
    )  # fmt: skip
    ui_color = "#d8ecf3"

    def __init__(
        self,
        *,
        table: str,
        source: Kafka,
        create: CreateTable | Mapping[str, Any] | None = None,
        on_bad_message: str = "fail",
        start_timestamp: str | None = None,
        end_timestamp: str | None = None,
        schedule: str | None = None,
        timezone: str = "UTC",
        partition_key_format: str | None = None,
        restarts: int = RESTARTS,
        opal_conn_id: str = DEFAULT_CONN_ID,
        lakechime_conn_id: str | None = DEFAULT_LAKECHIME_CONN_ID,
        deferrable: bool | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        ON_BAD_MESSAGE.check("on_bad_message", on_bad_message)
        self.arguments = {**source.arguments(), "on_bad_message": on_bad_message}
        self.mode = _checked_mode(source, start_timestamp, end_timestamp, schedule)
        self.table = table
        self.topics = source.topics
        self.stream = source.name
        self.registry = source.registry
        self.create = (
            None
            if create is None
            else create
            if isinstance(create, CreateTable)
            else CreateTable(**create)
        )
        if self.create is not None and self.create.schema is None:
            raise ValueError(
                "create= needs a schema, as 'id BIGINT, total DOUBLE, op STRING, at TIMESTAMP': messages of Kafka have none"
            )
        self.start_timestamp = start_timestamp
        self.end_timestamp = end_timestamp
        self.interval = (
            None if schedule is None else KeyedInterval.of(schedule, timezone, partition_key_format)
        )
        self.run_for_s = source.run_for_s if self.mode == "continuous" else None
        self.restarts = restarts
        self.opal_conn_id = opal_conn_id
        self.kafka_conn_id = source.kafka_conn_id or (
            None if source.bootstrap_servers else DEFAULT_KAFKA_CONN_ID
        )
        self.bootstrap_servers = source.bootstrap_servers
        self.lakechime_conn_id = lakechime_conn_id
        self.deferrable = (
            conf.getboolean("operators", "default_deferrable", fallback=False)
            if deferrable is None
            else deferrable
        )
        self._watched: StreamProcess | None = None
        self.asset_events = AssetEvents.known(table, self.opal_conn_id)
        self.asset = self.asset_events and self.asset_events.asset
        self.outlets = distinct(
            [*(self.asset_events.outlets if self.asset_events else ()), *self.outlets]
        )

    def execute(self, context: "Context") -> dict[str, Any]:
        """Makes the table, if it may; then runs the stream, or defers to the trigger that does."""
        try:
            job = self.job(context)
            if self.create is not None and make_table(
                OpalHook(self.opal_conn_id), self.table, self.create
            ):
                self.log.info("made the table %s", self.table)
            job.command()  # connections that are not there fail here, and not in the triggerer
        except ValueError as error:
            raise AirflowFailException(str(error)) from error
        if self.deferrable:
            ends_at_s = None if self.run_for_s is None else time.time() + self.run_for_s
            trigger = StreamTrigger(job=job.to_json(), restarts=self.restarts, ends_at_s=ends_at_s)
            self.defer(trigger=trigger, method_name="resume")
        self._watched = StreamProcess(
            job, self.log.info, restarts=self.restarts, run_for_s=self.run_for_s
        )
        return self._finish(context, asyncio.run(self._watched.watch()))

    def resume(self, context: "Context", event: Mapping[str, Any]) -> dict[str, Any]:
        """After the stream has ended."""
        return self._finish(context, Outcome(**event))

    def on_kill(self) -> None:
        """Of a task that is not deferred. Should there be no time to flush, the process does it by itself."""
        if self._watched is not None:
            self._watched.stop()

    def job(self, context: "Context") -> StreamJob:
        """What to read: rendered, and without secrets. ValueError if that makes no sense."""
        arguments = {
            **self.arguments,
            "topics": self.topics,
            "name": self.stream,
            "registry": self.registry,
            "bootstrap_servers": self.bootstrap_servers,
            "until_empty": self.mode == "until_empty",
        }
        if self.mode == "interval":
            arguments |= self._interval_of(context)
        return StreamJob(
            table=self.table,
            opal_conn_id=self.opal_conn_id,
            kafka_conn_id=self.kafka_conn_id,
            arguments=Run.of(arguments).to_arguments(),
        )

    def _interval_of(self, context: "Context") -> dict[str, Any]:
        key = context.get("partition_key")
        if self.interval is None:
            return {
                "start_timestamp": self.start_timestamp,
                "end_timestamp": self.end_timestamp,
                "partition_key": key,
            }
        if key is None:
            raise ValueError(
                f"task {self.task_id!r} reads the interval of a partition key, and this run has none. {KEY_HINT}"
            )
        start, end = self.interval.bounds(key)
        return {
            "start_timestamp": start.isoformat(),
            "end_timestamp": end.isoformat(),
            "partition_key": key,
        }

    def _finish(self, context: "Context", outcome: Outcome) -> dict[str, Any]:
        if outcome.failure is not None:
            raise (AirflowFailException if outcome.is_final else AirflowException)(outcome.failure)
        opal = OpalHook(self.opal_conn_id)
        if self.lakechime_conn_id is not None:
            register_commits(opal, self.table, self.lakechime_conn_id, self.log)
        totals = {
            **outcome.totals,
            "version": outcome.totals.get("version") or opal.head(self.table),
        }
        self.log.info("the stream has ended: %s", totals)
        events = AssetEvents.of(self.table, self.opal_conn_id)
        self.outlets = distinct(
            [*events.outlets, *self.outlets]
        )  # a template has named the table by now
        counts = {name: totals.get(name, 0) for name in ("records", "bad", "flushes")}
        events.emit(context, {"version": totals["version"], "counts": counts}, [])
        return totals


def _checked_mode(source: Kafka, start: str | None, end: str | None, schedule: str | None) -> str:
    mode = source.mode_of(has_interval=schedule is not None or start is not None)
    if mode == "interval" and (schedule is None) == (start is None or end is None):
        raise ValueError(
            "mode='interval' needs to know its interval: give schedule='@daily', that of the DAG, or start_timestamp and end_timestamp"
        )
    if mode == "interval":
        source = replace(source, mode=mode)  # it refuses what does not go with it
    if mode != "interval" and (start or end or schedule):
        raise ValueError(
            "start_timestamp, end_timestamp and schedule are for mode='interval': add it, or leave them out"
        )
    return mode
