"""Messages of a set of partitions, assigned by hand: no group, no rebalance, no offsets in Kafka."""

import contextlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from confluent_kafka import KafkaException, Message, TopicPartition

from opal_stream.errors import BadMessageError
from opal_stream.formats.batch import Headers, MessageBatch
from opal_stream.kafka.connection import Connection
from opal_stream.kafka.topics import Partition, Reach, Topics, reach_of

MOST_AT_ONCE, _USUAL_BYTES = 10_000, 1024
_DAY_MS = 86_400_000
_ASK_S = 1.5  # of all partitions together
# As librdkafka calls what it does not get over by itself
_SUSPECT = (
    "_AUTO_OFFSET_RESET",
    "OFFSET_OUT_OF_RANGE",
    "UNKNOWN_TOPIC_OR_PART",
    "UNKNOWN_TOPIC_ID",
    "_UNKNOWN_TOPIC",
    "_UNKNOWN_PARTITION",
)


@dataclass(slots=True, kw_only=True)
class Fetched:
    """Messages, the ends that were reached, and partitions of which Kafka said something that has to be looked into.

    Full is what holds as many as were asked for: there may be more.
    """

    batch: MessageBatch = field(default_factory=MessageBatch)
    is_full: bool = False
    ended: dict[Partition, int] = field(default_factory=dict)
    suspect: set[Partition] = field(default_factory=set)


class Source:
    """A consumer of librdkafka, which fetches ahead up to `buffer_bytes` in threads of its own."""

    def __init__(self, connection: Connection, *, buffer_bytes: int, headers: bool) -> None:
        self._connection = connection
        self._headers = headers
        self._fetch_bytes = buffer_bytes // 4
        self._message_bytes = _USUAL_BYTES  # of the last messages, on average
        usual = {
            "queued.max.messages.kbytes": str(max(1024, buffer_bytes // 1024)),
            "fetch.wait.max.ms": "50",
            "fetch.error.backoff.ms": "100",
            "reconnect.backoff.max.ms": "2000",
            "topic.metadata.refresh.interval.ms": "10000",
        }
        self.consumer = connection.consumer(
            {
                **{name: connection.settings.get(name, value) for name, value in usual.items()},
                "enable.auto.offset.store": False,
                "auto.offset.reset": "error",
                "enable.partition.eof": True,
                "max.poll.interval.ms": _DAY_MS,  # a commit may wait for a store
            }
        )
        self.paused = False
        self._asked: dict[Partition, int] = {}  # since it is paused
        self._topics: Topics | None = None

    def reach(self, partitions: list[Partition]) -> dict[Partition, Reach]:
        return reach_of(self.consumer, self._connection, partitions)

    def ends(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        """As Kafka said last; partitions of which it said nothing are left out."""
        ends = {partition: self._asked.get(partition, -1) for partition in partitions}
        for partition, asked in ends.items():
            with contextlib.suppress(KafkaException):  # no fetch said anything yet
                fetched = self.consumer.get_watermark_offsets(
                    TopicPartition(partition.topic, partition.number), cached=True
                )
                ends[partition] = max(asked, fetched[1])
        return {partition: end for partition, end in ends.items() if end >= 0}

    def ask_ends(self, partitions: Iterable[Partition]) -> None:
        """While nothing is fetched no fetch says where Kafka ends. A broker that does not answer is not waited for."""
        if self.paused:
            self._topics = self._topics or Topics(self._connection)
            self._asked |= self._topics.ends(partitions, _ASK_S)

    def assign(self, offsets: Mapping[Partition, int]) -> None:
        """Also read these, from there; while it is paused, later."""
        self._each(self.consumer.incremental_assign, offsets)
        if self.paused:
            self.consumer.pause(self.consumer.assignment())

    def drop(self, partition: Partition) -> None:
        """Read it no more."""
        self._each(self.consumer.incremental_unassign, {partition: 0})

    def seek(self, offsets: Mapping[Partition, int]) -> None:
        """Go on somewhere else."""
        self._each(self.consumer.incremental_unassign, offsets)
        self._asked.clear()
        self.assign(offsets)

    def pause(self) -> None:
        if not self.paused:
            self.consumer.pause(self.consumer.assignment())
            self.paused = True

    def resume(self) -> None:
        if self.paused:
            self.consumer.resume(self.consumer.assignment())
            self.paused = False
            self._asked.clear()

    def fetch(self, timeout_s: float) -> Fetched:
        """What is there, waiting at most so long for more."""
        most = max(1, min(MOST_AT_ONCE, self._fetch_bytes // self._message_bytes))
        try:
            messages = self.consumer.consume(most, timeout_s)
        except KafkaException as error:
            raise self._connection.failure(error) from error
        fetched = Fetched(is_full=len(messages) == most)
        if any(message.error() is not None for message in messages):
            for message in messages:
                self._note(fetched, message)
            messages = [message for message in messages if message.error() is None]
        self._fill(fetched, messages)
        self._measure(fetched.batch)
        return fetched

    def _measure(self, batch: MessageBatch) -> None:
        """The larger messages are, the fewer are taken at once: of those of 10 MB, 10,000 would not fit into memory."""
        if len(batch):
            self._message_bytes = max(
                1, sum(len(value or b"") for value in batch.values) // len(batch)
            )

    def close(self) -> None:
        self.consumer.close()

    def _fill(self, fetched: Fetched, messages: list[Message]) -> None:
        fetched.batch = MessageBatch(
            topics=[message.topic() or "" for message in messages],
            partitions=[message.partition() or 0 for message in messages],
            offsets=[message.offset() or 0 for message in messages],
            timestamps_ms=[message.timestamp()[1] for message in messages],
            keys=[message.key() for message in messages],
            values=[message.value() for message in messages],
            headers=[_headers(message) for message in messages] if self._headers else [],
        )

    def _note(self, fetched: Fetched, message: Message) -> None:
        """What came instead of a message. Everything that passes by itself, librdkafka tries again."""
        error = message.error()
        topic, number = message.topic(), message.partition()
        if error is None or topic is None or number is None:
            return
        partition = Partition(topic=topic, number=number)
        if error.name() == "_PARTITION_EOF":
            fetched.ended[partition] = message.offset() or 0
        elif error.name() in _SUSPECT:
            fetched.suspect.add(partition)
        elif error.name() == "_BAD_MSG":
            raise BadMessageError(
                f"{partition}: a message at offset {message.offset()} is damaged in Kafka: {error.str()}"
            )

    def _each(
        self, change: Callable[[list[TopicPartition]], None], offsets: Mapping[Partition, int]
    ) -> None:
        change(
            [
                TopicPartition(partition.topic, partition.number, offset)
                for partition, offset in offsets.items()
            ]
        )


def _headers(message: Message) -> Headers:
    found = message.headers() or ()
    return list(found.items() if isinstance(found, Mapping) else found)
