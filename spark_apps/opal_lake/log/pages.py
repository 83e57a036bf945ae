"""Pages of the log: copies of neighbouring commits and of their small segment logs (FORMAT, §6).

A reader of a range of versions reads one page instead of two files for each version. Pages are
derived: deleting one loses nothing, and a damaged page, or one of another chain, is not used.

Every `checkpoint_commits` versions, the writer of the checkpoint stores a page before it, with the
commits since the last checkpoint. If the version is a multiple of 16 times `checkpoint_commits`, or
256 times, and so on, the writer merges the pages of as many versions into one page, of at most
1,024 versions and 4 MiB. Thus each copy is written about three times. A writer reads a page for
every four commits, and a feed reads at most 30 pages and one more for each 1,024 versions. If the
merged pages lack copies of more than 64 commits, or of a commit that cannot be read, the page has
only the commits since the last checkpoint.
"""

import zlib
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import numpy.typing as npt

from opal_lake import checked, layout
from opal_lake.data.segment import LogFile
from opal_lake.decoding import decoding
from opal_lake.errors import FormatError, NotFoundError
from opal_lake.events.segment_log import (
    SHORT_EVENTS,
    Events,
    RowIds,
    read_events,
    recent_events,
)
from opal_lake.log.commit import (
    FORMAT_VERSION,
    Commit,
    canonical_json,
    decode_commit,
    encode_commit,
)
from opal_lake.log.sections import decode_lines, encode_lines
from opal_lake.log.snapshot import Snapshot
from opal_lake.log.tuning import Tuning
from opal_lake.storage.protocol import READERS, Storage
from opal_lake.storage.uris import is_local
from opal_lake.storage.verified import read_sealed

# Versions of a merged page. With more, readers of a narrow range would read too much.
MAX_VERSIONS = 1024
MAX_MERGED_BYTES = 4 << 20  # of the pages that are merged into one
MAX_FRESH_BYTES = 16 << 20  # of copies that are not from other pages, before compression
MAX_COMMIT_BYTES = 64 << 10  # a longer commit is not copied

Line = bytes
# For `decoding`: the document's noun in errors, and their next step
_PAGE = ("a page of the log", "delete it; it is derived and is written again")


