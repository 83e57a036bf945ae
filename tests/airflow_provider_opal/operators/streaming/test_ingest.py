"""The operator of a stream with a real broker: in a worker's process, deferred, by intervals."""

import time
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowException, AirflowFailException, TaskDeferred

from airflow_provider_opal import CreateTable, Kafka, StreamingIngestOperator, opal_asset
from airflow_provider_opal.streaming.job import StreamJob
from opal_lake.table import Table as LakeTable
from tests.airflow_provider_opal.stand_ins import context
from tests.airflow_provider_opal.streaming.orders import connect
from tests.fixtures_kafka import Kafka as Broker
from tests.opal_stream.orders import gathered, ids, new_topic, order

SCHEMA = "id BIGINT, name STRING, total DOUBLE, op STRING, at TIMESTAMP"
HOUR_MS = 3_600_000
MIDNIGHT_MS = 1_762_041_600_000  # 2025-11-02


class Events(dict[Any, Any]):
    """Airflow's outlet events, as far as they are used."""

    def __missing__(self, asset: Any) -> Any:
        self[asset] = event = Event()
        return event


class Event:
    def __init__(self) -> None:
        self.extra: dict[str, Any] = {}
        self.keys: list[str] = []

    def add_partitions(self, *keys: str) -> None:
        self.keys += keys


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch, kafka: Broker, tmp_path: Path) -> LakeTable:
    return connect(monkeypatch, kafka, tmp_path)


def operator(topic: str, **more: Any) -> StreamingIngestOperator:
    of_source = {"mode": "until_empty", **more}
    source = Kafka(
        topics=topic,
        **{name: of_source.pop(name) for name in [*of_source] if name in Kafka.fields()},
    )
    usual = {
        "task_id": "s",
        "table": "orders",
        "source": source,
        "lakechime_conn_id": None,
        "deferrable": False,
    }
    return StreamingIngestOperator(**{**usual, **of_source})


def run(task: StreamingIngestOperator, key: str | None = None) -> tuple[dict[str, Any], Events]:
    events = Events()
    given = {**context(task, partition_key=key), "outlet_events": events}  # type: ignore[arg-type]  # it needs no more of a task
    return task.execute(given), events


def test_a_worker_s_task_makes_the_table_reads_it_all_and_tells_of_it(
    kafka: Broker, table: LakeTable
) -> None:
    topic = new_topic(kafka)
    kafka.produce(topic, [order(1), order(2)])
    create = CreateTable(keys=["id"], delta="at", deletes="op = 'D'", schema=SCHEMA)
    totals, events = run(operator(topic, table="shop.new", create=create))
    assert (totals["records"], totals["version"]) == (2, 1)
    asset = opal_asset("shop.new")
    assert events[asset].extra == {"version": 1, "counts": {"records": 2, "bad": 0, "flushes": 1}}
    assert events[opal_asset("shop.new", versions=True)].keys == [f"{1:020d}"]
    totals, events = run(operator(topic, table="shop.new", create=create))
    assert (totals["records"], totals["version"], events[asset].extra["version"]) == (0, 1, 1)
    with pytest.raises(AirflowFailException, match="exists already"):
        run(
            operator(
                topic,
                table="shop.new",
                create=CreateTable(keys=["name"], delta="at", schema=SCHEMA),
            )
        )


