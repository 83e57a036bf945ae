"""A stream against a real broker: each message once, whatever stops, dies or changes in between."""

import itertools
import json
import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from confluent_kafka import TopicPartition

from opal_lake.errors import CommitUnknownError, StorageError
from opal_lake.storage.forwarding import ForwardingStore
from opal_lake.storage.open import open_storage
from opal_lake.table import Table, table_on
from opal_stream.backoff import Backoff
from opal_stream.errors import (
    BadMessageError,
    GapError,
    KafkaError,
    TakenOverError,
    TopicChangedError,
    UnknownTopicError,
)
from opal_stream.flush.buffer import FlushLimits
from opal_stream.flush.intake import _refuse
from opal_stream.flush.options import StreamOptions
from opal_stream.flush.stream import Stream
from opal_stream.kafka.connection import Connection
from opal_stream.operations.reading import FormatOptions, Policies
from opal_stream.tracking.alarms import AlarmLimits, find_alarms
from opal_stream.tracking.event_files import EventReader, FolderSink
from opal_stream.tracking.events import Tracker
from opal_stream.tracking.status import read_status
from tests.fixtures_kafka import Kafka, Registry, kafka_broker
from tests.opal_stream.flush.build import started, wait_for
from tests.opal_stream.orders import (
    batch,
    ends,
    ids,
    new_stream,
    new_table,
    new_topic,
    order,
    read,
)
from tests.opal_stream.shaky import Shaky

SLOW_S = 0.8


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return new_table(tmp_path)


def test_errors_that_stop_a_stream_are_sentences(
    kafka: Kafka, table: Table, registry: Registry
) -> None:
    topic = new_topic(kafka)
    kafka.produce(topic, [order(1)])
    with pytest.raises(
        BadMessageError,
        match=r"it was not written with a schema registry\. Correct the source, or put such",
    ):
        read(table, kafka, topic, formats=FormatOptions(format="avro", registry=registry.url))


@pytest.mark.parametrize("end", ["", ".", "?", " !"])
def test_a_reason_that_is_a_sentence_gets_no_second_full_stop(end: str) -> None:
    with pytest.raises(BadMessageError, match=r"^orders/3@100: no row\. Correct the source"):
        _refuse(batch([order(1)]), 0, f"no row{end}")


def test_a_run_goes_on_where_the_table_stands_and_not_where_the_group_does(
    kafka: Kafka, table: Table
) -> None:
    topic = new_topic(kafka, 2)
    for partition in (0, 1):
        kafka.produce(
            topic,
            [order(n) for n in range(10 * partition, 10 * partition + 5)],
            partition=partition,
        )
    totals = read(table, kafka, topic)
    assert (totals.records, ends(table), ids(table)) == (
        10,
        [5, 5],
        [0, 1, 2, 3, 4, 10, 11, 12, 13, 14],
    )
    names = sorted(table.snapshot_at().positions)
    assert names == [f"kafka:main/{topic}@{kafka.topic_id(topic)}/{number}" for number in (0, 1)]
    kafka.produce(topic, [order(1, 1, op="D"), order(2, 1, name="new")], partition=0)
    assert (read(table, kafka, topic).records, read(table, kafka, topic).flushes, ends(table)) == (
        2,
        0,
        [7, 5],
    )
    assert ids(table) == [0, 2, 3, 4, 10, 11, 12, 13, 14]
    assert table.get([{"id": 2}])["name"].to_pylist() == ["new"]
    assert (
        read(table, kafka, topic, name="again").records == 12
    )  # another name reads it again, to the same rows
    assert ids(table) == [0, 2, 3, 4, 10, 11, 12, 13, 14]


def test_rows_and_bytes_make_a_flush_due_before_its_time(kafka: Kafka, table: Table) -> None:
    topic = new_topic(kafka)
    kafka.produce(topic, [order(n) for n in range(25_000)])
    totals = read(table, kafka, topic, limits=FlushLimits(interval_s=60, rows=5_000))
    assert totals.flushes >= 3
    kafka.produce(topic, [order(n, name="x" * 1000) for n in range(3_000)])
    totals = read(table, kafka, topic, limits=FlushLimits(interval_s=60, bytes=500_000))
    assert (totals.flushes >= 2, ends(table), len(ids(table))) == (True, [28_000], 25_000)