@dataclass(frozen=True, slots=True, kw_only=True)
class PageRef:
    """A stored page, as its name describes it. `size` is in bytes."""

    path: str
    first: int
    last: int
    crc32: int
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """The lines of a page: commits by version, and events by segment log."""

    table_id: str
    first: int
    last: int
    commits: Mapping[int, Line]
    events: Mapping[str, Line]

    def commit(self, version: int) -> Commit | None:
        """Return the copy of a commit, None if the page does not hold it."""
        line = self.commits.get(version)
        if line is None:
            return None
        path = layout.commit_path(version)
        commit = decode_commit(line + b"\n", f"the copy of {path} in {layout.LOG_PAGES}")
        if commit.version != version:
            raise FormatError(
                f"the copy of {path} in {layout.LOG_PAGES} holds version {commit.version}; delete "
                "the page; it is derived and is written again"
            )
        return commit

    def copies(self, version: int, write_id: str | None) -> Commit | None:
        """Return the copy of the commit with a write id.

        None if the copy is absent, damaged, or has another write id.
        """
        try:
            commit = self.commit(version)
        except FormatError:
            return None
        if commit is None or commit.write_id != write_id:
            return None
        return commit

    def events_of(self, versions: Container[int]) -> dict[str, Line]:
        """Return the lines with events of some versions, by the path of the segment log."""
        return {path: line for path, line in self.events.items() if _version_of(line) in versions}

    def missing(self) -> list[int]:
        """Return the versions whose commits the page does not hold."""
        versions = range(self.first, self.last + 1)
        return [version for version in versions if version not in self.commits]

    def holds(self, other: "Page") -> bool:
        """Return whether this page has every line of another one, byte for byte."""
        return (
            self.first <= other.first
            and other.last <= self.last
            and other.commits.items() <= self.commits.items()
            and other.events.items() <= self.events.items()
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitRange:
    """Commits in order, and page lines with the events of their segment logs, by path.

    A line is used only if the page's copy of its commit belongs to the chain.
    """

    commits: Sequence[Commit]
    events: Mapping[str, Line] = field(default_factory=dict)

    def read_events(self, storage: Storage, log: LogFile) -> Events:
        """Return the events of a log with their next rows, from a page if possible."""
        line = self.events.get(log.path)
        copied = None if line is None else decode_events_line(line, log)
        if copied is not None:
            return copied
        return _with_next_rows(log, read_events(storage, log, with_next=True))


def own_logs(commit: Commit) -> list[LogFile]:
    """Return the logs with events of the commit itself, without merged logs."""
    return [log for log in commit.actions.add_logs if log.version < 0]


def _with_next_rows(log: LogFile, events: Events) -> Events:
    """Return the events of a log; raise FormatError if they do not name the next rows."""
    if events.next_rows is None:
        raise FormatError(
            f"{log.path} does not name the row that followed each row; restore the file from a "
            "backup"
        )
    return events


def decode_events_line(line: Line, log: LogFile) -> Events | None:
    """Decode the events in a line of a page, None if it is damaged or of another log.

    Logs of two chains may have the same path, so that the line's checksum of the log decides.
    """
    try:
        with decoding(log.path, *_PAGE):
            fields = checked.listed(checked.parse_canonical(line))
            _, path, crc32, segment, offset, until, next_segment, next_offset = fields
            if (path, crc32) != (log.path, log.crc32):
                return None
            next_rows = RowIds(
                segment=np.array(next_segment, np.int64), offset=np.array(next_offset, np.int32)
            )
            events = Events(
                segment=np.array(segment, np.int64),
                offset=np.array(offset, np.int32),
                until=np.array(until, np.int64),
                next_rows=next_rows,
            )
            return events if _matches_log(events, log) else None
    except FormatError:
        return None


def _columns_of(events: Events) -> tuple[npt.NDArray[np.generic], ...]:
    """Return the columns of events that name next rows, in the order of a page line."""
    next_rows = events.next_rows
    assert next_rows is not None
    return events.segment, events.offset, events.until, next_rows.segment, next_rows.offset


def _matches_log(events: Events, log: LogFile) -> bool:
    """Return whether events have the number and times that the commit records."""
    assert events.next_rows is not None
    if any(column.shape != (log.events,) for column in _columns_of(events)):
        return False
    if int(events.offset.min()) < 0:
        return False
    # A next row has an offset; without a next row, segment and offset are NO_ROW
    has_offset = events.next_rows.offset >= 0
    if (has_offset != events.next_rows.is_row).any():
        return False
    until_range = int(events.until.min()), int(events.until.max())
    return until_range == (log.least_until, log.greatest_until)


def _events_line(version: int, log: LogFile, events: Events) -> Line:
    """Encode the events of a log as a line of a page."""
    lists = [column.tolist() for column in _columns_of(events)]
    return canonical_json([version, log.path, log.crc32, *lists])


def _version_of(line: Line) -> int:
    """Return the version of a line of events, without decoding the whole line."""
    return int(line[1 : line.index(b",")])


def _path_of(line: Line) -> str:
    """Return the log's path in a line of events, without decoding the whole line."""
    # The path is the first text of the line, and has no quotes
    begin = line.index(b'"') + 1
    end = line.index(b'"', begin)
    return line[begin:end].decode()


def encode_page(page: Page) -> bytes:
    """Encode a page as lines under zstd: a head, then commits by version, then events."""
    versions = range(page.first, page.last + 1)
    head = {
        "format": FORMAT_VERSION,
        "table_id": page.table_id,
        "first": page.first,
        "last": page.last,
        "absent": page.missing(),
    }
    commits = (page.commits[version] for version in versions if version in page.commits)
    return encode_lines([canonical_json(head), *commits, *page.events.values()])


def decode_page(data: bytes, path: str) -> Page:
    """Decode a page; raise FormatError if its bytes or versions contradict its name."""
    name = layout.log_page_place(path)
    with decoding(path, *_PAGE):
        if name is None or name[2] != zlib.crc32(data):
            raise ValueError("its bytes do not have the checksum in its name")
        lines = decode_lines(data, path)
        head = checked.mapped(checked.parse_canonical(lines[0]))
        first, last = checked.count(head["first"]), checked.count(head["last"])
        if head["format"] != FORMAT_VERSION or (first, last) != name[:2]:
            raise ValueError("its head has another format, or other versions than its name")
        absent = {*checked.counts(head["absent"])}
        is_within = all(first <= version <= last for version in absent)
        commits_end = 1 + (last - first + 1 - len(absent))
        if commits_end > len(lines) or not is_within:
            raise ValueError(
                f"its head says that {commits_end - 1:,} commits follow, but it has {len(lines):,} "
                "lines"
            )
        present = (version for version in range(first, last + 1) if version not in absent)
        return Page(
            table_id=checked.plain_id(head["table_id"]),
            first=first,
            last=last,
            commits=dict(zip(present, lines[1:commits_end], strict=True)),
            events=_by_path(lines[commits_end:]),
        )


def _by_path(lines: Iterable[Line]) -> dict[str, Line]:
    """Return lines of events by the path of their log; raise ValueError for others."""
    events: dict[str, Line] = {}
    for line in lines:
        _version_of(line)  # raises ValueError if it does not begin with a number
        events[_path_of(line)] = line
    return events


def _read_page(storage: Storage, table_id: str, ref: PageRef) -> Page | None:
    """Read a page, None if it is missing, damaged or of another table."""
    try:
        page = decode_page(read_sealed(storage, ref.path), ref.path)
    except (FormatError, NotFoundError):
        return None
    return page if page.table_id == table_id else None


def read_pages(storage: Storage, table_id: str, refs: Sequence[PageRef]) -> list[Page | None]:
    """Read pages, several at once.

    The result has None in place of a page that is missing, damaged or of another table.
    """
    if not refs:
        return []
    with ThreadPoolExecutor(min(READERS, len(refs))) as pool:
        return [*pool.map(partial(_read_page, storage, table_id), refs)]


def read_cover(
    storage: Storage, table_id: str, refs: Iterable[PageRef], first: int, last: int
) -> list[Page]:
    """Read the fewest pages that hold all versions of a range that are in any page.

    If a chosen page cannot be used, the choice is made again without that page.
    """
    usable = {*refs}
    known: dict[PageRef, Page] = {}
    while True:
        chosen = cover(usable, first, last)
        unread = [ref for ref in chosen if ref not in known]
        for ref, page in zip(unread, read_pages(storage, table_id, unread), strict=True):
            if page is None:
                usable.remove(ref)
            else:
                known[ref] = page
        if usable.issuperset(chosen):
            return [known[ref] for ref in chosen]


def list_pages(storage: Storage, first: int = 0, last: int | None = None) -> list[PageRef]:
    """Return the pages with commits of a range, those that end last first.

    Without `last`, the range has no end.
    """
    start_after = ""
    if last is not None:
        # A listing begins with the pages that end last. None is longer than MAX_VERSIONS.
        start_after = layout.log_pages_start_after(last + MAX_VERSIONS)
    refs: list[PageRef] = []
    for ref in _refs(storage, start_after):
        if ref.last < first:
            break
        if last is None or ref.first <= last:
            refs.append(ref)
    return refs


def _refs(storage: Storage, start_after: str) -> Iterator[PageRef]:
    """Yield the stored pages, those that end last first."""
    for entry in storage.list(layout.LOG_PAGES, start_after):
        name = layout.log_page_place(entry.path)
        if name is not None:
            first, last, crc32 = name
            yield PageRef(path=entry.path, first=first, last=last, crc32=crc32, size=entry.size)


def cover(refs: Iterable[PageRef], first: int, last: int) -> list[PageRef]:
    """Choose the fewest pages that hold all versions of a range that are in any page.

    Among pages that end at the same version, the smallest one is chosen.
    """
    ordered = sorted(refs, key=lambda ref: ref.first)
    chosen: list[PageRef] = []
    # Of the pages that begin at or before `version`, the one that ends last
    best: PageRef | None = None
    position = 0
    version = first
    while version <= last:
        while position < len(ordered) and ordered[position].first <= version:
            best = _later_ending(best, ordered[position], last)
            position += 1
        if best is not None and best.last >= version:
            chosen.append(best)
            version = best.last + 1
        elif position < len(ordered):
            version = ordered[position].first
        else:
            break
    return chosen


def _later_ending(best: PageRef | None, other: PageRef, last: int) -> PageRef:
    """Return the page that ends later, up to `last`, or the smaller one if equal."""
    if best is None:
        return other
    return max(best, other, key=lambda ref: (min(ref.last, last), -ref.size))


def useful_pages(storage: Storage, first: int, last: int, tuning: Tuning) -> list[PageRef]:
    """Return the pages that are worth reading for a range of versions.

    A large page with few versions of the range is left out: reading the commits takes less time.
    """
    if last - first < tuning.page_least_versions:
        return []
    refs = list_pages(storage, first, last)
    return [ref for ref in refs if _is_useful(ref, first, last, tuning)]


def _is_useful(ref: PageRef, first: int, last: int, tuning: Tuning) -> bool:
    needed = min(ref.last, last) - max(ref.first, first) + 1
    if needed < tuning.page_least_versions:
        return False
    return ref.size <= needed * tuning.page_commit_bytes


class EventReader:
    """A reader of segment logs that name the next rows; it reads each log once."""

    def __init__(self, storage: Storage) -> None:
        self.storage = storage
        self.known: dict[str, Events] = {}

    def load(self, logs: Sequence[LogFile]) -> None:
        """Read the logs that are not known yet, several at once if the store is remote."""
        for log in logs:
            recent = recent_events(self.storage, log)
            if recent is not None:
                self.known[log.path] = recent
        missing = [log for log in logs if log.path not in self.known]
        read = partial(read_events, self.storage, with_next=True)
        if is_local(self.storage.uri):
            # Starting threads would take longer than the reads
            self.known |= {log.path: read(log) for log in missing}
        elif missing:
            with ThreadPoolExecutor(min(READERS, len(missing))) as pool:
                paths = [log.path for log in missing]
                self.known |= zip(paths, pool.map(read, missing), strict=True)

    def read(self, log: LogFile) -> Events:
        """Return the events of a log, which is read unless it is known already."""
        self.load([log])
        return self.known[log.path]


def span_of(version: int, step: int, fan_in: int) -> int:
    """Return how many versions the page that ends with `version` spans.

    It is `step` times the greatest power of `fan_in` that divides the version, up to MAX_VERSIONS.
    """
    span = step
    while version % (span * fan_in) == 0 and span * fan_in <= MAX_VERSIONS:
        span *= fan_in
    return span


def write_page(
    state: Snapshot,
    step: int,
    read_commit: Callable[[int], Commit],
    events: EventReader,
    *,
    tuning: Tuning,
) -> None:
    """Store the page that ends with a state's version, merged with others if due.

    `step` is the number of versions between two checkpoints. `events` reads the segment logs.
    """
    last = state.version
    known = {commit.version: commit for commit in state.commits}
    # Commits up to the oldest version have expired, and are not copied
    oldest = max(1, state.root.oldest_version + 1)
    begin = min([last - step + 1, *known])
    own_first = max(oldest, begin)
    if own_first > last:
        return
    first = own_first
    table_id = state.root.table_id
    refs: list[PageRef] = []
    span = span_of(last, step, tuning.page_fan_in)
    if span > step:
        wide_first = max(oldest, min(begin, last - span + 1))
        stored = list_pages(state.storage, wide_first, last)
        merged_bytes = sum(ref.size for ref in cover(stored, wide_first, last))
        if merged_bytes <= MAX_MERGED_BYTES:
            first, refs = wide_first, stored
    merged = _merged(read_cover(state.storage, table_id, refs, first, last), table_id, first, last)
    fresh = _fresh_commits(merged.missing(), known, read_commit, tuning.page_max_filled)
    is_incomplete = len(fresh) < len(merged.missing())
    if first < own_first and is_incomplete:
        # Readers would choose this page, because it is long, over pages that have more copies
        merged = _merged([], table_id, own_first, last)
        fresh = _fresh_commits(merged.missing(), known, read_commit, tuning.page_max_filled)
    store_page(state.storage, _with_commits(merged, fresh, events))


def _merged(pages: Iterable[Page], table_id: str, first: int, last: int) -> Page:
    """Return a page with the lines of other pages that are of a range of versions."""
    versions = range(first, last + 1)
    commits: dict[int, Line] = {}
    events: dict[str, Line] = {}
    for page in pages:
        commits |= {number: line for number, line in page.commits.items() if number in versions}
        events |= page.events_of(versions)
    return Page(table_id=table_id, first=first, last=last, commits=commits, events=events)


def _fresh_commits(
    missing: Sequence[int],
    known: Mapping[int, Commit],
    read_commit: Callable[[int], Commit],
    max_filled: int,
) -> list[Commit]:
    """Return missing commits by version: known ones, and others that can be read.

    Others are read only if they are at most `max_filled`.
    """
    unknown = [version for version in missing if version not in known]
    if len(unknown) > max_filled:
        unknown = []

    def read(version: int) -> Commit | None:
        try:
            return read_commit(version)
        except (FormatError, NotFoundError):
            return None  # a reader of these versions will report the fault

    others: list[Commit | None] = []
    if unknown:
        with ThreadPoolExecutor(READERS) as pool:
            others = [*pool.map(read, unknown)]
    fresh = [known[version] for version in missing if version in known]
    fresh += [commit for commit in others if commit is not None]
    return sorted(fresh, key=lambda commit: commit.version)


def _with_commits(page: Page, fresh: Iterable[Commit], reader: EventReader) -> Page:
    """Return the page with copies of more commits and of their short logs.

    Long commits are left out, and also whatever exceeds MAX_FRESH_BYTES.
    """
    commits = {**page.commits}
    events = {**page.events}
    size = 0
    logs: list[tuple[int, LogFile]] = []
    for commit in fresh:
        line = encode_commit(commit).rstrip(b"\n")
        size += len(line)
        if len(line) <= MAX_COMMIT_BYTES and size <= MAX_FRESH_BYTES:
            commits[commit.version] = line
            short_logs = [log for log in own_logs(commit) if log.events <= SHORT_EVENTS]
            logs += [(commit.version, log) for log in short_logs]
    reader.load([log for _, log in logs])
    for version, log in logs:
        log_events = _with_next_rows(log, reader.read(log))
        line = _events_line(version, log, log_events)
        size += len(line)
        if size <= MAX_FRESH_BYTES:
            events[log.path] = line
    return replace(page, commits=commits, events=events)


def store_page(storage: Storage, page: Page) -> None:
    """Store a page. Writers that store the same page at once store the same bytes."""
    data = encode_page(page)
    path = layout.log_page_path(page.first, page.last, zlib.crc32(data))
    storage.put_if_absent(path, data)


def trimmed(page: Page, oldest: int) -> Page:
    """Return the page without the copies of versions up to the oldest one."""
    return _merged([page], page.table_id, oldest + 1, page.last)
