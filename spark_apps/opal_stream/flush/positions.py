"""The positions of a stream: where the table stands, and where reading goes on.

It also checks that the topics are still those that were read.
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
from opal_stream.kafka.offsets import changed_topic, check_topic_ids, plan_begin
from opal_stream.kafka.topics import Partition, Reach, Topics, chosen_partitions
from opal_stream.tracking.events import Tracker

logger = logging.getLogger(__name__)


class StreamPositions:
    """The positions of one stream, whichever process reads its messages."""

    def __init__(
        self, table: Table, connection: Connection, options: StreamOptions, tracker: Tracker
    ) -> None:
        self.totals = Totals()
        self.gate: Gate | None = None
        policy: dict[str, Any] = {
            "table": table,
            "on_bad_message": options.on_bad_message,
            "row_form": row_form_of(options.formats),
            "give_up_s": options.give_up_s,
            "broker_timeout_s": options.broker_timeout_s,
        }
        if options.commit == "gathered":
            self.gate = Gate(table.storage, options.name, options.gathered_bytes, table.uri)
            self.writer: Writer = Publisher(gate=self.gate, **policy)
        else:
            self.writer = Writer(**policy)
        self.ids: dict[str, str] = {}
        self._late: set[Partition] = set()
        self._table = table
        self._topics = Topics(connection)
        self._options = options
        self._tracker = tracker

    def describe(self, reach_of: ReachOf) -> list[Partition]:
        """Return the partitions to read.

        Raises TopicChangedError for a topic other than that of the table's positions, unless the
        options allow it. Topics that were never read get their start, if it is "latest".
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
        """Return the offsets at which to begin reading these partitions, too.

        Each begins where the table stands, or will stand when all gathered files are committed.
        """
        positions = self.writer.read_positions()
        if self.gate is None:
            self._check_before(positions)
        for partition in partitions:
            application = Application(
                stream=self._options.name, partition=partition, topic_id=self.ids[partition.topic]
            )
            self.writer.applications[partition] = application
            self.writer.positions[partition] = positions.get(str(application))
        known = {partition: self.writer.positions[partition] for partition in partitions}
        begins = self.begin_at(known, reach)
        late_starts: dict[Partition, int] = {}
        for partition, begin in begins.items():
            is_new = known[partition] is None and partition not in self._late
            # A run until empty that reads nothing of it leaves no position: the next run would
            # find it as it is, and report it again
            is_read = begin < reach[partition].high or not self._options.until_empty
            if begin and is_new and is_read:
                late_starts[partition] = begin
        self._report_late_starts(late_starts)
        return begins

    def _check_before(self, positions: Mapping[str, int]) -> None:
        """Raise TopicChangedError while gathered rows of an earlier topic wait.

        A direct commit of the new topic's rows would overtake them.
        """
        known = known_positions(positions, self._options.name)
        begun = set()
        for application in known:
            if self.ids.get(application.partition.topic) == application.topic_id:
                begun.add(application.partition.topic)
        new = self.ids.keys() - begun
        if not new:
            return
        listing = GatheredFolder(self._table.storage, self._table.log.head().root.table_id).look()
        # After the listing: a committer may be at work
        committed = self._table.log.head().positions
        for application in listing.headers:
            topic = application.partition.topic
            if application.stream != self._options.name or topic not in new:
                continue
            if application.topic_id == self.ids[topic]:
                continue
            chain = listing.chain(application, committed.get(str(application)))
            if chain.files:
                command = committer_command(self._table.uri, self._options.name)
                raise TopicChangedError(
                    f"{topic} was deleted and created again, and gathered files hold rows of the "
                    f"topic before, which come first: commit them, by `{command}`",
                    topic,
                )

    def _report_late_starts(self, begins: Mapping[Partition, int]) -> None:
        """Report partitions that begin after their first message, each once.

        The table loses nothing, but it will not have all that the topic ever held.
        """
        self._late |= set(begins)
        for partition, begin in begins.items():
            self._tracker.begin(partition, begin, self.ids[partition.topic])
        if begins:
            starts = ", ".join(f"{partition}@{begin}" for partition, begin in begins.items())
            logger.warning(
                "reading begins at %s: Kafka has deleted what came before, and this stream had "
                "read nothing there yet; if the table needs it, ingest it from elsewhere",
                starts,
            )

    def begin_at(
        self, positions: Mapping[Partition, int | None], reach: Mapping[Partition, Reach]
    ) -> dict[Partition, int]:
        """Return the next offsets that Kafka still has.

        A gap before one is reported, or stops the stream.
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
        """Raise GapError where gathered files hold messages that Kafka has deleted.

        They may be the only copy, and must not be passed over.
        """
        listing = GatheredFolder(self._table.storage, self._table.log.head().root.table_id).look()
        committed = self._table.log.head().positions
        for partition, low in oldest.items():
            application = self.writer.applications[partition]
            name = str(application)
            chain = listing.chain(application, committed.get(name))
            first = listing.first_offset(application)
            where = f"{partition}: Kafka has nothing before {low} any more"
            if self.gate is None and chain.files and chain.files[0].low < low:
                command = committer_command(self._table.uri, self._options.name)
                raise GapError(
                    f"{where}, but gathered files hold the offsets from {chain.files[0].low} to "
                    f"{chain.bounds[-1]}: commit them first, by `{command}`"
                )
            if name not in committed and not chain.files and first is not None and first < low:
                cause = listing.cause(application, listing.stuck(committed))
                raise GapError(
                    f"{where}, and gathered files from offset {first} on, which hold such "
                    f"messages, cannot be committed: {cause}. If they are given up, delete all in "
                    "their folder"
                )

    def _begin_at(self, partition: Partition, position: int | None, reach: Reach) -> int:
        application = self.writer.applications[partition]
        with self._reporting_changes():
            begin = plan_begin(application, position, reach, self._options.policies)
        if begin.missing:
            self.totals.missing += begin.missing
            self._tracker.gap(partition, position or 0, begin.offset, application.topic_id)
            logger.warning("%s: %d offsets from %s on are lost", partition, begin.missing, position)
        return begin.offset

    def ends(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        """Return where Kafka ends, open transactions included."""
        return self._topics.ends(partitions)

    def check_topics(self) -> list[Partition]:
        """Return new partitions; raise if a topic was deleted or created again.

        To be called before each commit.
        """
        known = self.writer.applications
        with self._reporting_changes():
            topics = self._topics.describe(self._options.topics)
            for name, topic in topics.items():
                if topic.id != self.ids[name]:
                    partition = next(part for part in known if part.topic == name)
                    position = self.writer.positions[partition] or 0
                    raise changed_topic(partition, position, self.ids[name], topic.id)
        if self._options.partitions:
            return []
        return sorted(set(chosen_partitions(topics.values(), ())) - set(known))

    @contextmanager
    def _reporting_changes(self) -> Iterator[None]:
        """Report a topic that changed, before its error stops the stream."""
        try:
            yield
        except (TopicChangedError, UnknownTopicError) as error:
            if error.topic in self.ids:
                self._tracker.topic_changed(error.topic)
            raise
