"""A stream that reads only new messages: its start is fixed once, whoever reads later."""

from collections.abc import Callable
from pathlib import Path

import pytest

from opal_lake.errors import CommitUnknownError, StorageError
from opal_lake.storage.open import open_storage
from opal_lake.table import Table, table_on
from opal_stream.flush.options import StreamOptions
from opal_stream.flush.start import fix_start
from opal_stream.kafka.applications import known_positions
from opal_stream.kafka.connection import Connection
from opal_stream.kafka.topics import Partition, Reach, Topic
from opal_stream.operations.reading import Policies
from opal_stream.supervise.observation import Observer
from tests.fixtures_kafka import Kafka
from tests.kit.check import check_table
from tests.opal_stream.orders import gather, ids, new_table, new_topic, order, read
from tests.opal_stream.shaky import Shaky

ORDERS = Topic(name="orders", id="a", partitions=(0, 1, 2))
LATEST = StreamOptions(topics=["orders"], start="latest", give_up_s=5)


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return new_table(tmp_path)


def lags(table: Table, kafka: Kafka, topic: str, commit: str) -> list[int]:
    """Return the positions that a supervisor sees."""
    options = StreamOptions(topics=[topic], start="latest", commit=commit)
    observer = Observer(table, Connection(bootstrap_servers=kafka.servers), options)
    try:
        seen = observer.look()
    finally:
        observer.close()
    return [seen.lag(partition) for partition in sorted(seen.ends)]


@pytest.mark.parametrize("commit", ["direct", "gathered"])
@pytest.mark.parametrize("before", [(3, 1, 0), (0, 0, 0)])
def test_messages_after_a_fixed_start_are_read_by_any_process(
    kafka: Kafka, table: Table, before: tuple[int, ...], commit: str
) -> None:
    topic = new_topic(kafka, 3)
    for partition, count in enumerate(before):
        kafka.produce(
            topic, [order(100 * partition + n) for n in range(count)], partition=partition
        )
    assert lags(table, kafka, topic, commit) == [0, 0, 0]
    assert read(table, kafka, topic, start="latest", commit=commit, partitions=[0]).records == 0
    kafka.add_partitions(topic, 4)
    for partition in range(4):
        kafka.produce(
            topic, [order(100 * partition + n) for n in range(50, 52)], partition=partition
        )
    assert lags(table, kafka, topic, commit) == [2, 2, 2, 2]
    assert read(table, kafka, topic, start="latest", commit=commit, partitions=[1]).records == 2
    assert read(table, kafka, topic, start="latest", commit=commit, partitions=[2, 3]).records == 4
    assert read(table, kafka, topic, start="latest", commit=commit).records == 2
    if commit == "gathered":
        gather(table)
    assert ids(table) == [50, 51, 150, 151, 250, 251, 350, 351]
    assert check_table(table) == []


def test_a_topic_created_again_is_read_from_its_start(kafka: Kafka, table: Table) -> None:
    topic = new_topic(kafka)
    kafka.produce(topic, [order(1)])
    read(table, kafka, topic, start="latest")
    kafka.delete_topic(topic)
    kafka.create_topic(topic)
    kafka.produce(topic, [order(2)])
    assert (
        read(
            table, kafka, topic, start="latest", policies=Policies(on_new_topic="continue")
        ).records
        == 1
    )


def reach(
    *ends: int, meanwhile: Callable[[], None] = lambda: None
) -> Callable[[list[Partition]], dict[Partition, Reach]]:
    """Kafka's answer, and what another process does before it is committed."""

    def reach_of(partitions: list[Partition]) -> dict[Partition, Reach]:
        meanwhile()
        return {partition: Reach(low=0, high=ends[partition.number]) for partition in partitions}

    return reach_of


def fix(
    table: Table, *ends: int, topic: Topic = ORDERS, meanwhile: Callable[[], None] = lambda: None
) -> None:
    fix_start(
        table,
        LATEST,
        [topic],
        lambda: table.log.head().positions,
        reach(*ends, meanwhile=meanwhile),
    )


def begins(table: Table) -> dict[str, int]:
    return {
        str(application.partition): position
        for application, position in known_positions(table.log.head().positions).items()
    }


def test_the_first_of_two_processes_fixes_where_both_begin(table: Table) -> None:
    fix(Table.open(table.uri), 9, 0, 7, meanwhile=lambda: fix(table, 5, 0, 6))
    fix(table, 11, 12, 13)
    assert begins(table) == {"orders/0": 5, "orders/2": 6}
    fix(
        table, 4, topic=Topic(name="users", id="b", partitions=(0,))
    )  # a topic that the stream reads, too, from then on
    assert begins(table) == {"orders/0": 5, "orders/2": 6, "users/0": 4}
    version = table.log.head().version
    fix(table, 3, topic=Topic(name="users", id="c", partitions=(0,)))
    assert table.log.head().version == version


def test_a_store_that_fails_is_waited_for_and_a_start_that_has_landed_counts(
    table: Table, caplog: pytest.LogCaptureFixture
) -> None:
    store = Shaky(open_storage(table.uri))
    store.failures = ["after", "before"]
    fix(table_on(store), 5, 0, 6)
    assert (store.failures, begins(table), table.log.head().version) == (
        [],
        {"orders/0": 5, "orders/2": 6},
        1,
    )
    store.failures = ["before"] * 100
    assert {message.partition(" failed ")[0] for message in caplog.messages} == {
        "the commit of the stream's start"
    }
    with pytest.raises((StorageError, CommitUnknownError)):
        fix_start(
            table_on(store),
            StreamOptions(topics=["users"], start="latest", give_up_s=0.5),
            [Topic(name="users", id="b", partitions=(0,))],
            lambda: table.log.head().positions,
            reach(1),
        )