def test_a_rerun_of_an_interval_reads_the_same_range_and_commits_once(
    kafka: Broker, table: LakeTable
) -> None:
    topic = new_topic(kafka, retention_ms=str(10**15))
    kafka.produce(
        topic,
        [order(n) for n in range(4)],
        moments_ms=[MIDNIGHT_MS + hour * HOUR_MS for hour in (-1, 0, 23, 24)],
    )
    task = operator(topic, mode="interval", schedule="@daily")
    first, _ = run(task, "2025-11-02")
    assert (first["records"], first["ranges"], ids(table)) == (2, {f"{topic}/0": [1, 3]}, [1, 2])
    again, events = run(task, "2025-11-02")
    assert (again["records"], again["ranges"], again["version"]) == (
        0,
        first["ranges"],
        first["version"],
    )
    assert events[opal_asset("orders")].extra["version"] == first["version"]
    assert run(task, "2025-11-01")[0]["records"] == 1
    assert sorted(table.read(columns=["id"], partition_key="2025-11-02")["id"].to_pylist()) == [
        1,
        2,
    ]
    by_hand = operator(
        topic, mode="interval", start_timestamp="2025-11-03", end_timestamp="2025-11-04"
    )
    assert (run(by_hand)[0]["records"], ids(table)) == (1, [0, 1, 2, 3])
    with pytest.raises(AirflowFailException, match="this run has none"):
        run(task)
    with pytest.raises(AirflowFailException, match="'DE' does not have the format"):
        run(task, "DE")


def test_deferred_it_hands_its_job_to_the_trigger_and_goes_on_with_what_that_says(
    kafka: Broker, table: LakeTable
) -> None:
    topic = new_topic(kafka)
    task = operator(
        topic, mode="continuous", deferrable=True, run_for="1h", on_new_columns="add", restarts=3
    )
    with pytest.raises(TaskDeferred) as deferred:
        run(task)
    _, arguments = deferred.value.trigger.serialize()
    assert 3500 < arguments["ends_at_s"] - time.time() <= 3600
    assert arguments["restarts"] == 3
    job = StreamJob.from_json(arguments["job"])
    assert job.arguments == {"topics": [topic], "on_new_columns": "add"}
    given = {**context(task), "outlet_events": Events()}  # type: ignore[arg-type]  # it needs no more of a task
    assert (
        task.resume(
            given, {"totals": {"records": 3, "version": 7}, "failure": None, "is_final": False}
        )["version"]
        == 7
    )
    for is_final, kind in ((True, AirflowFailException), (False, AirflowException)):
        with pytest.raises(kind, match="the store"):
            task.resume(given, {"totals": {}, "failure": "the store is away", "is_final": is_final})


def test_several_processes_share_the_partitions(kafka: Broker, table: LakeTable) -> None:
    topic = new_topic(kafka, 3)
    for partition in range(3):
        kafka.produce(topic, [order(10 * partition + n) for n in range(5)], partition=partition)
    totals, _ = run(operator(topic, processes=2))
    assert (totals["records"], len(ids(table)), totals["version"]) == (
        15,
        15,
        table.log.head().version,
    )
    kafka.produce(topic, [b"nope"], partition=1)
    with pytest.raises(
        AirflowFailException, match=f"{topic}/1@5: the message is not a JSON object"
    ):
        run(operator(topic, processes=2))


@pytest.mark.slow
@pytest.mark.parametrize("processes", [None, 2])
def test_commits_of_gathered_files_are_emitted_as_events_of_the_asset(
    kafka: Broker, table: LakeTable, processes: int | None
) -> None:
    topic, asset = new_topic(kafka, 3), opal_asset("orders")
    for partition in range(3):
        kafka.produce(topic, [order(10 * partition + n) for n in range(5)], partition=partition)
    before, task = (
        table.log.head().version,
        operator(topic, processes=processes, commit="gathered", flush_rows=2),
    )
    totals, events = run(task)
    head = table.log.head().version
    assert (totals["records"], len(ids(table)), totals["version"], gathered(table)) == (
        15,
        15,
        head,
        [],
    )
    assert totals["flushes"] == head - before
    assert events[asset].extra == {
        "version": head,
        "counts": {"records": 15, "bad": 0, "flushes": head - before},
    }
    assert events[opal_asset("orders", versions=True)].keys == [f"{head:020d}"]
    totals, events = run(task)
    assert (totals["records"], totals["version"], events[asset].extra["version"]) == (0, head, head)
    kafka.produce(topic, [order(100), b"nope"], partition=1)
    with pytest.raises(
        AirflowFailException, match=f"{topic}/1@6: the message is not a JSON object"
    ):
        run(task)
    assert len(ids(table)) == 16  # what came before it


