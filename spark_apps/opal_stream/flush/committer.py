"""The committer of a stream: it commits the gathered files of the processes, each file once.

A commit takes every partition from where the table stands to the end of a file, as a stream without
gathering does. If two committers run by mistake, one is fenced off, lists the folder again, and
sees that the other has committed the files. A file that cannot be committed holds back its own
partition only.
"""

import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import zip_longest

import pyarrow as pa

from opal_lake.definition.positions import Advance
from opal_lake.definition.table_spec import TableSpec
from opal_lake.errors import FencedError, FormatError, InvalidInputError, count_text
from opal_lake.operations.ingest import Ingest
from opal_lake.result import JobResult
from opal_lake.table import Table
from opal_lake.write.ingest_job import ingest
from opal_stream.backoff import Backoff
from opal_stream.flush.options import Totals
from opal_stream.flush.writer import RETRYABLE
from opal_stream.formats.rows import DecodedRows
from opal_stream.gathered.file import Header
from opal_stream.gathered.folder import Chain, GatheredFolder, Listing, ready_chains
from opal_stream.kafka.applications import Application, check_stream
from opal_stream.kafka.consumed import Consumed
from opal_stream.kafka.topics import Partition
from opal_stream.same_table import follow
from opal_stream.timeouts import GIVE_UP_S
from opal_stream.tracking.events import FlushEvents, Tracker

_CHECK_S = 3.0  # between two checks of an idle committer that the table is the same
_IDLE_LOOKS = 4  # an idle committer lists the folder so often in each interval
_MAX_SLEEP_S = 0.1  # a signal handler can only set a flag, which is read between two sleeps
logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitterOptions:
    """The stream whose files are committed, and the limits of a commit.

    A commit reads no more files once it has `bytes` of rows.
    """

    name: str = "main"
    interval_s: float = 1.0
    bytes: int = 64 << 20
    until_empty: bool = False
    give_up_s: float = GIVE_UP_S

    def __post_init__(self) -> None:
        check_stream(self.name)


@dataclass(slots=True, kw_only=True)
class Gathered:
    """The files of one commit, with their rows, messages and positions.

    A commit has one topic id for each topic name: old and new partitions of a topic that was
    created again go into different commits.
    """

    files: list[Header] = field(default_factory=list)
    row_parts: list[DecodedRows] = field(default_factory=list)
    consumed: dict[Partition, Consumed] = field(default_factory=dict)
    advances: dict[str, Advance] = field(default_factory=dict)
    ids: dict[str, str] = field(default_factory=dict)

    def fits(self, header: Header) -> bool:
        """Return whether a file continues its partition and has the same topic id."""
        application = header.application
        advance = self.advances.get(str(application))
        if advance is not None:
            return advance.end == header.low
        known_id = self.ids.get(application.partition.topic, application.topic_id)
        return known_id == application.topic_id

    def add(self, header: Header, rows: DecodedRows) -> None:
        """Add a file that fits."""
        application = header.application
        name, partition = str(application), application.partition
        self.files.append(header)
        self.row_parts.append(rows)
        self.ids[partition.topic] = application.topic_id
        if name not in self.advances:
            self.advances[name] = Advance(start=header.low, end=header.low, first=header.first)
        self.advances[name] = replace(self.advances[name], end=header.high)
        if partition in self.consumed:
            self.consumed[partition] = self.consumed[partition].joined(header.consumed)
        else:
            self.consumed[partition] = replace(header.consumed)

    @property
    def max_bad(self) -> int | None:
        """The number of rows that may be put aside; None for no limit.

        The number is unlimited if all processes put bad messages aside. Otherwise it is the number
        of rows that the processes themselves found bad.
        """
        if all(header.quarantine for header in self.files):
            return None
        return sum(header.bad for header in self.files)

    def rows_for(self, spec: TableSpec) -> pa.Table:
        return pa.concat_tables([part.fitted(spec).rows for part in self.row_parts])


