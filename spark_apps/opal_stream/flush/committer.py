"""The committer of a stream: what its processes gathered, by intervals, in one commit, each file once.

A commit takes every partition from where the table stands to the end of a file, as a stream without gathering does: of two committers by
mistake one is fenced off, looks again, and finds the files of the other committed. What cannot be committed holds back its own partition.
"""

import logging
import time
from dataclasses import dataclass, field, replace
from itertools import accumulate, zip_longest

import pyarrow as pa

from opal_lake.definition.positions import Advance
from opal_lake.definition.table_spec import TableSpec
from opal_lake.errors import FencedError, FormatError, InvalidInputError
from opal_lake.operations.ingest import Ingest
from opal_lake.result import JobResult
from opal_lake.table import Table
from opal_lake.write.ingest_job import ingest
from opal_stream.backoff import Backoff
from opal_stream.flush.options import Totals
from opal_stream.flush.writer import PASSING
from opal_stream.formats.rows import fitted
from opal_stream.gathered.file import Header
from opal_stream.gathered.folder import Chain, GatheredFolder, Listing, in_turn
from opal_stream.kafka.applications import Application, check_stream
from opal_stream.kafka.taken import Taken
from opal_stream.kafka.topics import Partition
from opal_stream.same_table import follow
from opal_stream.timeouts import GIVE_UP_S
from opal_stream.tracking.events import FlushEvents, Tracker

_CHECK_S = 3.0
_LOOKS, _LONGEST_PAUSE_S = 4, 0.1  # the folder is listed so often in an interval
logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitterOptions:
    """Whose files, and how often; a commit reads no more files once it has so many bytes of rows."""

    name: str = "main"
    interval_s: float = 1.0
    bytes: int = 64 << 20
    until_empty: bool = False
    give_up_s: float = GIVE_UP_S

    def __post_init__(self) -> None:
        check_stream(self.name)


@dataclass(slots=True, kw_only=True)
class Gathered:
    """For one commit. Of a topic that was made anew, old and new partitions go into different ones."""

    files: list[Header] = field(default_factory=list)
    parts: list[pa.Table] = field(default_factory=list)
    taken: dict[Partition, Taken] = field(default_factory=dict)
    advances: dict[str, Advance] = field(default_factory=dict)
    ids: dict[str, str] = field(default_factory=dict)

    def fits(self, header: Header) -> bool:
        name, partition = str(header.application), header.application.partition
        if name in self.advances:
            return self.advances[name].end == header.low
        return (
            self.ids.get(partition.topic, header.application.topic_id)
            == header.application.topic_id
        )

    def add(self, header: Header, rows: pa.Table) -> None:
        name, partition, new = str(header.application), header.application.partition, header.taken
        self.files.append(header)
        self.parts.append(rows)
        self.ids[partition.topic] = header.application.topic_id
        advance = self.advances.get(
            name, Advance(start=header.low, end=header.low, first=header.first)
        )
        self.advances[name] = replace(advance, end=header.high)
        self.taken[partition] = (
            self.taken[partition].joined(new) if partition in self.taken else replace(new)
        )

    @property
    def most_bad(self) -> int | None:
        """How many rows may be put aside: those that their processes found, and any where one puts aside whatever is bad."""
        if all(header.quarantine for header in self.files):
            return None
        return sum(header.bad for header in self.files)

    def rows_for(self, spec: TableSpec) -> pa.Table:
        return pa.concat_tables([fitted(part, spec) for part in self.parts])