@pytest.mark.slow
def test_spark_continues_a_stream_at_the_positions_of_the_table(
    kafka: Broker, table: LakeTable
) -> None:
    topic = new_topic(kafka, 2)
    for partition in range(2):
        kafka.produce(topic, [order(10 * partition + n) for n in range(5)], partition=partition)
    spark = {
        "spark": True,
        "spark_conf": {"spark.master": "local[1]", "spark.sql.shuffle.partitions": "2"},
    }
    totals, _ = run(operator(topic, **spark))
    assert (totals["records"], len(ids(table))) == (10, 10)
    kafka.produce(topic, [order(100)])
    assert (
        run(operator(topic))[0]["records"],
        run(operator(topic, **spark))[0]["records"],
        len(ids(table)),
    ) == (1, 0, 11)
    kafka.produce(topic, [b"nope"])
    with pytest.raises(AirflowFailException, match="the message is not a JSON object"):
        run(operator(topic, **spark))


def test_a_bad_message_fails_the_task_without_a_retry_unless_it_is_quarantined(
    kafka: Broker, table: LakeTable
) -> None:
    topic = new_topic(kafka)
    kafka.produce(topic, [b"nope"])
    with pytest.raises(AirflowFailException, match="the message is not a JSON object"):
        run(operator(topic))
    assert run(operator(topic, on_bad_message="quarantine"))[0]["bad"] == 1


@pytest.mark.parametrize(
    "given, message",
    [
        ({"mode": "sometimes"}, "use one of continuous, until_empty, interval"),
        ({"mode": "interval"}, "needs either the schedule of the DAG or two times"),
        (
            {
                "mode": "interval",
                "schedule": "@daily",
                "start_timestamp": "1",
                "end_timestamp": "2",
            },
            "needs either the schedule of the DAG or two times",
        ),
        ({"schedule": "@daily"}, "do not apply to mode='until_empty'"),
        ({"mode": "until_empty", "run_for": "1h"}, "run_for is only for the mode continuous"),
        ({"on_gap": "maybe"}, "use one of fail, continue"),
        ({"spark": True, "processes": 2}, "Spark spreads partitions over tasks by itself"),
        (
            {"spark": True, "mode": None, "schedule": "@daily"},
            "spark does not go with an interval: Spark does not read intervals",
        ),
        ({"spark_conf": {"spark.master": "local"}}, "spark_conf does nothing without spark"),
        ({"processes": 0}, "processes must be a whole number of at least 1, got 0"),
        ({"flush_rows": 0}, "flush_rows must be a whole number of at least 1, got 0"),
        ({"flush_mb": -1}, "flush_mb must be a whole number of at least 1, got -1"),
        ({"mode": "continuous", "run_for": "0s"}, "run_for='0s' is too short"),
        ({"registry": "http://r:1"}, "registry: messages of format=json need no schema registry"),
        (
            {"spark": True, "flush_mb": 8},
            "flush_mb does not go with spark: Spark's commits are limited by rows; leave it out$",
        ),
        (
            {"mode": None, "schedule": "@daily", "start": "latest"},
            "start does not go with an interval: it begins at its own time",
        ),
        (
            {"mode": None, "schedule": "@daily", "processes": 2},
            "processes does not go with an interval: one process reads it",
        ),
        ({"commit": "later"}, "commit='later' is unknown; use one of direct, gathered"),
        (
            {"mode": None, "schedule": "@daily", "commit": "gathered"},
            "commit does not go with an interval: the process",
        ),
        (
            {"spark": True, "commit": "gathered"},
            "commit does not go with spark: Spark makes its own commits; leave it out$",
        ),
        ({"create": CreateTable(keys=["id"], delta="at")}, "needs a schema"),
    ],
)
def test_arguments_that_do_not_go_together(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        operator("t", **given)


def test_connections_that_are_not_there_fail_before_anything_runs(table: LakeTable) -> None:
    with pytest.raises(Exception, match="the Kafka connection 'other' does not exist"):
        run(operator("t", kafka_conn_id="other"))
