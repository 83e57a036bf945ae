"""Which topics and partitions there are, under which topic id, and how far they reach."""

import contextlib
import time
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from confluent_kafka import (
    Consumer,
    IsolationLevel,
    KafkaException,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, ConfigResource, OffsetSpec  # type: ignore[attr-defined]  # they are there, and documented

from opal_stream.errors import UnknownTopicError
from opal_stream.kafka.connection import TIMEOUT_S, Connection, text_of

_UNKNOWN = ("UNKNOWN_TOPIC_OR_PART", "UNKNOWN_TOPIC_ID", "_UNKNOWN_TOPIC", "_UNKNOWN_PARTITION")
_TRIES, _PAUSE_S = 4, 0.25


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Partition:
    """One partition of a topic."""

    topic: str
    number: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.number}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    """A topic of a name gets another id when it is deleted and made anew."""

    name: str
    id: str
    partitions: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """The oldest offset that Kafka still has, and the next one that it will give out.

    Where a transaction is open, `high` is its first message: what comes behind is read once it ends.
    """

    low: int
    high: int


class Topics:
    """Asks Kafka. A name without a topic raises UnknownTopicError."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._admin = AdminClient(connection.client())

    def describe(self, names: Sequence[str]) -> dict[str, Topic]:
        """A broker that has just started may not know its topics yet: what it does not know is asked for again."""
        topics = {}
        for name in names:
            topic = self._ask(name)
            for _ in range(_TRIES - 1):
                if topic is None:
                    time.sleep(_PAUSE_S)
                    topic = self._ask(name)
            if topic is None:
                raise UnknownTopicError(
                    f"Kafka has no topic {name!r}: its name is wrong, or it was deleted; check --topic, or create it",
                    name,
                )
            topics[name] = topic
        return topics

    def _ask(self, name: str) -> Topic | None:
        try:
            asked = self._admin.describe_topics(TopicCollection([name]), request_timeout=TIMEOUT_S)
            described = self._connection.answer(self._admin, asked[name])
        except KafkaException as error:
            if error.args[0].name() in _UNKNOWN:
                return None
            raise self._connection.failure(error) from error
        except TimeoutError as error:
            raise self._connection.failure("no answer in time") from error
        numbers = tuple(sorted(partition.id for partition in described.partitions))
        return Topic(name=name, id=_plain(str(described.topic_id)), partitions=numbers)

    def is_within_retention(self, name: str, moment_ms: int) -> bool:
        """Whether Kafka cannot have deleted messages of then by itself. Nobody can say so of a topic that is limited in size."""
        resource = ConfigResource(ConfigResource.Type.TOPIC, name)
        try:
            asked = self._admin.describe_configs([resource], request_timeout=TIMEOUT_S)
            config = self._connection.answer(self._admin, asked[resource])
        except (KafkaException, TimeoutError):  # it may not be asked
            return False
        retention_ms, retention_bytes = (
            int(config[key].value or -1) for key in ("retention.ms", "retention.bytes")
        )
        return retention_bytes < 0 <= retention_ms and moment_ms > time.time() * 1000 - retention_ms

    def ends(
        self, partitions: Iterable[Partition], timeout_s: float = TIMEOUT_S
    ) -> dict[Partition, int]:
        """Return the next offset of each partition, behind open transactions, too: lag counts up to it.

        Partitions of which Kafka says nothing are left out.
        """
        asked = {
            TopicPartition(partition.topic, partition.number): OffsetSpec.latest()  # type: ignore[no-untyped-call]  # it has no types
            for partition in partitions
        }
        if not asked:
            return {}
        answers = self._admin.list_offsets(
            asked, isolation_level=IsolationLevel.READ_UNCOMMITTED, request_timeout=timeout_s
        )
        ends: dict[Partition, int] = {}
        for place, answer in answers.items():
            with contextlib.suppress(KafkaException, TimeoutError):
                partition = Partition(topic=place.topic, number=place.partition)
                ends[partition] = answer.result(timeout_s).offset
        return ends

    def describe_if_there(self, name: str) -> Topic | None:
        try:
            return self.describe([name])[name]
        except UnknownTopicError:
            return None


def _plain(topic_id: str) -> str:
    """As Kafka's own tools write it: librdkafka has the base64 with + and /."""
    return topic_id.replace("+", "-").replace("/", "_")


def reach_of(
    consumer: Consumer, connection: Connection, partitions: Iterable[Partition]
) -> dict[Partition, Reach]:
    """Of each partition, from its leader; after a restart of a broker it may take a few tries."""
    return {partition: _reach_of(consumer, connection, partition) for partition in partitions}


def _reach_of(consumer: Consumer, connection: Connection, partition: Partition) -> Reach:
    failure: KafkaException | None = None
    for _ in range(_TRIES):
        try:
            offsets = consumer.get_watermark_offsets(
                TopicPartition(partition.topic, partition.number), timeout=TIMEOUT_S / _TRIES
            )
        except KafkaException as error:
            failure = error
            _refresh(consumer, partition.topic)
            continue
        if offsets is not None:
            return Reach(low=offsets[0], high=offsets[1])
    raise connection.failure(f"{partition}: {text_of(failure) if failure else 'no answer in time'}")


def _refresh(consumer: Consumer, topic: str) -> None:
    """What a consumer knows of a topic can be older than its newest partition, or than a broker's restart."""
    with contextlib.suppress(KafkaException):
        consumer.list_topics(topic, timeout=TIMEOUT_S / _TRIES)
    time.sleep(_PAUSE_S)


def chosen_partitions(
    topics: Iterable[Topic], only: Collection[int | Partition]
) -> list[Partition]:
    """All of them, or those of these numbers, which may be of one topic."""
    topics = list(topics)
    every = [
        Partition(topic=topic.name, number=number)
        for topic in topics
        for number in topic.partitions
    ]
    chosen = [
        partition
        for partition in every
        if not only or partition in only or partition.number in only
    ]
    if missing := sorted(map(str, {*only} - {*every} - {partition.number for partition in every})):
        names = ", ".join(topic.name for topic in topics)
        raise UnknownTopicError(
            f"there is no partition {missing[0]} of {names}; correct --partitions"
        )
    return chosen
