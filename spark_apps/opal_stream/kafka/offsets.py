"""Where reading begins: at the table's own position, or else at the oldest message. Kafka's group offsets are not asked."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from opal_stream.errors import GapError, TopicChangedError
from opal_stream.kafka.applications import Application
from opal_stream.kafka.topics import Partition, Reach
from opal_stream.operations.reading import Policies


@dataclass(frozen=True, slots=True, kw_only=True)
class Begin:
    """Where the table stands, None where it knows nothing, and the offset to read first."""

    position: int | None
    offset: int

    @property
    def missing(self) -> int:
        """How many offsets lie between."""
        return 0 if self.position is None else self.offset - self.position


def plan_begin(
    application: Application, position: int | None, reach: Reach, policies: Policies
) -> Begin:
    """The first offset of a partition."""
    begin = Begin(position=position, offset=next_offset(position, reach))
    if position is None:
        return begin
    where = f"{application.partition}: the table stands at offset {position}"
    if position > reach.high:
        raise TopicChangedError(
            f"{where}, but Kafka ends at {reach.high}: messages were lost there, by an unclean election or a restored broker; compare the "
            "table with the source, and read under another --name to begin again",
            application.partition.topic,
        )
    if begin.missing and policies.on_gap != "continue":
        raise GapError(
            f"{where}, but Kafka has nothing before {reach.low} any more: {begin.missing} offsets are lost; read them from "
            "elsewhere, then go on with --on-gap continue"
        )
    return begin


def next_offset(position: int | None, reach: Reach) -> int:
    """Of what Kafka still has, the first that was not read: all of it where nothing was committed."""
    return reach.low if position is None else max(position, reach.low)


def check_topic_ids(
    known: Mapping[Application, int], ids: Mapping[str, str], policies: Policies
) -> None:
    """A topic must be the one of which the table has positions."""
    for application in changed_topics(known, ids) if policies.on_new_topic != "continue" else ():
        raise changed_topic(
            application.partition,
            known[application],
            application.topic_id,
            ids[application.partition.topic],
        )


def changed_topics(known: Collection[Application], ids: Mapping[str, str]) -> list[Application]:
    """Those whose topic is another one now, of which the same stream has read nothing yet: what came before that is history."""
    current = {
        (one.stream, topic)
        for one in known
        if ids.get(topic := one.partition.topic) == one.topic_id
    }
    return [
        one
        for one in known
        if (topic := one.partition.topic) in ids and (one.stream, topic) not in current
    ]


def changed_topic(partition: Partition, position: int, was: str, now: str) -> TopicChangedError:
    return TopicChangedError(
        f"{partition}: the table stands at offset {position} of the topic with id {was}, but {partition.topic!r} is another topic now, "
        f"with id {now}: it was deleted and made anew; to read the new one from its begin, use --on-new-topic continue",
        partition.topic,
    )
