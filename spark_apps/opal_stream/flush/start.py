"""The start of a stream that reads only new messages (`start="latest"`).

One commit fixes the start of all partitions of a topic, before any of them is read. A process that
reads a partition later begins there, and leaves no message out. Partitions that are added after
that commit are read from their first message.
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
from opal_stream.flush.writer import RETRYABLE
from opal_stream.kafka.applications import Application, begun_topics, start_name
from opal_stream.kafka.topics import Partition, Reach, Topic, chosen_partitions

ReachOf = Callable[[list[Partition]], Mapping[Partition, Reach]]


def fix_start(
    table: Table,
    options: StreamOptions,
    topics: Sequence[Topic],
    read_positions: Callable[[], Mapping[str, int]],
    reach_of: ReachOf,
) -> None:
    """Commit the current ends of the topics that the stream has never read.

    `reach_of` asks Kafka for the ends. If another process commits first, its commit counts.
    """
    backoff = Backoff(what="the commit of the stream's start", give_up_s=options.give_up_s)
    while new := never_read(topics, read_positions(), options.name):
        positions = _ends(new, options.name, reach_of(chosen_partitions(new, ())))
        operation = Ingest(_no_rows, positions=positions, metadata="inline")
        try:
            ingest(table, _no_rows, operation, hurried=True)
        except FencedError:  # another process was first: the loop reads its positions
            continue
        except RETRYABLE as error:  # the commit may have landed: the loop reads the positions
            backoff.wait(error, lambda: None)


def _no_rows(spec: TableSpec, _: int) -> pa.Table:
    return arrow_schema(spec.schema).empty_table()


def never_read(topics: Iterable[Topic], positions: Mapping[str, int], stream: str) -> list[Topic]:
    """Return the topics whose names a stream has never read.

    A topic that was created again is not among them: its new messages must not be skipped.
    """
    begun = begun_topics(positions)
    return [topic for topic in topics if (stream, topic.name) not in begun]


def _ends(
    topics: Iterable[Topic], stream: str, reach: Mapping[Partition, Reach]
) -> dict[str, Advance]:
    """Return the positions that fix the start at the ends of the topics.

    An empty partition gets no position: a table does not store 0, where reading begins anyway. So
    each topic gets a position of its own, which records that the stream has begun it.
    """
    ids = {topic.name: topic.id for topic in topics}
    advances = {start_name(stream, name): Advance(start=0, end=1) for name in ids}
    for partition, offsets in reach.items():
        if not offsets.high:
            continue
        application = Application(stream=stream, partition=partition, topic_id=ids[partition.topic])
        advances[str(application)] = Advance(start=offsets.high, end=offsets.high, first=True)
    return advances
