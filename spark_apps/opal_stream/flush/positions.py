"""The positions of a stream: where the table stands, and where reading continues.

They also show whether a topic is still the one that the stream has read.
"""

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from opal_lake.table import Table
from opal_stream.errors import GapError, TopicChangedError, UnknownTopicError
from opal_stream.flush.options import StreamOptions, Totals
from opal_stream.flush.publisher import Publisher
from opal_stream.flush.start import ReachOf, fix_start
from opal_stream.flush.writer import Writer
from opal_stream.formats.decoder import row_form_of
from opal_stream.gathered.backlog import Gate, committer_command
from opal_stream.gathered.folder import GatheredFolder
from opal_stream.kafka.applications import Application, known_positions
from opal_stream.kafka.connection import Connection
from opal_stream.kafka.offsets import changed_topic_error, check_topic_ids, plan_begin
from opal_stream.kafka.topics import Partition, Reach, Topics, chosen_partitions
from opal_stream.tracking.events import Tracker

logger = logging.getLogger(__name__)


class StreamPositions:
    """The positions of one process of a stream.

    - `writer` commits, or gathers files, and knows the positions of its partitions.
    - `gate` stops reading while too many gathered files wait; None if commits are direct.
    - `ids` are the ids of the topics by name, as they were at the start.
    """

    def __init__(
        self, table: Table, connection: Connection, options: StreamOptions, tracker: Tracker
    ) -> None:
        self.totals = Totals()
        self.gate: Gate | None = None
        settings: dict[str, Any] = {
            "table": table,
            "on_bad_message": options.on_bad_message,
            "row_form": row_form_of(options.formats),
            "give_up_s": options.give_up_s,
            "broker_timeout_s": options.broker_timeout_s,
        }
        if options.commit == "gathered":
            self.gate = Gate(table.storage, options.name, options.gathered_bytes, table.uri)
            self.writer: Writer = Publisher(gate=self.gate, **settings)
        else:
            self.writer = Writer(**settings)
        self.ids: dict[str, str] = {}
        # Partitions that begin after their first message, and were reported for it
        self._late: set[Partition] = set()
        self._table = table
        self._topics = Topics(connection)
        self._options = options
        self._tracker = tracker

    def describe(self, reach_of: ReachOf) -> list[Partition]:
        """Return the partitions to read; fix the start of new topics if it is "latest".

        Raises TopicChangedError if a topic has another id than in the table's positions, unless the
        options allow that.
        """
        topics = self._topics.describe(self._options.topics)
        self.ids = {name: topic.id for name, topic in topics.items()}
        known = known_positions(self.writer.read_positions(), self._options.name)
        with self._reporting_changes():
            check_topic_ids(known, self.ids, self._options.policies)
        partitions = chosen_partitions(topics.values(), self._options.partitions)
        if self._options.start == "latest":
            read_positions = self.writer.read_positions
            fix_start(self._table, self._options, [*topics.values()], read_positions, reach_of)
        return partitions

    def begin(
        self, partitions: Sequence[Partition], reach: Mapping[Partition, Reach]
    ) -> dict[Partition, int]:
        """Add partitions to the writer; return the offsets at which to begin reading them.

        Each begins where the table stands, or will stand when all gathered files are committed. If
        this raises, the partitions are not added, and the next `check_topics` returns them again.
        """
        positions = self.writer.read_positions()
        if self.gate is None:
            self._check_earlier_topics(positions)
        applications = {partition: self._application(partition) for partition in partitions}
        known: dict[Partition, int | None] = {}
        for partition, application in applications.items():
            known[partition] = positions.get(str(application))
        begins = self.begin_at(known, reach)
        # Only now: a partition of the writer counts as one that is read
        self.writer.applications |= applications
        self.writer.positions |= known
        late_starts: dict[Partition, int] = {}
        for partition, begin in begins.items():
            is_new = known[partition] is None and partition not in self._late
            # A run until empty that reads no message of a partition leaves no position of it: the
            # next run would report the same start again
            is_read = begin < reach[partition].high or not self._options.until_empty
            if begin and is_new and is_read:
                late_starts[partition] = begin
        self._report_late_starts(late_starts)
        return begins

    def _application(self, partition: Partition) -> Application:
        return Application(
            stream=self._options.name, partition=partition, topic_id=self.ids[partition.topic]
        )

    def _check_earlier_topics(self, positions: Mapping[str, int]) -> None:
        """Raise TopicChangedError while gathered rows of an earlier topic wait.

        The earlier topic has the name of one that the stream now begins to read. A direct commit of
        the new topic's rows would overtake the gathered ones.
        """
        known = known_positions(positions, self._options.name)
        begun: set[str] = set()
        for application in known:
            if self.ids.get(application.partition.topic) == application.topic_id:
                begun.add(application.partition.topic)
        new_topics = self.ids.keys() - begun
        if not new_topics:
            return
        listing = GatheredFolder(self._table.storage, self._table.log.head().root.table_id).look()
        # After the listing: a committer that runs meanwhile commits and deletes files
        committed = self._table.log.head().positions
        for application in listing.headers:
            topic = application.partition.topic
            is_of_new_topic = application.stream == self._options.name and topic in new_topics
            if not is_of_new_topic or application.topic_id == self.ids[topic]:
                continue
            chain = listing.chain(application, committed.get(str(application)))
            if chain.files:
                command = committer_command(self._table.uri, self._options.name)
                raise TopicChangedError(
                    f"{topic} was deleted and created again, and gathered files hold rows of the "
                    f"earlier topic, which must be committed first: run `{command}`",
                    topic,
                )

    def _report_late_starts(self, begins: Mapping[Partition, int]) -> None:
        """Report partitions of which Kafka has deleted the first messages, each once.

        That is not a loss, as the stream had read nothing there. But the table will lack the
        deleted messages.
        """
        self._late |= set(begins)
        for partition, begin in begins.items():
            self._tracker.begin(partition, begin, self.ids[partition.topic])
        if begins:
            starts = ", ".join(f"{partition}@{begin}" for partition, begin in begins.items())
            logger.warning(
                "reading begins at %s: Kafka has deleted the earlier messages, of which this "
                "stream had read none; if the table needs them, ingest them from elsewhere",
                starts,
            )

    def begin_at(
        self, positions: Mapping[Partition, int | None], reach: Mapping[Partition, Reach]
    ) -> dict[Partition, int]:
        """Return for each position the next offset that Kafka still has.

        Deleted messages between the two are reported, or raise GapError, as the options say.
        """
        deleted: dict[Partition, int] = {}
        for partition, position in positions.items():
            if reach[partition].low > (position or 0):
                deleted[partition] = reach[partition].low
        if deleted:
            self._check_gathered(deleted)
        return {
            partition: self._begin_at(partition, position, reach[partition])
            for partition, position in positions.items()
        }

    def _check_gathered(self, oldest: Mapping[Partition, int]) -> None:
        """Raise GapError if gathered files hold messages that Kafka has deleted.

        The files may be the only copy of the messages, and must not be passed over. `oldest` are
        the first offsets that Kafka still has.
        """
        listing = GatheredFolder(self._table.storage, self._table.log.head().root.table_id).look()
        committed = self._table.log.head().positions
        for partition, low in oldest.items():
            application = self._application(partition)
            name = str(application)
            chain = listing.chain(application, committed.get(name))
            problem = f"{partition}: Kafka has deleted the messages before offset {low}"
            if self.gate is None and chain.files and chain.files[0].low < low:
                command = committer_command(self._table.uri, self._options.name)
                raise GapError(
                    f"{problem}, but gathered files hold the offsets from {chain.files[0].low} to "
                    f"{chain.bounds[-1]}: commit the files first: run `{command}`"
                )
            first = listing.first_offset(application)
            has_stuck_files = name not in committed and not chain.files
            if has_stuck_files and first is not None and first < low:
                cause = listing.cause(application, listing.stuck(committed))
                raise GapError(
                    f"{problem}. Gathered files hold such messages, from offset {first} on, but "
                    f"cannot be committed: {cause}. To give these messages up, delete all files in "
                    "their folder"
                )

    def _begin_at(self, partition: Partition, position: int | None, reach: Reach) -> int:
        """Return the next offset that Kafka still has.

        Report lost offsets, or raise for them.
        """
        application = self._application(partition)
        with self._reporting_changes():
            begin = plan_begin(application, position, reach, self._options.policies)
        if begin.missing:
            self.totals.missing += begin.missing
            self._tracker.gap(partition, position or 0, begin.offset, application.topic_id)
            logger.warning("%s: %d offsets from %s on are lost", partition, begin.missing, position)
        return begin.offset

    def ends(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        """Return the end of each partition in Kafka, open transactions included."""
        return self._topics.ends(partitions)

    def check_topics(self) -> list[Partition]:
        """Return partitions that are not read yet.

        Raise if a topic was deleted or created again.

        It must be called before each commit. With chosen partitions it returns none.
        """
        known = self.writer.applications
        with self._reporting_changes():
            topics = self._topics.describe(self._options.topics)
            for name, topic in topics.items():
                if topic.id != self.ids[name]:
                    # None of its partitions is known if the first `begin` failed
                    of_topic = (part for part in known if part.topic == name)
                    partition = next(of_topic, Partition(topic=name, number=0))
                    position = self.writer.positions.get(partition) or 0
                    raise changed_topic_error(partition, position, self.ids[name], topic.id)
        if self._options.partitions:
            return []
        current = chosen_partitions(topics.values(), ())
        return sorted(set(current) - set(known))

    @contextmanager
    def _reporting_changes(self) -> Iterator[None]:
        """Report a changed topic to the tracker, before its error stops the stream."""
        try:
            yield
        except (TopicChangedError, UnknownTopicError) as error:
            if error.topic in self.ids:
                self._tracker.topic_changed(error.topic)
            raise
