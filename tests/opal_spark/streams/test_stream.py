"""A stream on Spark against a real broker, in turns with a stream without Spark.

Both have the same table and the same positions.
"""

from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import TopicPartition
from pyspark.sql import SparkSession

from opal_lake.storage.open import open_storage
from opal_lake.table import Table
from opal_spark.streams.source import EXCLUDES, package
from opal_spark.streams.stream import SparkStream
from opal_stream.errors import BadMessageError, GapError, NewColumnsError, TakenOverError
from opal_stream.flush.buffer import FlushLimits
from opal_stream.flush.options import Setup, StreamOptions, Totals
from opal_stream.kafka.connection import Connection
from opal_stream.operations.reading import FormatOptions, Policies
from opal_stream.tracking.events import Tracker
from tests.fixtures_kafka import Kafka, Registry
from tests.fixtures_spark import need_spark_parts
from tests.kit.check import check_table
from tests.opal_stream import toast
from tests.opal_stream.formats.build import FIRST, SECOND, avro, record
from tests.opal_stream.orders import ends, ids, new_table, new_topic, order, read

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def reader(spark: SparkSession) -> SparkSession:
    """Return the shared session, with Spark's source of Kafka."""
    need_spark_parts()
    spark.sql(f"ADD JAR 'ivy://{package()}?transitive=true&exclude={EXCLUDES}'").collect()
    return spark


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return new_table(tmp_path)


def stream(
    spark: SparkSession, table: Table, kafka: Kafka, topic: str, **options: Any
) -> SparkStream:
    connection, usual = (
        Connection(bootstrap_servers=kafka.servers),
        {"until_empty": True, "give_up_s": 1},
    )
    given = StreamOptions(topics=[topic], **{**usual, **options})
    return SparkStream(
        spark, Setup(table=table, connection=connection, options=given, tracker=Tracker())
    )


def read_by_spark(
    spark: SparkSession, table: Table, kafka: Kafka, topic: str, **options: Any
) -> Totals:
    return stream(spark, table, kafka, topic, **options).run()


@pytest.mark.slow
def test_streams_with_and_without_spark_take_turns(
    reader: SparkSession, kafka: Kafka, table: Table
) -> None:
    topic = new_topic(kafka, 2)
    kafka.produce(topic, [order(n) for n in range(5)])
    assert read(table, kafka, topic).records == 5
    kafka.produce(topic, [order(n) for n in range(5, 9)], partition=1)
    kafka.produce(topic, [order(1, 1, op="D"), order(2, 1, name="new")])
    totals = read_by_spark(reader, table, kafka, topic, limits=FlushLimits(rows=4))
    assert (totals.records, totals.flushes >= 2, ends(table)) == (6, True, [7, 4])
    assert (
        read_by_spark(reader, table, kafka, topic).flushes,
        read(table, kafka, topic).flushes,
    ) == (0, 0)
    kafka.add_partitions(topic, 3)
    kafka.produce(topic, [order(9)], partition=2)
    assert (read(table, kafka, topic).records, ends(table)) == (1, [7, 4, 1])
    kafka.produce(topic, [order(10)], partition=2)
    assert read_by_spark(reader, table, kafka, topic, partitions=[2]).records == 1
    assert ids(table) == [0, 2, 3, 4, 5, 6, 7, 8, 9, 10]
    assert table.get([{"id": 2}])["name"].to_pylist() == ["new"]
    assert check_table(table) == []


def test_a_start_at_the_latest_offset_is_fixed_and_new_partitions_are_read_from_their_first_message(
    reader: SparkSession, kafka: Kafka, table: Table
) -> None:
    topic = new_topic(kafka)
    kafka.produce(topic, [order(1)])
    assert read_by_spark(reader, table, kafka, topic, start="latest").records == 0
    kafka.add_partitions(topic, 2)
    kafka.produce(topic, [order(2)])
    kafka.produce(topic, [order(3)], partition=1)
    assert read_by_spark(reader, table, kafka, topic, start="latest").records == 2
    assert (ids(table), ends(table)) == ([2, 3], [2, 1])


