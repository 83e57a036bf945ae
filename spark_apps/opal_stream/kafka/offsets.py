"""The offset where reading of a partition begins: the table's position, or the oldest message.

Offsets of Kafka's consumer groups do not count.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from opal_stream.errors import GapError, TopicChangedError
from opal_stream.kafka.applications import Application
from opal_stream.kafka.topics import Partition, Reach
from opal_stream.operations.reading import Policies


@dataclass(frozen=True, slots=True, kw_only=True)
class Begin:
    """The table's position, or None if it has none, and the first offset to read."""

    position: int | None
    offset: int

    @property
    def missing(self) -> int:
        """The number of offsets between the position and the first offset to read."""
        if self.position is None:
            return 0
        return self.offset - self.position


def plan_begin(
    application: Application, position: int | None, reach: Reach, policies: Policies
) -> Begin:
    """Return where reading of a partition begins.

    Raises TopicChangedError if Kafka ends before the position. Raises GapError if Kafka has deleted
    unread messages, unless `policies` accept that.
    """
    begin = Begin(position=position, offset=next_offset(position, reach))
    if position is None:
        return begin
    where = f"{application.partition}: the table stands at offset {position}"
    if position > reach.high:
        raise TopicChangedError(
            f"{where}, but Kafka ends at {reach.high}: an unclean election or a restored broker "
            "lost messages. Compare the table with the source, then start again under another "
            "name of the stream (--name)",
            application.partition.topic,
        )
    if begin.missing and policies.on_gap != "continue":
        raise GapError(
            f"{where}, but Kafka has deleted the messages before offset {reach.low}: "
            f"{begin.missing} offsets are lost; read them from elsewhere, then continue with "
            "on_gap='continue'"
        )
    return begin


def next_offset(position: int | None, reach: Reach) -> int:
    """Return the first unread offset that Kafka still has."""
    if position is None:
        return reach.low
    return max(position, reach.low)


def check_topic_ids(
    known: Mapping[Application, int], ids: Mapping[str, str], policies: Policies
) -> None:
    """Raise TopicChangedError if a topic has another id than in the known positions.

    `ids` are the current ids by topic name. The policy `on_new_topic` may accept the change.
    """
    if policies.on_new_topic == "continue":
        return
    for application in changed_topics(known, ids):
        raise changed_topic_error(
            application.partition,
            known[application],
            application.topic_id,
            ids[application.partition.topic],
        )


def changed_topics(known: Collection[Application], ids: Mapping[str, str]) -> list[Application]:
    """Return the applications whose topic was created again, and not read since then.

    `ids` are the current ids by topic name.
    """
    current: set[tuple[str, str]] = set()
    for application in known:
        if ids.get(application.partition.topic) == application.topic_id:
            current.add(application.stream_topic)
    return [
        application
        for application in known
        if application.partition.topic in ids and application.stream_topic not in current
    ]


def changed_topic_error(
    partition: Partition, position: int, known_id: str, current_id: str
) -> TopicChangedError:
    """Return the error of a topic that was deleted and created again."""
    return TopicChangedError(
        f"{partition}: the table stands at offset {position} of the topic with id {known_id}, but "
        f"{partition.topic!r} is another topic now, with id {current_id}: it was deleted and "
        "created again; to read the new topic from its beginning, use on_new_topic='continue' "
        "(--on-new-topic continue)",
        partition.topic,
    )
