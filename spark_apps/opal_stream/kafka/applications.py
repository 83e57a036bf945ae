"""The names under which a table keeps a stream's positions: kafka:<stream>/<topic>@<topic id>/<partition>.

The topic's id is in it because offsets count from 0 again in a topic that was deleted and made anew. kafka:<stream>/<topic> stands at 1
once it is fixed where the stream begins to read the topic.
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
    """Who reads what."""

    stream: str
    partition: Partition
    topic_id: str

    def __str__(self) -> str:
        return f"kafka:{self.stream}/{self.partition.topic}@{self.topic_id}/{self.partition.number}"

    @property
    def place(self) -> tuple[str, str, str, int]:
        """Its order among others: that of a partition is by number."""
        return self.stream, self.partition.topic, self.topic_id, self.partition.number

    @property
    def named(self) -> tuple[str, str]:
        """The stream, and the name of the topic, which those before and after it have in common."""
        return self.stream, self.partition.topic


def check_stream(name: str) -> str:
    if not _PLAIN.fullmatch(name):
        raise InvalidInputError(
            f"{name!r} is no name of a stream; use up to 200 letters, digits, '.', '_' and '-'"
        )
    return name


def start_name(stream: str, topic: str) -> str:
    return f"kafka:{stream}/{topic}"


def parse_application(name: str) -> Application | None:
    """None for a name that no stream from Kafka has."""
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
    """Those of streams from Kafka, or of one of them."""
    applications = {parse_application(name): position for name, position in positions.items()}
    return {
        application: position
        for application, position in applications.items()
        if application is not None and stream in (None, application.stream)
    }


def ids_by_name(applications: Iterable[Application]) -> dict[tuple[str, str], set[str]]:
    """Of each stream and name of a topic the topics that had it."""
    found: dict[tuple[str, str], set[str]] = {}
    for application in applications:
        found.setdefault(application.named, set()).add(application.topic_id)
    return found


def begun_topics(positions: Mapping[str, int], stream: str | None = None) -> set[tuple[str, str]]:
    """Stream and topic of all that was committed, also of topics of which only the start is fixed."""
    matches = [match for match in map(_NAME_OR_START.fullmatch, positions) if match is not None]
    return {
        (match["stream"], match["topic"]) for match in matches if stream in (None, match["stream"])
    }


def applications_of(stream: str, topic: Topic) -> list[Application]:
    """One for each partition that the topic has now, whether anything of it was committed or not."""
    return [
        Application(stream=stream, partition=partition, topic_id=topic.id)
        for partition in chosen_partitions([topic], ())
    ]
