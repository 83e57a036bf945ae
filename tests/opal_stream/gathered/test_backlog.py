"""The limit of files that wait for the committer, and what a process does at it."""

import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from opal_lake import layout
from opal_lake.cli import main
from opal_lake.errors import StorageError
from opal_lake.exit_codes import OK
from opal_lake.storage.forwarding import ForwardingStore
from opal_lake.storage.memory import MemoryStorage
from opal_lake.storage.protocol import StoredObject
from opal_lake.table import Table
from opal_stream.flush.buffer import FlushLimits
from opal_stream.flush.options import StreamOptions
from opal_stream.flush.stream import Stream, Tuning
from opal_stream.gathered import backlog as backlogs
from opal_stream.gathered.backlog import MIB, MIN_FILE_BYTES, Backlog, Gate
from opal_stream.kafka.applications import Application
from opal_stream.kafka.connection import Connection
from opal_stream.kafka.topics import Partition
from opal_stream.tracking.events import Tracker
from opal_stream.tracking.metrics import Metrics
from opal_stream.tracking.status import read_status
from tests.fixtures_cli import metadata, opal_commands
from tests.fixtures_kafka import Kafka
from tests.opal_stream.orders import gather, gathered, ids, new_table, new_topic, order

__all__ = ["metadata", "opal_commands"]


def put(
    storage: MemoryStorage, low: int, size: int, *, stream: str = "main", topic: str = "orders"
) -> str:
    name = str(
        Application(stream=stream, partition=Partition(topic=topic, number=0), topic_id="id")
    )
    path = layout.gathered_path(name, low)
    storage.put_if_absent(path, b"x" * size)
    return path


def test_small_files_count_more_than_they_are_and_those_of_other_streams_not() -> None:
    storage = MemoryStorage()
    assert Backlog.read(storage, "main") == Backlog()
    put(storage, 0, 10)
    put(storage, 1, 3 * MIN_FILE_BYTES)
    put(storage, 2, 20, topic="t" * 240)  # its folder has a shorter name
    put(storage, 0, 10, stream="other")
    assert Backlog.read(storage, "main") == Backlog(files=3, weight=5 * MIN_FILE_BYTES)
    assert [Backlog(weight=5).is_too_much(most) for most in (0, 5, 6)] == [False, True, False]


class Away(ForwardingStore):
    """Lists nothing while it is away."""

    def __init__(self, inner: MemoryStorage) -> None:
        self.inner = inner
        self.is_away = False
        self.lists = 0

    def list(self, prefix: str, start_after: str = "") -> "list[StoredObject]":
        if self.is_away:
            raise StorageError("away")
        self.lists += 1
        return [*self.inner.list(prefix, start_after)]


def test_a_gate_lists_seldom_and_when_it_may_have_to_shut(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = Away(inner := MemoryStorage())
    gate = Gate(store, "main", 3 * MIN_FILE_BYTES, "lake/orders")
    assert [gate.is_shut(at_s) for at_s in (0, 0.1, 1.9)] == [False] * 3
    assert store.lists == 1
    paths = [put(inner, low, 1) for low in range(3)]
    for _ in range(3):
        gate.count_file(1)
    with caplog.at_level(logging.WARNING):
        assert gate.is_shut(1.95)  # by what it wrote itself
        assert [gate.is_shut(at_s) for at_s in (2, 3, 10, 62)] == [True] * 4
        store.is_away = True
        assert gate.is_shut(70)
        store.is_away = False
        inner.delete(paths[:1])
        assert not gate.is_shut(80)
    said = [record.getMessage().partition(":")[0] for record in caplog.records]
    assert said == ["reading has stopped", "reading has stopped", "reading continues after 78 s"]
    free = Gate(store, "main", 0, "lake/orders")
    lists = store.lists
    assert (free.is_shut(0), store.lists) == (False, lists)  # no limit, no look


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return new_table(tmp_path)


def wait_until(holds: Callable[[], bool]) -> None:
    until = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < until
        time.sleep(0.02)


@pytest.mark.usefixtures("opal_commands")
def test_a_process_stops_reading_while_the_backlog_is_too_large(
    kafka: Kafka,
    table: Table,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(backlogs, "MIN_FILE_BYTES", MIB // 4)
    topic, metrics, connection = (
        new_topic(kafka),
        Metrics(),
        Connection(bootstrap_servers=kafka.servers),
    )
    options = StreamOptions(
        topics=[topic], limits=FlushLimits(interval_s=0.05), commit="gathered", gathered_bytes=MIB
    )
    tracker = Tracker(metrics=metrics)
    stream = Stream(table, connection, options, tracker, tuning=Tuning(look_s=0.2))
    running = threading.Thread(target=stream.run)
    words = ["stream", "status", table.uri, "--gathered-mb"]
    with caplog.at_level(logging.WARNING):
        running.start()
        try:
            for number in range(4):
                kafka.produce(topic, [order(number)])
                wait_until(lambda number=number: len(gathered(table)) == number + 1)
            kafka.produce(topic, [order(4)])
            wait_until(lambda: "opal_stream_held_back_seconds 0\n" not in metrics.text())
            wait_until(
                lambda: f'opal_stream_lag{{topic="{topic}",partition="0"}} 1\n' in metrics.text()
            )
            time.sleep(1)
            assert len(gathered(table)) == 4
            assert "opal_stream_gathered_files 4\n" in metrics.text()
            assert (
                "4 gathered files, which count as 1 MiB, wait for a commit, and the limit is 1 MiB"
                in caplog.text
            )
            assert (
                f"Check that `opal stream commit {table.uri}` runs, and read its log" in caplog.text
            )
            [row] = read_status(table, connection, gathered_bytes=MIB)
            assert row.note.startswith("held back: 4 gathered files")
            assert main([*words, "1", "--json"]) == OK
            assert "held back: 4 gathered files" in capsys.readouterr().out
            assert main([*words, "2", "--json"]) == OK
            assert "held back" not in capsys.readouterr().out
            assert gather(table).records == 4
            wait_until(lambda: len(gathered(table)) == 1)
            wait_until(lambda: "opal_stream_held_back_seconds 0\n" in metrics.text())
            for number in range(5, 8):
                kafka.produce(topic, [order(number)])
                wait_until(lambda number=number: len(gathered(table)) == number - 3)
            kafka.produce(topic, [order(8)])
            time.sleep(0.5)
        finally:
            stream.stop()  # also one that waits
            running.join(10)
    assert not running.is_alive()
    gather(table)
    assert {*range(8)} <= {*ids(table)} <= {*range(9)}
