"""Where the table stands in each partition, where reading goes on, and whether the topics are still those that were read."""

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


class Places:
    """Of one stream, whoever reads its messages."""

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
        """The partitions to read. Their topics must be those of which the table has positions, or begin where the options say."""
        topics = self._topics.describe(self._options.topics)
        self.ids = {name: topic.id for name, topic in topics.items()}
        known = known_positions(self.writer.stands(), self._options.name)
        with self._telling():
            check_topic_ids(known, self.ids, self._options.policies)
        partitions = chosen_partitions(topics.values(), self._options.partitions)
        if self._options.start == "latest":
            fix_start(self._table, self._options, [*topics.values()], self.writer.stands, reach_of)
        return partitions

    def begin(
        self, partitions: Sequence[Partition], reach: Mapping[Partition, Reach]
    ) -> dict[Partition, int]:
        """Read these, too: each from where the table stands, or will when all is committed that was gathered."""
        positions = self.writer.stands()
        if self.gate is None:
            self._check_before(positions)
        for partition in partitions:
            application = Application(
                stream=self._options.name, partition=partition, topic_id=self.ids[partition.topic]
            )
            position = positions.get(str(application))
            self.writer.applications[partition] = application
            self.writer.positions[partition] = position
        begins = self.begin_at(
            {partition: self.writer.positions[partition] for partition in partitions}, reach
        )
        new = {
            part: begin
            for part, begin in begins.items()
            if begin and self.writer.positions[part] is None and part not in self._late
        }
        self._tell_late(
            {
                part: begin
                for part, begin in new.items()
                if begin < reach[part].high or not self._options.until_empty
            }
        )
        return begins

    def _check_before(self, stands: Mapping[str, int]) -> None:
        """Of a topic that was made anew, a direct commit would put its rows before those that were gathered of the one before."""
        known = known_positions(stands, self._options.name)
        new = {*self.ids} - {
            one.partition.topic
            for one in known
            if self.ids.get(one.partition.topic) == one.topic_id
        }
        if not new:
            return
        listing = GatheredFolder(self._table.storage, self._table.log.head().root.table_id).look()
        stands = self._table.log.head().positions  # behind the listing: a committer may be at work
        for application in listing.headers:
            topic, chain = (
                application.partition.topic,
                listing.chain(application, stands.get(str(application))),
            )
            is_before = (
                application.stream == self._options.name
                and topic in new
                and application.topic_id != self.ids[topic]
            )
            if is_before and chain.files:
                raise TopicChangedError(
                    f"{topic} was deleted and made anew, and gathered files hold rows of the topic before, which come first: commit them, "
                    f"by `{committer_command(self._table.uri, self._options.name)}`",
                    topic,
                )

    def _tell_late(self, begins: Mapping[Partition, int]) -> None:
        """Once of each partition. Nothing of the table's is lost, but it will not have all that there ever was.

        Not of one of which a run until empty reads nothing: the next run would find it as it is, and tell it again.
        """
        self._late |= set(begins)
        for partition, begin in begins.items():
            self._tracker.begin(partition, begin, self.ids[partition.topic])
        if begins:
            places = ", ".join(f"{partition}@{begin}" for partition, begin in begins.items())
            logger.warning(
                "reading begins at %s: Kafka has deleted what came before, and this stream had read nothing there yet; if the table is to "
                "have that, too, ingest it from elsewhere",
                places,
            )

    def begin_at(
        self, positions: Mapping[Partition, int | None], reach: Mapping[Partition, Reach]
    ) -> dict[Partition, int]:
        """The next offsets that Kafka still has; a gap before one is told of, or stops the stream."""
        deleted = [
            partition
            for partition, position in positions.items()
            if reach[partition].low > (position or 0)
        ]
        if deleted:
            self._check_gathered({partition: reach[partition].low for partition in deleted})
        return {
            partition: self._begin_at(partition, position, reach[partition])
            for partition, position in positions.items()
        }

    def _check_gathered(self, oldest: Mapping[Partition, int]) -> None:
        """Of messages that Kafka has deleted, files may hold the only copy: they are not to be passed over."""
        listing = GatheredFolder(self._table.storage, self._table.log.head().root.table_id).look()
        stands = self._table.log.head().positions
        for partition, low in oldest.items():
            application = self.writer.applications[partition]
            name = str(application)
            chain, first = (
                listing.chain(application, stands.get(name)),
                listing.first_offset(application),
            )
            where = f"{partition}: Kafka has nothing before {low} any more"
            if self.gate is None and chain.files and chain.files[0].low < low:
                held = f"{chain.files[0].low} to {chain.bounds[-1]}"
                raise GapError(
                    f"{where}, but gathered files hold the offsets from {held}: commit them first, by "
                    f"`{committer_command(self._table.uri, self._options.name)}`"
                )
            if name not in stands and not chain.files and first is not None and first < low:
                raise GapError(
                    f"{where}, and gathered files from offset {first} on, which hold such messages, cannot be committed: "
                    f"{listing.cause(application, listing.stuck(stands))}. If they are given up, delete all in their folder"
                )

    def _begin_at(self, partition: Partition, position: int | None, reach: Reach) -> int:
        application = self.writer.applications[partition]
        with self._telling():
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
        """Before each commit: a topic that was made anew stops the stream. Returns partitions that there were not before."""
        known = self.writer.applications
        with self._telling():
            topics = self._topics.describe(self._options.topics)
            for name, topic in topics.items():
                if topic.id != self.ids[name]:
                    partition = next(part for part in known if part.topic == name)
                    raise changed_topic(
                        partition, self.writer.positions[partition] or 0, self.ids[name], topic.id
                    )
        return (
            []
            if self._options.partitions
            else sorted(set(chosen_partitions(topics.values(), ())) - set(known))
        )

    @contextmanager
    def _telling(self) -> Iterator[None]:
        """A topic that is another one now stops the stream, and those who watch it have to know why."""
        try:
            yield
        except (TopicChangedError, UnknownTopicError) as error:
            if error.topic in self.ids:
                self._tracker.topic_changed(error.topic)
            raise
