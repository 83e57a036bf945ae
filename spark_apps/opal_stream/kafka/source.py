"""The source of messages: it assigns partitions itself, without groups and offsets in Kafka."""

import contextlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from confluent_kafka import KafkaException, Message, TopicPartition

from opal_stream.errors import BadMessageError
from opal_stream.formats.batch import Headers, MessageBatch
from opal_stream.kafka.connection import Connection
from opal_stream.kafka.topics import Partition, Reach, Topics, reach_of

MAX_AT_ONCE, _USUAL_BYTES = 10_000, 1024
_DAY_MS = 86_400_000
_ASK_S = 1.5  # for all partitions together
# librdkafka's names of the errors that it does not recover from on its own
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
    """The result of one fetch.

    - `is_full` means that it has as many messages as were asked for: Kafka may have more.
    - `ended` are the partitions that it read to their ends, and the offsets of these.
    - `suspect` are partitions with an error from which librdkafka does not recover.
    """

    batch: MessageBatch = field(default_factory=MessageBatch)
    is_full: bool = False
    ended: dict[Partition, int] = field(default_factory=dict)
    suspect: set[Partition] = field(default_factory=set)


class Source:
    """A consumer of librdkafka, which fetches ahead in threads, up to `buffer_bytes`."""

    def __init__(
        self,
        connection: Connection,
        *,
        buffer_bytes: int,
        headers: bool,
        max_at_once: int = MAX_AT_ONCE,
    ) -> None:
        self._connection = connection
        self._max_at_once = max_at_once
        self._headers = headers
        self._fetch_bytes = buffer_bytes // 4
        self._message_bytes = _USUAL_BYTES  # the average size in the last fetch
        usual = {
            "queued.max.messages.kbytes": str(max(1024, buffer_bytes // 1024)),
            "fetch.wait.max.ms": "50",
            "fetch.error.backoff.ms": "100",
            "reconnect.backoff.max.ms": "2000",
            "topic.metadata.refresh.interval.ms": "10000",
        }
        # The user's settings count before the usual ones
        chosen = {name: connection.settings.get(name, value) for name, value in usual.items()}
        self.consumer = connection.consumer(
            {
                **chosen,
                "enable.auto.offset.store": False,
                "auto.offset.reset": "error",
                "enable.partition.eof": True,
                "max.poll.interval.ms": _DAY_MS,  # a commit may wait for a store
            }
        )
        self.paused = False
        self._asked: dict[Partition, int] = {}  # ends that were asked for while paused
        self._topics: Topics | None = None

    def reach(self, partitions: list[Partition]) -> dict[Partition, Reach]:
        return reach_of(self.consumer, self._connection, partitions)

    def ends(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        """Return the last known end of each partition.

        Partitions without one are left out.
        """
        ends: dict[Partition, int] = {}
        for partition in partitions:
            end = self._asked.get(partition, -1)
            with contextlib.suppress(KafkaException):  # no fetch has brought an end yet
                _, fetched = self.consumer.get_watermark_offsets(
                    TopicPartition(partition.topic, partition.number), cached=True
                )
                end = max(end, fetched)
            if end >= 0:
                ends[partition] = end
        return ends

    def ask_ends(self, partitions: Iterable[Partition]) -> None:
        """Ask Kafka for the ends while the source is paused; otherwise fetches bring them.

        The call waits only a moment for a broker that does not answer.
        """
        if self.paused:
            self._topics = self._topics or Topics(self._connection)
            self._asked |= self._topics.ends(partitions, _ASK_S)

    def assign(self, offsets: Mapping[Partition, int]) -> None:
        """Read more partitions from these offsets.

        A paused source reads them after its pause.
        """
        self._each(self.consumer.incremental_assign, offsets)
        if self.paused:
            self.consumer.pause(self.consumer.assignment())

    def drop(self, partition: Partition) -> None:
        """Stop reading a partition."""
        self._each(self.consumer.incremental_unassign, {partition: 0})

    def seek(self, offsets: Mapping[Partition, int]) -> None:
        """Continue partitions at other offsets."""
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
        """Return the available messages; wait at most `timeout_s` for them."""
        # The larger messages are, the fewer are fetched at once: 10,000 of 10 MB would not fit
        # into memory
        count = max(1, min(self._max_at_once, self._fetch_bytes // self._message_bytes))
        try:
            messages = self.consumer.consume(count, timeout_s)
        except KafkaException as error:
            raise self._connection.failure(error) from error
        fetched = Fetched(is_full=len(messages) == count)
        if any(message.error() is not None for message in messages):
            for message in messages:
                self._note(fetched, message)
            messages = [message for message in messages if message.error() is None]
        self._fill(fetched, messages)
        self._measure(fetched.batch)
        return fetched

    def _measure(self, batch: MessageBatch) -> None:
        """Note the average size of a batch's messages, for the number of the next fetch."""
        if len(batch):
            size = sum(len(value or b"") for value in batch.values)
            self._message_bytes = max(1, size // len(batch))

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
        )
        if self._headers:
            fetched.batch.headers = [_headers(message) for message in messages]

    def _note(self, fetched: Fetched, message: Message) -> None:
        """Note an end or an error that librdkafka returns instead of a message.

        Errors from which librdkafka recovers are ignored.
        """
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
                f"{partition}: the message at offset {message.offset()} is damaged in Kafka: "
                f"{error.str()}"
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
    headers = message.headers() or ()
    return list(headers.items() if isinstance(headers, Mapping) else headers)
