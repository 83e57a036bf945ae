"""Topics with their ids and partitions, and the offsets that Kafka has of a partition."""

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
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # they exist, and are documented
    AdminClient,
    ConfigResource,
    OffsetSpec,
)

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
    """A topic; if it is deleted and created again, it has another id."""

    name: str
    id: str
    partitions: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """A partition's oldest offset, `low`, and the one after its last, `high`.

    While a transaction is open, `high` is its first message: the messages from there on can be read
    once the transaction ends.
    """

    low: int
    high: int


class Topics:
    """A client that asks Kafka for topics."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._admin = AdminClient(connection.client())

    def describe(self, names: Sequence[str]) -> dict[str, Topic]:
        """Return topics by name; raise UnknownTopicError for an unknown name.

        It asks several times for an unknown topic: a broker that has just started may not know its
        topics yet.
        """
        topics: dict[str, Topic] = {}
        for name in names:
            topic = self._ask(name)
            for _ in range(_TRIES - 1):
                if topic is None:
                    time.sleep(_PAUSE_S)
                    topic = self._ask(name)
            if topic is None:
                raise UnknownTopicError(
                    f"Kafka has no topic {name!r}: its name is wrong, or it was deleted; "
                    "correct the name, or create the topic",
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
        return Topic(name=name, id=_url_safe(str(described.topic_id)), partitions=numbers)

    def is_within_retention(self, name: str, moment_ms: int) -> bool:
        """Return whether messages of a time are certainly not deleted by retention yet.

        False for a topic that is limited in size: it is unknown which messages it has deleted.
        """
        resource = ConfigResource(ConfigResource.Type.TOPIC, name)
        try:
            asked = self._admin.describe_configs([resource], request_timeout=TIMEOUT_S)
            config = self._connection.answer(self._admin, asked[resource])
        except (KafkaException, TimeoutError):  # the user may not read settings of the topic
            return False
        retention_ms = int(config["retention.ms"].value or -1)
        retention_bytes = int(config["retention.bytes"].value or -1)
        # -1 means no limit. Without a limit of time, something else has deleted the messages
        if retention_bytes >= 0 or retention_ms < 0:
            return False
        return moment_ms > time.time() * 1000 - retention_ms

    def ends(
        self, partitions: Iterable[Partition], timeout_s: float = TIMEOUT_S
    ) -> dict[Partition, int]:
        """Return the next offset of each partition, open transactions included.

        Partitions for which Kafka does not answer are left out.
        """
        latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]  # it has no types
        asked = {
            TopicPartition(partition.topic, partition.number): latest for partition in partitions
        }
        if not asked:
            return {}
        answers = self._admin.list_offsets(
            asked, isolation_level=IsolationLevel.READ_UNCOMMITTED, request_timeout=timeout_s
        )
        ends: dict[Partition, int] = {}
        for topic_partition, answer in answers.items():
            partition = Partition(topic=topic_partition.topic, number=topic_partition.partition)
            with contextlib.suppress(KafkaException, TimeoutError):
                ends[partition] = answer.result(timeout_s).offset
        return ends

    def describe_if_exists(self, name: str) -> Topic | None:
        """Return a topic; None if Kafka has none of this name."""
        try:
            return self.describe([name])[name]
        except UnknownTopicError:
            return None


def _url_safe(topic_id: str) -> str:
    """Return an id as Kafka's own tools write it: in base64 with - and _."""
    return topic_id.replace("+", "-").replace("/", "_")


def reach_of(
    consumer: Consumer, connection: Connection, partitions: Iterable[Partition]
) -> dict[Partition, Reach]:
    """Ask Kafka for the reach of each partition.

    After a restart of a broker, several times.
    """
    return {partition: _reach_of(consumer, connection, partition) for partition in partitions}


def _reach_of(consumer: Consumer, connection: Connection, partition: Partition) -> Reach:
    reason = "no answer in time"
    for _ in range(_TRIES):
        try:
            offsets = consumer.get_watermark_offsets(
                TopicPartition(partition.topic, partition.number), timeout=TIMEOUT_S / _TRIES
            )
        except KafkaException as error:
            reason = text_of(error)
            _refresh(consumer, partition.topic)
            continue
        if offsets is not None:
            return Reach(low=offsets[0], high=offsets[1])
    raise connection.failure(f"{partition}: {reason}")


def _refresh(consumer: Consumer, topic: str) -> None:
    """Let a consumer fetch a topic's metadata again.

    The metadata may be from before a restart of the broker, or before a partition was added.
    """
    with contextlib.suppress(KafkaException):
        consumer.list_topics(topic, timeout=TIMEOUT_S / _TRIES)
    time.sleep(_PAUSE_S)


def chosen_partitions(
    topics: Iterable[Topic], only: Collection[int | Partition]
) -> list[Partition]:
    """Return the partitions of topics that `only` names; all if it is empty.

    A number names the partition with that number in every topic. Raises UnknownTopicError for an
    unknown partition.
    """
    topics = list(topics)
    every = [
        Partition(topic=topic.name, number=number)
        for topic in topics
        for number in topic.partitions
    ]
    numbers = {partition.number for partition in every}
    unknown = {*only} - {*every} - numbers
    if unknown:
        first = min(map(str, unknown))
        names = ", ".join(topic.name for topic in topics)
        raise UnknownTopicError(
            f"unknown partition {first} of {names}; correct the partitions to read"
        )
    if not only:
        return every
    return [partition for partition in every if partition in only or partition.number in only]
