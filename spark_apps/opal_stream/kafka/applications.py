"""The names of a table's positions: kafka:<stream>/<topic>@<topic id>/<partition>.

The topic's id is part of the name, because offsets count from 0 again in a topic that was deleted
and created again. The position kafka:<stream>/<topic> is 1 once the stream's start in the topic is
fixed (`start="latest"`).
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from opal_lake.errors import InvalidInputError
from opal_stream.kafka.topics import Partition, Topic, chosen_partitions

_PLAIN = re.compile(r"[A-Za-z0-9._-]{1,200}")
_START = r"kafka:(?P<stream>[^/]+)/(?P<topic>[^/@]+)"
_NAME = re.compile(_START + r"@(?P<id>[^/]+)/(?P<partition>\d+)")
_NAME_OR_START = re.compile(_START + r"(@[^/]+/\d+)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Application:
    """A stream as the reader of one partition of one topic id."""

    stream: str
    partition: Partition
    topic_id: str

    def __str__(self) -> str:
        return f"kafka:{self.stream}/{self.partition.topic}@{self.topic_id}/{self.partition.number}"

    @property
    def sort_key(self) -> tuple[str, str, str, int]:
        """The key to sort applications by, partitions by number."""
        return self.stream, self.partition.topic, self.topic_id, self.partition.number

    @property
    def stream_topic(self) -> tuple[str, str]:
        """The stream and the topic's name, the same for all topic ids of that name."""
        return self.stream, self.partition.topic


def check_stream(name: str) -> str:
    """Return the name of a stream; raise InvalidInputError if it is not a valid one."""
    if not _PLAIN.fullmatch(name):
        raise InvalidInputError(
            f"{name!r} is not a name of a stream; use up to 200 letters, digits, '.', '_' and '-'"
        )
    return name


def start_name(stream: str, topic: str) -> str:
    """Return the name of the position that records the fixed start of a topic."""
    return f"kafka:{stream}/{topic}"


def parse_application(name: str) -> Application | None:
    """Return the application of a position's name.

    Return None if it is not one of a Kafka stream.
    """
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    return Application(
        stream=match["stream"],
        partition=Partition(topic=match["topic"], number=int(match["partition"])),
        topic_id=match["id"],
    )


def known_positions(
    positions: Mapping[str, int], stream: str | None = None
) -> dict[Application, int]:
    """Return the positions by application, of all Kafka streams or of one stream."""
    known: dict[Application, int] = {}
    for name, position in positions.items():
        application = parse_application(name)
        if application is not None and stream in (None, application.stream):
            known[application] = position
    return known


def ids_by_name(applications: Iterable[Application]) -> dict[tuple[str, str], set[str]]:
    """Return the topic ids of applications, by stream and topic name."""
    ids: dict[tuple[str, str], set[str]] = {}
    for application in applications:
        ids.setdefault(application.stream_topic, set()).add(application.topic_id)
    return ids


def begun_topics(positions: Mapping[str, int], stream: str | None = None) -> set[tuple[str, str]]:
    """Return the pairs of stream and topic name that have a position or a fixed start."""
    begun: set[tuple[str, str]] = set()
    for name in positions:
        match = _NAME_OR_START.fullmatch(name)
        if match is not None and stream in (None, match["stream"]):
            begun.add((match["stream"], match["topic"]))
    return begun


def applications_of(stream: str, topic: Topic) -> list[Application]:
    """Return the applications of a stream for all current partitions of a topic."""
    return [
        Application(stream=stream, partition=partition, topic_id=topic.id)
        for partition in chosen_partitions([topic], ())
    ]