def test_a_slow_commit_does_not_put_off_the_next_one(kafka: Kafka, table: Table) -> None:
    class Slow(ForwardingStore):
        inner = table.storage

        def put_if_absent(self, path: str, data: bytes | memoryview) -> bool:
            time.sleep(SLOW_S if "/log/" in path else 0)
            return self.inner.put_if_absent(path, data)

    topic = new_topic(kafka)
    stream = new_stream(
        table_on(Slow()), kafka, topic, limits=FlushLimits(interval_s=1.0), until_empty=False
    )
    thread, failures = started(stream)
    while stream.totals.flushes < 6 and not failures:
        kafka.produce(topic, [order(1, round(1000 * time.time()))])
    stream.stop()
    thread.join(60)
    moments = [commit.timestamp_us for commit in table.commits(5)]
    gaps = sorted(late - early for late, early in itertools.pairwise(moments))
    assert (failures, gaps[len(gaps) // 2] < (1.0 + SLOW_S / 2) * 1e6) == (
        [],
        True,
    )  # a wait of the whole interval adds all of it


def test_a_bad_message_stops_the_stream_behind_what_came_before_it(
    kafka: Kafka, table: Table
) -> None:
    topic = new_topic(kafka)
    kafka.produce(topic, [order(1), order(2), b"nope", order(3)])
    for _ in range(2):
        with pytest.raises(
            BadMessageError, match=rf"{topic}/0@2: the message is not a JSON object"
        ):
            read(table, kafka, topic)
        assert (ids(table), ends(table)) == ([1, 2], [2])
    assert read(table, kafka, topic, on_bad_message="quarantine").bad == 1
    assert (ids(table), ends(table)) == ([1, 2, 3], [4])
    [rejected] = [
        row
        for path in Path(table.uri).rglob("_opal/rejected/*")
        for row in pq.read_table(path).to_pylist()
    ]
    assert rejected == {
        "reason": "the message is not a JSON object",
        "source": f"{topic}/0@2",
        "row": "nope",
    }


def test_messages_of_transactions_that_were_aborted_are_no_rows_and_the_position_passes_their_marks(
    kafka: Kafka, table: Table
) -> None:
    topic = new_topic(kafka)
    for number, commit in ((1, True), (2, False), (3, True)):
        kafka.produce_in_transaction(topic, order(number), commit=commit)
    read(table, kafka, topic)
    assert (ids(table), ends(table)) == ([1, 3], [6])


def test_a_message_of_ten_megabytes_is_a_row(kafka: Kafka, table: Table) -> None:
    topic = new_topic(kafka, max_message_bytes=str(20 << 20))
    kafka.produce(topic, [order(1), order(2, name="x" * (10 << 20)), order(3)])
    assert read(table, kafka, topic, limits=FlushLimits(interval_s=0.1, bytes=1 << 20)).records == 3
    assert [len(name) for name in table.read()["name"].to_pylist()] == [2, 10 << 20, 2]


def test_offsets_that_expired_are_a_gap_that_fails_or_is_passed_by_policy(
    kafka: Kafka, table: Table
) -> None:
    topic = new_topic(kafka)
    kafka.produce(topic, [order(n) for n in range(4)])
    read(table, kafka, topic)
    kafka.produce(topic, [order(n) for n in range(4, 10)])
    admin = kafka.admin
    [deleted] = admin.delete_records([TopicPartition(topic, 0, 7)]).values()
    deleted.result(30)
    with pytest.raises(
        GapError,
        match=(
            rf"{topic}/0: the table stands at offset 4, but Kafka has deleted the messages "
            rf"before offset 7: 3 offsets"
        ),
    ):
        read(table, kafka, topic)
    assert (ids(table), ends(table)) == ([0, 1, 2, 3], [4])
    totals = read(table, kafka, topic, policies=Policies(on_gap="continue"))
    assert (totals.missing, ids(table), ends(table)) == (3, [0, 1, 2, 3, 7, 8, 9], [10])


def test_a_first_start_says_where_it_begins_if_kafka_has_deleted_what_came_before(
    kafka: Kafka, table: Table, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    topic, folder = new_topic(kafka, 3), tmp_path / "events"
    for partition in range(3):
        kafka.produce(topic, [order(10 * partition + n) for n in range(4)], partition=partition)
    admin = kafka.admin
    deleted = admin.delete_records(
        [TopicPartition(topic, partition, offset) for partition, offset in ((0, 1), (2, 4))]
    )
    for answer in deleted.values():
        answer.result(30)
    options = StreamOptions(topics=[topic], limits=FlushLimits(interval_s=0.1), until_empty=True)
    connection, tracker = (
        Connection(bootstrap_servers=kafka.servers),
        Tracker([FolderSink(str(folder))]),
    )
    with caplog.at_level(logging.WARNING):
        totals = Stream(table, connection, options, tracker).run()
    assert (totals.records, totals.missing, ids(table)) == (7, 0, [1, 2, 3, 10, 11, 12, 13])
    [said] = caplog.messages
    assert said.startswith(f"reading begins at {topic}/0@1: Kafka has deleted the earlier")
    events = [*EventReader(str(folder)).read()]
    begun = [
        (event["partition"], event["low"], event["high"], event["topic_id"])
        for event in events
        if event["event"] == "begin"
    ]
    assert begun == [(0, 0, 1, kafka.topic_id(topic))]
    assert find_alarms(read_status(table, connection), AlarmLimits(lag=0), events) == []
    caplog.clear()
    read(table, kafka, topic)
    assert caplog.messages == [], "of partition 2 nothing is left to read"
    running = new_stream(table, kafka, topic, partitions=[2], until_empty=False)
    running.stop()
    running.run()
    kafka.produce(topic, [order(40)], partition=2)
    read(table, kafka, topic, partitions=[2])
    assert [message.partition(":")[0] for message in caplog.messages] == 2 * [
        f"reading begins at {topic}/2@4"
    ]
    caplog.clear()
    read(table, kafka, topic)
    assert caplog.messages == []  # where something was committed, that is where it goes on


def test_a_topic_created_again_stops_the_stream_between_runs_and_during_one(
    kafka: Kafka, table: Table
) -> None:
    topic = new_topic(kafka)
    kafka.produce(topic, [order(n) for n in range(3)])
    running, failures = started(new_stream(table, kafka, topic, until_empty=False))
    wait_for(ends, table, [3])
    kafka.delete_topic(topic)
    kafka.create_topic(topic)
    kafka.produce(topic, [order(n) for n in range(10, 18)])
    running.join(60)
    assert [type(failure) for failure in failures] in ([TopicChangedError], [UnknownTopicError]), (
        failures
    )
    with pytest.raises(
        TopicChangedError,
        match=r"stands at offset 3 of the topic with id .* it was deleted and created again",
    ):
        read(table, kafka, topic)
    assert (ids(table), ends(table)) == ([0, 1, 2], [3])
    read(table, kafka, topic, policies=Policies(on_new_topic="continue"))
    assert (ids(table), sorted(ends(table))) == ([0, 1, 2, *range(10, 18)], [3, 8])
    assert read(table, kafka, topic).records == 0  # and from now on it is the topic


def test_new_partitions_are_read(kafka: Kafka, table: Table) -> None:
    topic = new_topic(kafka)
    stream = new_stream(table, kafka, topic, until_empty=False)
    running, failures = started(stream)
    kafka.add_partitions(topic, 3)
    kafka.produce(topic, [order(1)], partition=2)
    wait_for(ids, table, [1])  # also where nothing else comes
    stream.stop()
    running.join(30)
    assert not failures


@pytest.mark.slow
def test_a_stream_outlives_a_restart_of_the_broker(kafka: Kafka, table: Table) -> None:
    topic = new_topic(kafka)
    kafka.produce(topic, [order(1)])
    stream = new_stream(table, kafka, topic, until_empty=False)
    running, failures = started(stream)
    wait_for(ids, table, [1])
    kafka.stop(kill=True)
    time.sleep(1)
    kafka.start()
    kafka.produce(topic, [order(2)])
    wait_for(ids, table, [1, 2])
    stream.stop()
    running.join(60)
    assert (failures, ends(table)) == ([], [2])


def test_one_of_two_processes_of_a_partition_stops_and_no_row_is_doubled(
    kafka: Kafka, table: Table
) -> None:
    topic = new_topic(kafka)
    kafka.produce(topic, [order(0)])
    streams = [new_stream(Table.open(table.uri), kafka, topic, until_empty=False) for _ in range(2)]
    runs = [started(stream) for stream in streams]
    until = time.monotonic() + 30
    number = 1
    while not any(failures for _, failures in runs) and time.monotonic() < until:
        kafka.produce(topic, [order(number)])
        number += 1
    for stream, (thread, _) in zip(streams, runs, strict=True):
        stream.stop()
        thread.join(30)
    failures = [failure for _, actual in runs for failure in actual]
    assert [type(failure) for failure in failures] == [TakenOverError]
    assert "another process reads it for this table" in str(failures[0])
    read(table, kafka, topic)
    assert (ids(table), ends(table), table.snapshot_at().root.rows) == (
        list(range(number)),
        [number],
        number,
    )


def test_processes_may_share_a_topic_by_partitions(kafka: Kafka, table: Table) -> None:
    topic = new_topic(kafka, 3)
    for partition in range(3):
        kafka.produce(topic, [order(partition)], partition=partition)
    assert read(table, kafka, topic, partitions=(0, 2)).records == 2
    assert (read(table, kafka, topic, partitions=(1,)).records, ids(table)) == (1, [0, 1, 2])
    with pytest.raises(UnknownTopicError, match="unknown partition 7"):
        read(table, kafka, topic, partitions=(1, 7))


def test_a_store_that_fails_is_waited_for_and_what_has_landed_is_not_committed_again(
    kafka: Kafka, table: Table
) -> None:
    topic = new_topic(kafka)
    kafka.produce(topic, [order(n) for n in range(3)])
    store = Shaky(open_storage(table.uri))
    store.failures = ["before"] * 5 + ["after"]
    totals = read(table_on(store), kafka, topic)
    assert (totals.records, ids(table), ends(table), table.snapshot_at().root.rows) == (
        3,
        [0, 1, 2],
        [3],
        3,
    )
    kafka.produce(topic, [order(7)])
    store.failures = ["before"] * 100
    with pytest.raises((StorageError, CommitUnknownError)):
        read(table_on(store), kafka, topic, give_up_s=0.5)
    assert ends(table) == [3]


def test_messages_of_older_schemas_are_flushed_before_a_new_schema(
    kafka: Kafka, table: Table, registry: Registry
) -> None:
    topic = new_topic(kafka)
    for number in (1, 2):
        registry.register(number, {"type": "object"})
    head = {number: b"\0\0\0\0" + bytes([number]) for number in (1, 2)}
    kafka.produce(
        topic,
        [
            head[number] + json.dumps(order(key)).encode()
            for key, number in enumerate((1, 1, 2, 1, 2))
        ],
    )
    formats = FormatOptions(format="json-registry", registry=registry.url)
    totals = read(table, kafka, topic, formats=formats, limits=FlushLimits(interval_s=60))
    assert (totals.flushes, ids(table), registry.asked) == (2, [0, 1, 2, 3, 4], [1, 2])
    first = next(commit for commit in table.commits() if commit.version == 1)
    assert [advance.end for advance in first.positions.values()] == [2]


def test_a_schema_with_references_is_read_and_its_columns_are_added(
    kafka: Kafka, table: Table, registry: Registry
) -> None:
    topic = new_topic(kafka)
    kind = {"type": "enum", "name": "Kind", "symbols": ["web", "shop"]}
    fields = [("id", "long"), ("op", "string"), ("at", "long"), ("kind", "Kind")]
    members = [{"name": name, "type": written} for name, written in fields]
    registry.register(1, kind, "kind")
    schema = {"type": "record", "name": "Order", "fields": members}
    registry.register(2, schema, references=[("kind", 1)])
    values = [b"\0\0\0\0\2" + bytes([2 * key, 2]) + b"I\0" + bytes([2]) for key in (1, 2)]
    kafka.produce(topic, values)
    formats = FormatOptions(format="avro", registry=registry.url, on_new_columns="add")
    read(table, kafka, topic, formats=formats)
    rows = sorted(table.read().select(["id", "kind"]).to_pylist(), key=lambda row: row["id"])
    assert rows == [{"id": 1, "kind": "shop"}, {"id": 2, "kind": "shop"}]


def test_a_missing_topic_is_named_in_the_error(kafka: Kafka, table: Table) -> None:
    with pytest.raises(UnknownTopicError, match="Kafka has no topic 'nothing'"):
        read(table, kafka, "nothing")


def test_start_latest_reads_only_new_messages(kafka: Kafka, table: Table) -> None:
    topic = new_topic(kafka)
    kafka.produce(topic, [order(n) for n in range(3)])
    stream = new_stream(table, kafka, topic, start="latest", until_empty=False)
    running, failures = started(stream)
    number = 3
    until = time.monotonic() + 30
    while not ids(table) and time.monotonic() < until:
        kafka.produce(topic, [order(number)])
        number += 1
        time.sleep(0.1)
    stream.stop()
    running.join(30)
    assert not failures
    assert ids(table)
    assert min(ids(table)) >= 3


@contextmanager
def away(broker: Kafka) -> Iterator[None]:
    broker.stop(kill=True)
    try:
        yield
    finally:
        broker.start()


@pytest.mark.slow
def test_rows_in_hand_wait_for_a_broker_that_is_away_for_longer_than_for_a_store(
    table: Table, caplog: pytest.LogCaptureFixture
) -> None:
    with kafka_broker() as broker:
        topic = new_topic(broker)
        broker.produce(topic, [order(1)])
        options = {"until_empty": False, "limits": FlushLimits(interval_s=3), "give_up_s": 1.0}
        stream = new_stream(table, broker, topic, timeout_s=1.0, **options)
        thread, failures = started(stream)
        wait_for(ids, table, [1])
        broker.produce(topic, [order(2)])
        time.sleep(0.5)
        with away(broker):
            time.sleep(10)
            assert (thread.is_alive(), failures, ids(table)) == (True, [], [1])
            assert any("does not answer" in line for line in caplog.messages)
        wait_for(ids, table, [1, 2])
        stream.stop()
        thread.join(30)
        assert failures == []


@pytest.mark.slow
@pytest.mark.parametrize("is_in_hand", [True, False])
def test_the_wait_for_a_broker_has_an_end_with_rows_in_hand_and_without(
    is_in_hand: bool, table: Table
) -> None:
    with kafka_broker() as broker:
        topic = new_topic(broker)
        broker.produce(topic, [order(1)])
        options = {"until_empty": False, "limits": FlushLimits(interval_s=2)}
        thread, failures = started(
            new_stream(table, broker, topic, timeout_s=1.0, broker_timeout_s=3.0, **options)
        )
        wait_for(ids, table, [1])
        if is_in_hand:
            broker.produce(topic, [order(2)])
            time.sleep(0.5)
        broker.stop(kill=True)
        thread.join(40)
        assert [type(error).__name__ for error in failures] == ["KafkaError"]


def test_a_process_that_is_to_end_waits_for_kafka_no_longer_than_for_a_store() -> None:
    stopping: list[bool] = []
    backoff = Backoff(
        what="a flush", give_up_s=0.3, broker_give_up_s=60.0, is_ending=lambda: bool(stopping)
    )
    error = KafkaError("away")
    for _ in range(2):
        backoff.wait(error, lambda: None)
    stopping.append(True)
    with pytest.raises(KafkaError, match="away"):
        backoff.wait(error, lambda: None)


def fail_in_turn(backoff: Backoff, times: int) -> None:
    for number in range(times):
        backoff.pause_s = 0.05
        backoff.wait(StorageError("the store") if number % 2 else KafkaError("away"), lambda: None)


def test_kafka_and_the_store_that_fail_in_turn_do_not_end_each_other_s_time() -> None:
    fail_in_turn(Backoff(what="a flush", give_up_s=0.5, broker_give_up_s=60.0), 8)
    with pytest.raises(StorageError, match="the store"):
        fail_in_turn(Backoff(what="a flush", give_up_s=0.3, broker_give_up_s=60.0), 20)


def test_the_time_without_kafka_is_not_taken_from_that_for_the_store() -> None:
    backoff = Backoff(what="a flush", give_up_s=0.5, broker_give_up_s=60.0)
    for _ in range(2):
        backoff.wait(KafkaError("away"), lambda: None)
    backoff.pause_s = 0.3
    backoff.wait(StorageError("the store"), lambda: None)
    with pytest.raises(StorageError, match="the store"):
        backoff.wait(StorageError("the store"), lambda: None)
