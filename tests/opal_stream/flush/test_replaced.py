"""A table that is dropped and created again: its writers report that, and write nothing more."""

import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import pytest

from opal_lake.errors import CommitUnknownError, NotFoundError, OpalError, StorageError
from opal_lake.storage.open import open_storage
from opal_lake.table import Table, table_on
from opal_stream.errors import TableReplacedError
from opal_stream.flush.committer import Committer, CommitterOptions
from opal_stream.flush.options import StreamOptions
from opal_stream.kafka.connection import Connection
from opal_stream.supervise.observation import Observer
from tests.fixtures_kafka import Kafka
from tests.kit.check import check_table
from tests.kit.failing_store import FailingStore
from tests.opal_stream.orders import (
    gather,
    gathered,
    ids,
    new_stream,
    new_table,
    new_topic,
    order,
    read,
)
from tests.opal_stream.shaky import Shaky


class Running(Protocol):
    def run(self) -> object: ...
    def stop(self) -> None: ...


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return new_table(tmp_path)


def started(running: Running) -> tuple[threading.Thread, list[OpalError]]:
    failures: list[OpalError] = []

    def run() -> None:
        try:
            running.run()
        except OpalError as error:
            failures.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread, failures


def wait_for(holds: Callable[[], bool]) -> None:
    until = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < until
        time.sleep(0.05)


def created_again(table: Table) -> tuple[Table, str]:
    """Return the new table, and a pattern of the error about it."""
    was = table.log.head().root.table_id
    shutil.rmtree(table.uri)
    new = new_table(Path(table.uri).parent)
    now = new.log.head().root.table_id
    return (
        new,
        (f"{table.uri} is another table now, with id {now}. .* id {was}, which was dropped"),
    )


def test_a_stream_of_a_replaced_table_stops_and_a_restart_reads_into_the_new_one(
    kafka: Kafka, table: Table
) -> None:
    topic = new_topic(kafka)
    kafka.produce(topic, [order(1)])
    running = new_stream(Table.open(table.uri), kafka, topic, until_empty=False)
    thread, failures = started(running)
    wait_for(lambda: ids(table) == [1])
    new, said = created_again(table)
    kafka.produce(topic, [order(2)])
    thread.join(60)
    assert [type(failure) for failure in failures] == [TableReplacedError]
    with pytest.raises(TableReplacedError, match=f"{said}.*start the stream again"):
        raise failures[0]
    assert (new.log.head().version, read(new, kafka, topic).records, ids(new)) == (0, 2, [1, 2])


def test_a_gathering_process_of_a_replaced_table_stops(kafka: Kafka, table: Table) -> None:
    topic = new_topic(kafka)
    kafka.produce(topic, [order(1)])
    running = new_stream(
        Table.open(table.uri), kafka, topic, until_empty=False, commit="gathered", give_up_s=5
    )
    thread, failures = started(running)
    wait_for(lambda: len(gathered(table)) == 1)
    new, said = created_again(table)
    kafka.produce(topic, [order(2)])
    thread.join(60)
    assert [type(failure) for failure in failures] == [TableReplacedError]
    with pytest.raises(TableReplacedError, match=said):
        raise failures[0]
    assert gathered(new) == []


class Blind(Shaky):
    """Fails these reads after a put that was done, and said to have failed."""

    blind: frozenset[int] = frozenset()
    reads: int | None = None

    def put_if_absent(self, path: str, data: bytes | memoryview) -> bool:
        try:
            return super().put_if_absent(path, data)
        except CommitUnknownError:
            self.reads = 0
            raise

    def get(self, path: str, start: int = 0, length: int | None = None) -> bytes:
        if self.reads is not None:
            self.reads += 1
            if self.reads in self.blind:
                raise StorageError("the store is away")
        return super().get(path, start, length)


@pytest.mark.parametrize("number", range(2, 11))
def test_a_failed_check_after_a_fence_is_repeated(kafka: Kafka, table: Table, number: int) -> None:
    """Fail each read after a commit that seemed to fail, also that of the id."""
    topic = new_topic(kafka)
    kafka.produce(topic, [order(1)])
    store = Blind(open_storage(table.uri))
    store.failures, store.blind = ["after"], frozenset({1, number})
    totals = read(table_on(store), kafka, topic)
    assert (totals.records, totals.flushes, ids(table), table.snapshot_at().root.rows) == (
        1,
        1,
        [1],
        1,
    )
    assert (store.reads or 0) >= number


@pytest.mark.parametrize("versions", [1, 4])
def test_a_committer_leaves_the_files_of_the_new_one_alone(
    kafka: Kafka, table: Table, versions: int
) -> None:
    topic = new_topic(kafka)
    kafka.produce(topic, [order(n) for n in range(3)])
    read(table, kafka, topic, commit="gathered")
    committer = Committer(Table.open(table.uri), CommitterOptions(interval_s=0.05))
    thread, failures = started(committer)
    wait_for(lambda: ids(table) == [0, 1, 2])
    committer.stop()
    thread.join(60)
    new, said = created_again(table)
    for number in range(versions - 1):  # its log may be longer than that of the old one
        new.set_properties({"fold_files": 10 + number})
    read(new, kafka, topic, commit="gathered")
    with pytest.raises(TableReplacedError, match=said):
        committer._turn()
    assert len(gathered(new)) == 1
    assert (gather(new).records, check_table(new)) == (3, [])
    assert failures == []


def test_an_idle_committer_checks_its_table_only_now_and_then(table: Table) -> None:
    store = FailingStore(open_storage(table.uri))
    committer = Committer(table_on(store), CommitterOptions())
    committer._turn()
    before = len(store.trace)
    committer._turn()
    cost = len(store.trace) - before
    committer._check_s = 0.0
    before += cost
    committer._turn()
    assert len(store.trace) - before == cost + 1
    _, said = created_again(table)
    committer._turn()
    committer._check_s -= 3
    with pytest.raises(TableReplacedError, match=said):
        committer._turn()


def test_a_supervisor_reports_a_replaced_table_and_a_dropped_one(
    kafka: Kafka, table: Table
) -> None:
    topic = new_topic(kafka)
    kafka.produce(topic, [order(1)])
    read(table, kafka, topic)
    observer = Observer(
        Table.open(table.uri),
        Connection(bootstrap_servers=kafka.servers),
        StreamOptions(topics=[topic]),
    )
    try:
        observer.look()
        shutil.rmtree(table.uri)
        with pytest.raises(NotFoundError, match="is not an Opal table"):
            observer.look()
        new_table(Path(table.uri).parent)
        with pytest.raises(TableReplacedError, match="is another table now"):
            observer.look()
    finally:
        observer.close()