@pytest.mark.slow
def test_values_that_did_not_change_stay_as_they_are(
    reader: SparkSession, kafka: Kafka, tmp_path: Path
) -> None:
    table = toast.new_table(open_storage(str(tmp_path)))
    topic = new_topic(kafka, 2)
    rows = [toast.row(key, 1, note=f"n{key}", data=b"\0\1", tags=[key]) for key in range(4)]
    formats = FormatOptions(format="debezium-json", columns=toast.OF_EVENT)
    kafka.produce(topic, [toast.event("c", row, 1) for row in rows[:3]])
    read_by_spark(reader, table, kafka, topic, formats=formats)
    changed = [{**row, "small": 2} for row in rows]
    events = [toast.event("u", row, 5, toast.LARGE) for row in changed]
    kafka.produce(topic, [events[0], toast.event("c", rows[3], 1), *events[3:]])
    kafka.produce(topic, events[1:3], partition=1)
    lost = toast.event("u", toast.row(9), 5, ["note"])
    kafka.produce(topic, [lost])
    with pytest.raises(BadMessageError, match=r"(?s)REPLICA IDENTITY FULL.*/0@6"):
        read_by_spark(reader, table, kafka, topic, formats=formats)
    totals = read_by_spark(
        reader, table, kafka, topic, formats=formats, on_bad_message="quarantine"
    )
    assert (totals.bad, toast.stored(table)) == (1, {row["id"]: row for row in changed})
    assert check_table(table) == []


def test_a_bad_message_stops_it_or_is_put_aside(
    reader: SparkSession, kafka: Kafka, table: Table
) -> None:
    topic = new_topic(kafka)
    kafka.produce(topic, [order(1), b"nope", order(3)])
    with pytest.raises(
        BadMessageError,
        match=rf"(?s)none of them was committed.*the message is not a JSON object.*{topic}/0@1",
    ):
        read_by_spark(reader, table, kafka, topic)
    assert ends(table) == []
    totals = read_by_spark(reader, table, kafka, topic, on_bad_message="quarantine")
    assert (totals.bad, ids(table), ends(table)) == (1, [1, 3], [3])


@pytest.mark.slow
def test_the_driver_decides_of_new_columns_and_new_schemas_for_all_tasks(
    reader: SparkSession, kafka: Kafka, table: Table, registry: Registry
) -> None:
    topic = new_topic(kafka, 2)
    for partition, more in enumerate(({"colour": "red"}, {"size": 3})):
        kafka.produce(topic, [order(partition, **more)], partition=partition)
    with pytest.raises(
        NewColumnsError,
        match=rf"{topic}/[01]@0: the table has no column .*on_new_columns='add' or",
    ):
        read_by_spark(reader, table, kafka, topic)
    assert (
        read_by_spark(
            reader, table, kafka, topic, formats=FormatOptions(on_new_columns="add")
        ).records
        == 2
    )
    assert table.read(columns=["id", "colour", "size"]).sort_by("id").to_pylist() == [
        {"id": 0, "colour": "red", "size": None},
        {"id": 1, "colour": None, "size": 3},
    ]
    registry.register(1, FIRST), registry.register(5, SECOND)
    topic = new_topic(kafka)
    kafka.produce(topic, [avro(1, FIRST, record(7)), avro(5, SECOND, record(8, name="b"))])
    assert (
        read_by_spark(
            reader, table, kafka, topic, formats=FormatOptions(format="avro", registry=registry.url)
        ).records
        == 2
    )
    assert (ids(table), registry.asked) == ([0, 1, 7, 8], [1, 5])


def test_messages_that_kafka_has_deleted_are_a_gap(
    reader: SparkSession, kafka: Kafka, table: Table
) -> None:
    topic = new_topic(kafka)
    kafka.produce(topic, [order(n) for n in range(4)])
    read_by_spark(reader, table, kafka, topic)
    kafka.produce(topic, [order(n) for n in range(4, 8)])
    admin = kafka.admin  # its answers end with it
    [deleted] = admin.delete_records([TopicPartition(topic, 0, 6)]).values()
    deleted.result(30)
    with pytest.raises(
        GapError,
        match=rf"{topic}/0: the table stands at offset 4, but Kafka has deleted .* offset 6",
    ):
        read_by_spark(reader, table, kafka, topic)
    totals = read_by_spark(reader, table, kafka, topic, policies=Policies(on_gap="continue"))
    assert (totals.missing, ids(table), ends(table)) == (2, [0, 1, 2, 3, 6, 7], [8])


def test_a_stream_stops_when_another_process_has_committed_for_its_partition(
    reader: SparkSession, kafka: Kafka, table: Table
) -> None:
    topic = new_topic(kafka)
    kafka.produce(topic, [order(n) for n in range(3)])
    late = stream(reader, table, kafka, topic)
    late._begin()
    read(table, kafka, topic)
    with pytest.raises(TakenOverError, match=rf"{topic}/0: another process reads it"):
        late._read()
    assert (ids(table), ends(table), table.snapshot_at().root.rows) == ([0, 1, 2], [3], 3)