class Committer:
    """One process, one table, one stream. `stop` may be called from a signal handler."""

    def __init__(
        self, table: Table, options: CommitterOptions, tracker: Tracker | None = None
    ) -> None:
        self.table = table
        self.options = options
        self.totals = Totals()
        self._tracker = tracker or Tracker()
        self._head = table.log.head()
        self._folder = GatheredFolder(table.storage, self._head.root.table_id)
        self._stuck: set[str] = set()
        self._problems: dict[str, str] = {}
        self._unsure: Gathered | None = None
        self._one_by_one = 0
        self._check_s = (
            0.0  # when to look whether the table is the same, though nothing is to be done
        )
        self._has_more = False
        self._stopping = False

    def stop(self) -> None:
        """Commit what lies there, and end."""
        self._stopping = True

    def run(self) -> Totals:
        """Until it is stopped, or has committed what could be. Then what could not be is an error."""
        backoff: Backoff | None = None
        try:
            while True:
                is_last, began_s = self._stopping, time.monotonic()
                try:
                    files = self._turn()
                    backoff = None
                except PASSING as error:
                    backoff = backoff or Backoff(
                        what="a look for gathered files, or their commit,",
                        give_up_s=self.options.give_up_s,
                    )
                    backoff.wait(error, lambda: None)
                    continue
                if self._has_more:
                    continue
                if is_last or (self.options.until_empty and not files):
                    break
                self._pause(began_s + self.options.interval_s / (1 if files else _LOOKS))
        finally:
            self._tracker.close()
        if self.options.until_empty and self._problems:
            raise FormatError(
                f"not all could be committed that was gathered: {'; '.join(self._problems.values())}"
            )
        return self.totals

    def _pause(self, until_s: float) -> None:
        while (
            not self._stopping
            and not self.options.until_empty
            and (left_s := until_s - time.monotonic()) > 0
        ):
            time.sleep(min(left_s, _LONGEST_PAUSE_S))

    def _turn(self) -> int:
        """One look, and at most one commit; how many files it has."""
        listing = self._folder.look()
        is_due = bool(listing.paths) or time.monotonic() >= self._check_s
        self._head = follow(self.table.log, self._head, is_checked=is_due)
        self._check_s = time.monotonic() + _CHECK_S if is_due else self._check_s
        positions = self._head.positions
        if self._unsure is not None and all(
            positions.get(name) == advance.end for name, advance in self._unsure.advances.items()
        ):
            self._count(self._unsure, JobResult(operation="ingest", table=self.table.uri), 0.0)
        self._unsure = None
        self._folder.delete(listing.passed(positions))
        gathered = self._read(listing)
        self._tell(listing)
        if gathered.files:
            self._commit(gathered)
        return len(gathered.files)

    def _chains(self, listing: Listing) -> list[Chain]:
        """What can be committed of each partition of this stream."""
        late = listing.overtaken(self._head.positions)
        own = [
            application
            for application in listing.headers
            if application.stream == self.options.name and application not in late
        ]
        chains = [
            listing.chain(application, self._head.positions.get(str(application)))
            for application in own
        ]
        return [chain for chain in chains if chain.files]

    def _read(self, listing: Listing) -> Gathered:
        """The first files of each partition, then the second ones, until they are enough for a commit.

        A topic that was made anew waits until what can be committed of the one before it is.
        """
        chains = self._chains(listing)
        turn = in_turn(chains)
        ranks = zip_longest(*(chain.files for chain in turn))
        files = [header for rank in ranks for header in rank if header is not None]
        sizes = accumulate((header.plain_size for header in files), initial=0)
        enough = 1 if self._one_by_one else max(1, sum(size < self.options.bytes for size in sizes))
        self._has_more = enough < len(files) or len(turn) < len(chains)
        gathered, blocked = Gathered(), set[Application]()
        for header, rows in self._folder.read_rows(files[:enough], self._head.spec):
            if header.application in blocked or rows is None or not gathered.fits(header):
                blocked.add(header.application)
                self._has_more = True
            else:
                gathered.add(header, rows)
        return gathered

    def _tell(self, listing: Listing) -> None:
        """Once of each."""
        stuck = listing.stuck(self._head.positions, self.options.name)
        self._has_more |= not stuck.keys() <= self._stuck
        problems = {path: why for path, why in stuck.items() if path in self._stuck}
        for path in sorted(problems.keys() - self._problems.keys()):
            logger.warning("%s", problems[path])
        self._stuck, self._problems = set(stuck), problems
        self._tracker.stuck(len(problems))

    def _commit(self, gathered: Gathered) -> None:
        began_s, files = time.monotonic(), gathered.files
        asked = Ingest(
            gathered,
            positions=gathered.advances,
            metadata="inline",
            on_bad_rows="quarantine",
            reject_threshold=gathered.most_bad,
        )
        self._one_by_one = max(0, self._one_by_one - 1)
        try:
            result = ingest(
                self.table, lambda spec, _: gathered.rows_for(spec), asked, hurried=True
            )
        except FencedError as error:
            logger.warning("another committer was faster, and this one looks again: %s", error)
            return
        except PASSING:  # it may have landed
            self._unsure = gathered
            raise
        except InvalidInputError as error:  # of one file, which is looked for
            self._has_more, self._one_by_one = True, len(files) if len(files) > 1 else 0
            if not self._one_by_one:
                self._folder.refuse(
                    files[0],
                    f"its rows cannot go into the table: {error}\nOr delete it, and start its stream again with "
                    "--on-bad-message quarantine",
                )
            return
        self._folder.delete([header.path for header in files])
        self._count(gathered, result, time.monotonic() - began_s)

    def _count(self, gathered: Gathered, result: JobResult, took_s: float) -> None:
        bad = result.counts.get("rejected", sum(header.bad for header in gathered.files))
        self.totals.flushes += 1
        self.totals.records += sum(taken.records for taken in gathered.taken.values())
        self.totals.bad += bad
        self.totals.version = result.version if result.version is not None else self.totals.version
        events = FlushEvents(
            taken=gathered.taken,
            version=result.version,
            took_s=took_s,
            bad=bad,
            topic_ids=gathered.ids,
        )
        self._tracker.flushed(events)