class Committer:
    """One process that commits for one stream of one table.

    `stop` may be called from a signal handler.
    """

    def __init__(
        self, table: Table, options: CommitterOptions, tracker: Tracker | None = None
    ) -> None:
        self.table = table
        self.options = options
        self.totals = Totals()
        self._tracker = tracker or Tracker()
        self._head = table.log.head()
        self._folder = GatheredFolder(table.storage, self._head.root.table_id)
        self._stuck: set[str] = set()  # the paths of stuck files in the last listing
        self._problems: dict[str, str] = {}  # by path: why a file is stuck in two listings
        self._unsure: Gathered | None = None  # files of a commit that failed, but may have landed
        self._one_by_one = 0  # commits of one file each that are still to be made
        self._check_s = 0.0  # when an idle committer checks that the table is the same
        self._has_more = False
        self._stopping = False

    def stop(self) -> None:
        """Commit the gathered files once more, and end."""
        self._stopping = True

    def run(self) -> Totals:
        """Run until stopped, or until empty; raise if files could not be committed."""
        backoff: Backoff | None = None
        try:
            while True:
                # Read before the turn, so that files gathered before `stop` are still committed
                is_last = self._stopping
                began_s = time.monotonic()
                try:
                    files = self._turn()
                    backoff = None
                except RETRYABLE as error:
                    backoff = backoff or Backoff(
                        what="listing or committing gathered files",
                        give_up_s=self.options.give_up_s,
                    )
                    backoff.wait(error, lambda: None)
                    continue
                if self._has_more:
                    continue
                if is_last or (self.options.until_empty and not files):
                    break
                looks = 1 if files else _IDLE_LOOKS
                self._pause(began_s + self.options.interval_s / looks)
        finally:
            self._tracker.close()
        if self.options.until_empty and self._problems:
            count = count_text(len(self._problems), "gathered file")
            problems = "; ".join(self._problems.values())
            raise FormatError(f"{count} could not be committed: {problems}")
        return self.totals

    def _pause(self, until_s: float) -> None:
        if self.options.until_empty:
            return
        while not self._stopping:
            left_s = until_s - time.monotonic()
            if left_s <= 0:
                return
            time.sleep(min(left_s, _MAX_SLEEP_S))

    def _turn(self) -> int:
        """List the folder, make at most one commit, and return the number of its files."""
        # The folder before the head: rows of a file that is committed in between are in the head
        listing = self._folder.look()
        now_s = time.monotonic()
        is_due = bool(listing.paths) or now_s >= self._check_s
        self._head = follow(self.table.log, self._head, is_checked=is_due)
        if is_due:
            self._check_s = time.monotonic() + _CHECK_S
        if self._unsure is not None and self._has_landed(self._unsure):
            self._count(self._unsure, JobResult(operation="ingest", table=self.table.uri), 0.0)
        self._unsure = None
        self._folder.delete(listing.passed(self._head.positions))
        gathered = self._read(listing)
        self._report_stuck(listing)
        if gathered.files:
            self._commit(gathered)
        return len(gathered.files)

    def _has_landed(self, gathered: Gathered) -> bool:
        positions = self._head.positions
        return all(
            positions.get(name) == advance.end for name, advance in gathered.advances.items()
        )

    def _chains(self, listing: Listing) -> Iterator[Chain]:
        """Yield the files of each partition of this stream that can be committed now."""
        overtaken = listing.overtaken(self._head.positions)
        for application in listing.headers:
            if application.stream != self.options.name or application in overtaken:
                continue
            chain = listing.chain(application, self._head.positions.get(str(application)))
            if chain.files:
                yield chain

    def _read(self, listing: Listing) -> Gathered:
        """Read the rows of one commit, and note whether files are left for the next one.

        It takes the first file of each partition, then the second ones, up to the limit of bytes.
        """
        chains = list(self._chains(listing))
        ready = ready_chains(chains)
        files: list[Header] = []
        for nth_files in zip_longest(*(chain.files for chain in ready)):
            files += [header for header in nth_files if header is not None]
        count = 1 if self._one_by_one else self._enough(files)
        self._has_more = count < len(files) or len(ready) < len(chains)
        gathered, blocked = Gathered(), set[Application]()
        for header, rows in self._folder.read_rows(files[:count], self._head.spec):
            is_blocked = header.application in blocked
            # A file that is gone or damaged holds back the later files of its partition
            if is_blocked or rows is None or not gathered.fits(header):
                blocked.add(header.application)
                self._has_more = True
            else:
                gathered.add(header, rows)
        return gathered

    def _enough(self, files: list[Header]) -> int:
        """Return how many of the files fill one commit, at least one."""
        size = 0
        for count, header in enumerate(files):
            if size >= self.options.bytes:
                return max(1, count)
            size += header.plain_size
        return max(1, len(files))

    def _report_stuck(self, listing: Listing) -> None:
        """Log each file that cannot be committed, once.

        A listing takes time: a file is stuck only if two listings in a row say so.
        """
        stuck = listing.stuck(self._head.positions, self.options.name)
        newly_stuck = stuck.keys() - self._stuck
        if newly_stuck:
            self._has_more = True  # the next listing follows immediately, and confirms them
        problems = {path: reason for path, reason in stuck.items() if path in self._stuck}
        unlogged = problems.keys() - self._problems.keys()
        for path in sorted(unlogged):
            logger.warning("%s", problems[path])
        self._stuck, self._problems = set(stuck), problems
        self._tracker.stuck(len(problems))

    def _commit(self, gathered: Gathered) -> None:
        began_s, files = time.monotonic(), gathered.files
        operation = Ingest(
            gathered,
            positions=gathered.advances,
            metadata="inline",
            on_bad_rows="quarantine",
            reject_threshold=gathered.max_bad,
        )
        self._one_by_one = max(0, self._one_by_one - 1)
        try:
            result = ingest(
                self.table, lambda spec, _: gathered.rows_for(spec), operation, hurried=True
            )
        except FencedError as error:
            logger.warning(
                "another committer was faster; this one lists the folder again: %s", error
            )
            return
        except RETRYABLE:  # the commit may have landed: the next turn checks that
            self._unsure = gathered
            raise
        except InvalidInputError as error:
            self._has_more = True
            if len(files) > 1:  # commits of one file each find the bad file
                self._one_by_one = len(files)
                return
            self._one_by_one = 0
            self._folder.refuse(
                files[0],
                f"the table refuses its rows: {error}\nOr delete the file, and start its stream "
                "again with on_bad_message='quarantine'",
            )
            return
        # Only after the commit: until then the files may be the only copy of their messages
        self._folder.delete([header.path for header in files])
        self._count(gathered, result, time.monotonic() - began_s)

    def _count(self, gathered: Gathered, result: JobResult, took_s: float) -> None:
        bad = result.counts.get("rejected", sum(header.bad for header in gathered.files))
        self.totals.add_flush(gathered.consumed.values(), bad=bad, version=result.version)
        events = FlushEvents(
            consumed=gathered.consumed,
            version=result.version,
            took_s=took_s,
            bad=bad,
            topic_ids=gathered.ids,
        )
        self._tracker.flushed(events)
