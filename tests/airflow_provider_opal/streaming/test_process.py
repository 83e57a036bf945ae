"""The process of a stream under a watcher, with a real broker."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from airflow_provider_opal.streaming.process import Outcome, StreamProcess, drain_of
from opal_lake.table import Table
from opal_stream.flush.options import StreamOptions
from opal_stream.supervise.process import Tuning
from tests.airflow_provider_opal.streaming.orders import connect, new_job
from tests.fixtures_kafka import Kafka
from tests.opal_stream.orders import ends, ids, new_topic, order

WATCHER = """
import asyncio, sys
from airflow_provider_opal.streaming.process import StreamProcess
from tests.airflow_provider_opal.streaming.orders import new_job
job = new_job(sys.argv[1], until_empty=False, flush_interval="1h")
asyncio.run(StreamProcess(job, lambda text: print(text, flush=True)).watch())
"""


def test_a_last_flush_may_wait_for_the_store_as_long_as_it_would_else() -> None:
    usual_s = StreamOptions(topics=["orders"]).give_up_s
    assert drain_of(new_job("orders")) == usual_s + 30
    assert drain_of(new_job("orders", processes=3)) == 5 * (usual_s + 30)
    assert drain_of(new_job("orders", spark=True)) == 600


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch, kafka: Kafka, tmp_path: Path) -> Table:
    return connect(monkeypatch, kafka, tmp_path)


def streams_of(topic: str) -> list[psutil.Process]:
    return [
        process
        for process in psutil.process_iter(["cmdline"])
        if {"stream", f"--topic={topic}"} <= {*(process.info["cmdline"] or [])}
    ]


def wait_until(holds: Callable[[], bool], most_s: float = 60) -> None:
    until = time.monotonic() + most_s
    while not holds():
        assert time.monotonic() < until
        time.sleep(0.2)


async def until(holds: Callable[[], bool], most_s: float = 60) -> None:
    end = time.monotonic() + most_s
    while not holds():
        assert time.monotonic() < end
        await asyncio.sleep(0.05)


def test_it_tells_what_it_read_when_it_is_done(kafka: Kafka, table: Table) -> None:
    topic, said = new_topic(kafka), list[str]()
    kafka.produce(topic, [order(1), order(2)])
    outcome = asyncio.run(StreamProcess(new_job(topic), said.append).watch())
    assert (outcome.failure, outcome.totals["records"], ids(table)) == (None, 2, [1, 2])
    assert any("reads" in line for line in said)
    assert not streams_of(topic)


def test_a_failure_that_the_next_start_would_repeat_is_final(kafka: Kafka, table: Table) -> None:
    topic = new_topic(kafka)
    kafka.produce(topic, [b"nope"])
    outcome = asyncio.run(StreamProcess(new_job(topic), lambda _: None).watch())
    assert outcome.is_final
    assert "the message is not a JSON object" in str(outcome.failure)


def test_one_that_is_killed_is_started_again_and_one_whose_time_is_over_flushes(
    kafka: Kafka, table: Table, tmp_path: Path
) -> None:
    topic, said, metrics = new_topic(kafka), list[str](), tmp_path / "m.prom"
    kafka.produce(topic, [order(1)])

    async def scene() -> Outcome:
        watched = StreamProcess(
            new_job(topic, until_empty=False, metrics_file=str(metrics)), said.append
        )
        running = asyncio.ensure_future(watched.watch())
        await until(
            lambda: metrics.exists() and "opal_stream_flushes_total 1\n" in metrics.read_text()
        )  # behind the line for its watcher
        assert ids(table) == [1]
        [process] = streams_of(topic)
        process.kill()
        kafka.produce(topic, [order(2)])
        await until(lambda: ids(table) == [1, 2])
        watched.stop()
        return await running

    outcome = asyncio.run(scene())
    assert (outcome.failure, outcome.totals["records"], ends(table)) == (None, 2, [2])
    assert any(
        "it was ended by signal 9" in line and "started again in 1 s" in line for line in said
    )
    kafka.produce(topic, [order(3)])
    outcome = asyncio.run(
        StreamProcess(
            new_job(topic, until_empty=False, flush_interval="1h"), said.append, run_for_s=8
        ).watch()
    )
    assert (outcome.failure, outcome.totals["records"], ids(table)) == (None, 1, [1, 2, 3])
    assert not streams_of(topic)


@pytest.mark.slow
def test_it_gives_up_after_failures_in_a_row(kafka: Kafka, table: Table) -> None:
    tuning = Tuning(first_pause_s=0.01)
    topic, said = new_topic(kafka), list[str]()
    kafka.produce(topic, [b"\0\0\0\0\1rest"])
    job = new_job(topic, format="avro", registry="http://127.0.0.1:1")
    outcome = asyncio.run(StreamProcess(job, said.append, restarts=1, tuning=tuning).watch())
    assert not outcome.is_final
    assert "did not give schema 1" in str(outcome.failure)
    assert sum("started again" in line for line in said) == 1


def test_a_watcher_that_is_cancelled_drains_it(kafka: Kafka, table: Table) -> None:
    """Cancel a watcher as Airflow does with a trigger that it moves."""
    topic = new_topic(kafka)
    kafka.produce(topic, [order(1), order(2)])

    async def scene() -> None:
        running = asyncio.ensure_future(
            StreamProcess(
                new_job(topic, until_empty=False, flush_interval="1h"), lambda _: None
            ).watch()
        )
        await until(lambda: bool(streams_of(topic)))
        await asyncio.sleep(5)
        assert ids(table) == []
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    asyncio.run(scene())
    assert (ids(table), streams_of(topic)) == ([1, 2], [])


def test_one_that_is_stopped_before_it_listens_has_not_failed(kafka: Kafka, table: Table) -> None:
    topic = new_topic(kafka)
    outcome = asyncio.run(
        StreamProcess(new_job(topic, until_empty=False), lambda _: None, run_for_s=0).watch()
    )
    assert (outcome.failure, outcome.totals) == (None, {})


@pytest.mark.parametrize(
    "how", [signal.SIGKILL, pytest.param(signal.SIGSTOP, marks=pytest.mark.slow)]
)
def test_a_watcher_that_dies_or_hangs_leaves_nothing_behind(
    how: signal.Signals, kafka: Kafka, table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = new_topic(kafka)
    kafka.produce(topic, [order(1), order(2)])
    program = (
        WATCHER
        if how == signal.SIGKILL
        else f"import airflow_provider_opal.streaming.job as job\njob.WATCHED_S = 7\n{WATCHER}"
    )
    watcher = subprocess.Popen(
        [sys.executable, "-c", program, topic], cwd=Path(__file__).parents[3], env=dict(os.environ)
    )
    try:
        wait_until(lambda: bool(streams_of(topic)))
        time.sleep(5)
        assert ids(table) == []
        watcher.send_signal(how)
        wait_until(lambda: ids(table) == [1, 2])
        wait_until(
            lambda: (
                not [
                    process
                    for process in streams_of(topic)
                    if process.status() != psutil.STATUS_ZOMBIE
                ]
            )
        )
    finally:
        watcher.kill()
        watcher.wait()
