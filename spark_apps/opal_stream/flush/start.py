"""Where a stream begins that is to read what comes from now on (`start="latest"`).

One commit says so for all partitions of a topic, before any of them is read: whoever reads one of them later begins there, and leaves
nothing out. Partitions that come to be after that are read from their first message.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence

import pyarrow as pa

from opal_lake.definition.positions import Advance
from opal_lake.definition.schema import arrow_schema
from opal_lake.definition.table_spec import TableSpec
from opal_lake.errors import FencedError
from opal_lake.operations.ingest import Ingest
from opal_lake.table import Table
from opal_lake.write.ingest_job import ingest
from opal_stream.backoff import Backoff
from opal_stream.flush.options import StreamOptions
from opal_stream.flush.writer import PASSING
from opal_stream.kafka.applications import Application, begun_topics, start_name
from opal_stream.kafka.topics import Partition, Reach, Topic, chosen_partitions

ReachOf = Callable[[list[Partition]], Mapping[Partition, Reach]]


def fix_start(
    table: Table,
    options: StreamOptions,
    topics: Sequence[Topic],
    stands: Callable[[], Mapping[str, int]],
    reach_of: ReachOf,
) -> None:
    """Commit where the topics end that the stream has never read. If another process was first, its commit counts."""
    backoff = Backoff(what="the commit of where the stream begins", give_up_s=options.give_up_s)
    while new := never_read(topics, stands(), options.name):
        positions = _ends(new, options.name, reach_of(chosen_partitions(new, ())))
        asked = Ingest(_no_rows, positions=positions, metadata="inline")
        try:
            ingest(table, _no_rows, asked, hurried=True)
        except FencedError:
            continue
        except PASSING as error:  # it may have landed
            backoff.wait(error, lambda: None)


def _no_rows(spec: TableSpec, _: int) -> pa.Table:
    return arrow_schema(spec.schema).empty_table()


def never_read(topics: Iterable[Topic], stands: Mapping[str, int], stream: str) -> list[Topic]:
    """A topic that was made anew is not a new one: nobody has read what it holds."""
    begun = begun_topics(stands)
    return [topic for topic in topics if (stream, topic.name) not in begun]


def _ends(
    topics: Iterable[Topic], stream: str, reach: Mapping[Partition, Reach]
) -> dict[str, Advance]:
    """A table knows no position 0, at which an empty partition begins in any case: that the topic has begun is a position of its own."""
    ids = {topic.name: topic.id for topic in topics}
    ends = {
        Application(stream=stream, partition=part, topic_id=ids[part.topic]): offsets.high
        for part, offsets in reach.items()
    }
    begun = {start_name(stream, name): Advance(start=0, end=1) for name in ids}
    return begun | {
        str(application): Advance(start=end, end=end, first=True)
        for application, end in ends.items()
        if end
    }
