"""The ends of partitions that a source reports while nothing is fetched."""

import socket
import time
from collections.abc import Sequence

from opal_stream.kafka.connection import Connection
from opal_stream.kafka.source import Source
from opal_stream.kafka.topics import Partition
from tests.fixtures_kafka import Kafka
from tests.opal_stream.orders import new_topic, order

PARTITIONS = [Partition(topic="orders", number=number) for number in range(4)]


def asked_ends(source: Source, partitions: Sequence[Partition]) -> dict[Partition, int]:
    """Ask until Kafka answers for all; a call gives up early on a busy broker."""
    until_s = time.monotonic() + 60
    while time.monotonic() < until_s:
        source.ask_ends(partitions)
        if len(ends := source.ends(partitions)) == len(partitions):
            return ends
    raise AssertionError("Kafka did not answer for a minute")


def test_a_broker_that_does_not_answer_holds_nobody_up() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        source = Source(
            Connection(bootstrap_servers=f"127.0.0.1:{silent.getsockname()[1]}"),
            buffer_bytes=1 << 20,
            headers=False,
        )
        try:
            source.pause()
            began_s = time.monotonic()
            source.ask_ends(PARTITIONS)
            assert time.monotonic() - began_s < 5
            began_s = time.monotonic()
            assert source.ends(PARTITIONS) == {}
            assert time.monotonic() - began_s < 1
        finally:
            source.close()


def test_ends_are_asked_for_while_it_is_paused_and_are_known_until_it_goes_on(kafka: Kafka) -> None:
    topic = new_topic(kafka, 2)
    kafka.produce(topic, [order(1), order(2)], partition=1)
    parts = [Partition(topic=topic, number=number) for number in range(2)]
    source = Source(
        Connection(bootstrap_servers=kafka.servers), buffer_bytes=1 << 20, headers=False
    )
    try:
        source.reach(parts)  # so that it knows the topic
        source.ask_ends(parts)
        assert source.ends(parts) == {}
        source.pause()
        assert asked_ends(source, parts) == dict(zip(parts, (0, 2), strict=True))
        kafka.produce(topic, [order(3)], partition=1)
        assert source.ends(parts)[parts[1]] == 2
        asked_end = 2
        until_s = time.monotonic() + 60
        while asked_end == 2 and time.monotonic() < until_s:
            source.ask_ends(parts)
            asked_end = source.ends(parts)[parts[1]]
        assert asked_end == 3
        source.resume()
        assert source.ends(parts) == {}
    finally:
        source.close()
