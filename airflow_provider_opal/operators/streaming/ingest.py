"""StreamingIngestOperator: topics of Kafka go into a table.

It reads for as long as the task runs, or once for each run of its DAG.
"""

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator, conf
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from airflow_provider_opal.asset_events import AssetEvents, outlets_of
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
    """A task that runs `opal stream run`.

    Messages are visible about a second after they were produced, and each is applied once.

        StreamingIngestOperator(
            task_id="read",
            table="shop.orders",
            source=Kafka(topics="orders", mode="continuous"),
            deferrable=True,
        )

    - `mode="continuous"` reads until somebody ends the task, or for the time `run_for`. Then the
      task succeeds, and the next run goes on after the last commit. To stop the stream earlier,
      mark the task as success or failed: the process flushes its rows, and ends.
    - `mode="until_empty"` ends when all messages are read that existed at its start.
    - `mode="interval"` reads the messages whose timestamps lie between two times, and gives the
      rows the run's partition key. The times are `start_timestamp` and `end_timestamp`
      (templates), or follow from the partition key and the DAG's `schedule`. A rerun reads the same
      offsets, and commits only missing rows.

    With `deferrable=True` the process is a child of the triggerer, and takes no worker slot.
    Otherwise it is a child of the task's process. It ends with its parent (`streaming/process.py`).
    A retry, a clear or another triggerer goes on after the table's last commit. A failed process is
    started again, up to `restarts` times in a row. `Kafka(processes=3)` shares the partitions
    between three processes by load. With `Kafka(processes=3, commit="gathered")` a fourth process
    makes their commits. The machine that runs the processes needs the extra `kafka`.

    `create` makes the table, and needs a `schema` here, because messages have none. At the end the
    table's assets get the same events as from a MetaGenOperator. While the stream runs, a
    SnapshotTriggerSensor and LakeChime see its commits.
    """

    template_fields: Sequence[str] = (
        "table",
        "topics",
        "stream",
        "start_timestamp",
        "end_timestamp",
        "opal_conn_id",
        "kafka_conn_id",
        "bootstrap_servers",
        "registry",
        "lakechime_conn_id",
    )
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
        if isinstance(create, Mapping):
            create = CreateTable(**create)
        elif create is not None and not isinstance(create, CreateTable):
            raise TypeError(f"create must be a CreateTable or a mapping, got {create!r}")
        self.create = create
        if self.create is not None and self.create.schema is None:
            raise ValueError(
                "create= needs a schema, because messages of Kafka have none; "
                "add schema='id BIGINT, total DOUBLE, op STRING, at TIMESTAMP'"
            )
        self.start_timestamp = start_timestamp
        self.end_timestamp = end_timestamp
        self.interval: KeyedInterval | None = None
        if schedule is not None:
            self.interval = KeyedInterval.of(schedule, timezone, partition_key_format)
        self.run_for_s = source.run_for_s if self.mode == "continuous" else None
        self.restarts = restarts
        self.opal_conn_id = opal_conn_id
        default_conn_id = None if source.bootstrap_servers else DEFAULT_KAFKA_CONN_ID
        self.kafka_conn_id = source.kafka_conn_id or default_conn_id
        self.bootstrap_servers = source.bootstrap_servers
        self.lakechime_conn_id = lakechime_conn_id
        if deferrable is None:
            deferrable = conf.getboolean("operators", "default_deferrable", fallback=False)
        self.deferrable = deferrable
        self._watched: StreamProcess | None = None
        self.asset_events = AssetEvents.known(table, self.opal_conn_id)
        self.asset = self.asset_events and self.asset_events.asset
        self.outlets = distinct([*outlets_of(self.asset_events), *self.outlets])

    def execute(self, context: "Context") -> dict[str, Any]:
        """Make the table, if `create` is given, and run the stream or defer."""
        try:
            job = self.job(context)
            if self.create is not None:
                is_new = make_table(OpalHook(self.opal_conn_id), self.table, self.create)
                if is_new:
                    self.log.info("made the table %s", self.table)
            job.command()  # so that a missing connection fails here, and not in the triggerer
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
        """Finish the task after the stream has ended."""
        return self._finish(context, Outcome(**event))

    def on_kill(self) -> None:
        """Stop the process of a task that is not deferred.

        If the task is killed before the process has ended, the process flushes and ends on its own.
        """
        if self._watched is not None:
            self._watched.stop()

    def job(self, context: "Context") -> StreamJob:
        """Return the stream to run, with rendered templates and without secrets.

        Raises ValueError if the arguments do not fit each other.
        """
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
                f"task {self.task_id!r} reads the interval of a partition key, "
                f"and this run has none. {KEY_HINT}"
            )
        start, end = self.interval.bounds(key)
        return {
            "start_timestamp": start.isoformat(),
            "end_timestamp": end.isoformat(),
            "partition_key": key,
        }

    def _finish(self, context: "Context", outcome: Outcome) -> dict[str, Any]:
        if outcome.failure is not None:
            if outcome.is_final:
                raise AirflowFailException(outcome.failure)
            raise AirflowException(outcome.failure)
        opal = OpalHook(self.opal_conn_id)
        if self.lakechime_conn_id is not None:
            register_commits(opal, self.table, self.lakechime_conn_id, self.log)
        version = outcome.totals.get("version")
        if not version:
            version = opal.head(self.table)
        totals = {**outcome.totals, "version": version}
        self.log.info("the stream has ended: %s", totals)
        events = AssetEvents.of(self.table, self.opal_conn_id)
        # A table that a template names has its outlets only now
        self.outlets = distinct([*events.outlets, *self.outlets])
        counts = {name: totals.get(name, 0) for name in ("records", "bad", "flushes")}
        events.emit(context, {"version": totals["version"], "counts": counts}, [])
        return totals


def _checked_mode(source: Kafka, start: str | None, end: str | None, schedule: str | None) -> str:
    """Return the mode of a stream; raise ValueError if its times do not fit."""
    mode = source.mode_of(has_interval=schedule is not None or start is not None)
    if mode != "interval":
        if start or end or schedule:
            raise ValueError(
                f"start_timestamp, end_timestamp and schedule do not apply to mode={mode!r}: "
                "leave them out, or use mode='interval'"
            )
        return mode
    has_times = start is not None and end is not None
    has_schedule = schedule is not None
    if has_times == has_schedule:
        raise ValueError(
            "mode='interval' needs either the schedule of the DAG or two times: "
            "give schedule='@daily', or start_timestamp and end_timestamp"
        )
    # The copy checks itself, and refuses arguments of other modes
    replace(source, mode=mode)
    return mode
