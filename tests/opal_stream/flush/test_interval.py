"""An interval of time with a real broker: a repeat reads the same range, and commits nothing."""

import time
from pathlib import Path
from typing import Any

import pytest

from opal_lake.errors import CommitUnknownError, InvalidInputError, StorageError
from opal_lake.storage.forwarding import ForwardingStore
from opal_lake.storage.open import open_storage
from opal_lake.table import Table, table_on
from opal_stream.errors import BadMessageError, StoppedError
from opal_stream.flush.buffer import FlushLimits
from opal_stream.flush.interval import IntervalRun, IntervalTotals
from opal_stream.flush.options import StreamOptions
from opal_stream.kafka.connection import Connection
from opal_stream.kafka.ranges import Interval
from opal_stream.operations.reading import FormatOptions
from tests.fixtures_kafka import Kafka
from tests.opal_stream.orders import ids, new_table, new_topic, order
from tests.opal_stream.shaky import Shaky

FOREVER = {"retention_ms": str(10**15)}  # the messages are of 1970
DAY = Interval(start_ms=1000, end_ms=2000)


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return new_table(tmp_path)


def new_run(
    table: Table,
    kafka: Kafka,
    topic: str,
    interval: Interval = DAY,
    key: str | None = None,
    **options: Any,
) -> IntervalRun:
    connection = Connection(bootstrap_servers=kafka.servers)
    return IntervalRun(
        table, connection, StreamOptions(topics=[topic], **options), interval, partition_key=key
    )


def read(*given: Any, **options: Any) -> IntervalTotals:
    return new_run(*given, **options).run()


def test_intervals_may_be_read_in_any_order_and_again(kafka: Kafka, table: Table) -> None:
    topic = new_topic(kafka, 2, **FOREVER)
    moments = [900, 1000, 1500, 1999, 2000, 2500]
    for partition in (0, 1):
        kafka.produce(
            topic,
            [order(10 * partition + n) for n in range(6)],
            partition=partition,
            moments_ms=moments,
        )
    later = Interval(start_ms=2000, end_ms=3000)
    totals = read(table, kafka, topic, later, "b")
    assert (totals.records, totals.flushes, totals.open, ids(table)) == (
        4,
        1,
        [f"{topic}/0", f"{topic}/1"],
        [4, 5, 14, 15],
    )
    totals = read(table, kafka, topic, DAY, "a")
    assert (totals.records, totals.ranges, totals.open) == (
        6,
        {f"{topic}/0": (1, 4), f"{topic}/1": (1, 4)},
        [],
    )
    version = table.snapshot_at().version
    again = read(table, kafka, topic, DAY, "a")
    assert (again.records, again.flushes, again.ranges, table.snapshot_at().version) == (
        0,
        0,
        totals.ranges,
        version,
    )
    assert again.version == version
    assert sorted(table.read(columns=["id"], partition_key="a")["id"].to_pylist()) == [
        1,
        2,
        3,
        11,
        12,
        13,
    ]
    assert table.snapshot_at().positions == {}
    kafka.produce(topic, [order(99)], moments_ms=[2900])  # a late one: the range was open
    assert read(table, kafka, topic, later, "b").records == 5
    assert 99 in ids(table)


def test_commits_are_cut_by_numbers_and_sizes_so_that_a_run_that_died_goes_on_with_the_same(
    kafka: Kafka, table: Table
) -> None:
    topic = new_topic(kafka, 3, **FOREVER)
    for partition in range(3):
        kafka.produce(
            topic,
            [order(100 * partition + n) for n in range(50)],
            partition=partition,
            moments_ms=[1000 + n for n in range(50)],
        )
    store = Shaky(open_storage(table.uri))
    store.failures = ["before"] * 100
    limits = FlushLimits(rows=40)
    with pytest.raises((StorageError, CommitUnknownError), match="the store is away"):
        read(table_on(store), kafka, topic, limits=limits, give_up_s=0.5)
    store.failures = ["before"] * 2 + ["after"]
    died = new_run(table_on(store), kafka, topic, limits=limits)
    died._source.fetch, fetch = (
        (lambda timeout_s: _stop_after(died, fetch, timeout_s)),
        died._source.fetch,
    )
    with pytest.raises(StoppedError):
        died.run()
    done = died.totals.flushes
    assert 1 <= done <= 3
    totals = read(table, kafka, topic, limits=limits)
    assert (totals.flushes, table.snapshot_at().root.rows) == (4 - done, 150)
    assert len(ids(table)) == 150


@pytest.mark.slow
def test_a_long_commit_does_not_count_as_silence_of_kafka(kafka: Kafka, table: Table) -> None:
    class Slow(ForwardingStore):
        inner = table.storage

        def put_if_absent(self, path: str, data: bytes | memoryview) -> bool:
            time.sleep(3.5 if "/log/" in path else 0)
            return self.inner.put_if_absent(path, data)

    topic = new_topic(kafka, 1, **FOREVER)
    kafka.produce(topic, [order(n) for n in range(2)], moments_ms=[1000, 1001])
    one_by_one = FlushLimits(rows=1, bytes=4096)
    assert (
        read(table_on(Slow()), kafka, topic, limits=one_by_one, broker_timeout_s=3).flushes,
        ids(table),
    ) == (2, [0, 1])


def _stop_after(run: IntervalRun, fetch: Any, timeout_s: float) -> Any:
    """Stop the run after its first commit."""
    if run.totals.flushes:
        run.stop()
    return fetch(timeout_s)


def test_new_columns_cut_no_commit_and_a_bad_message_stops_before_it(
    kafka: Kafka, table: Table
) -> None:
    topic = new_topic(kafka, 1, **FOREVER)
    kafka.produce(topic, [order(1), order(2, discount=0.5), b"nope"], moments_ms=[1000, 1100, 1200])
    formats = FormatOptions(on_new_columns="add")
    with pytest.raises(BadMessageError, match=f"{topic}/0@2"):
        read(table, kafka, topic, formats=formats)
    assert ids(table) == []
    assert read(table, kafka, topic, formats=formats, on_bad_message="quarantine").flushes == 1
    rows = {
        row["id"]: row["discount"] for row in table.read(columns=["id", "discount"]).to_pylist()
    }
    assert rows == {1: None, 2: 0.5}


def test_marks_of_transactions_at_the_end_of_a_range_are_passed(kafka: Kafka, table: Table) -> None:
    topic = new_topic(kafka, 1, **FOREVER)
    for number, commit in ((1, True), (2, False)):
        kafka.produce_in_transaction(topic, order(number), commit=commit, moment_ms=1000 + number)
    assert read(table, kafka, topic).records == 1
    assert ids(table) == [1]


@pytest.mark.parametrize(
    "interval, message",
    [
        ((2000, 1000), "ends before it begins"),
        ((1000, 9_999_999_999_999), "the interval is not over"),
    ],
)
def test_an_interval_that_is_empty_or_not_over_is_refused(
    interval: tuple[int, int], message: str, kafka: Kafka, table: Table
) -> None:
    with pytest.raises(InvalidInputError, match=message):
        new_run(table, kafka, "any", Interval(start_ms=interval[0], end_ms=interval[1]))
