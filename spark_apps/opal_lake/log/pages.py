"""Pages of the log: copies of neighbouring commits and of their small segment logs (FORMAT, §6).

A reader of a range of versions asks for a page instead of two files a version. Pages are derived:
deleting one loses nothing, and one that is damaged or of another chain is not used.

Whoever stores the checkpoint of a multiple of `checkpoint_commits` stores a page before it, with
the commits since the checkpoint before. Where the version is a multiple of 16, 256, ... times that,
the page takes in the pages of so many versions, up to 1,024 versions and 4 MiB. So each copy is
written three times, a writer reads a page for every four commits, and a feed reads at most 30 pages
and one for each 1,024 versions. Where the merged pages lack copies of more than 64 commits, or of
one that cannot be read, the page holds only the commits since the checkpoint before.
"""

import zlib
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import takewhile

import numpy as np

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

# Versions of a merged page. A larger one makes a narrow range read much more than it needs.
MAX_VERSIONS = 1024
MAX_MERGED_BYTES = 4 << 20  # of the pages that are merged into one
MAX_FRESH_BYTES = 16 << 20  # of commits and events that one page adds, before compression
MAX_COMMIT_BYTES = 64 << 10  # a longer commit is read from its own file

Line = bytes
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
            raise FormatError(f"the copy of {path} in {layout.LOG_PAGES} is of another version")
        return commit

    def copies(self, version: int, write_id: str | None) -> Commit | None:
        """Return the copy of a commit.

        None if it is absent, damaged or of another write.
        """
        try:
            commit = self.commit(version)
        except FormatError:
            return None
        if commit is None or commit.write_id != write_id:
            return None
        return commit

    def events_of(self, versions: Container[int]) -> dict[str, Line]:
        """Return the lines of events of some versions, by segment log."""
        return {path: line for path, line in self.events.items() if _version_of(line) in versions}

    def missing(self) -> list[int]:
        """Return the versions of which the page has no copy."""
        versions = range(self.first, self.last + 1)
        return [version for version in versions if version not in self.commits]

    def holds(self, other: "Page") -> bool:
        """Return whether this page has all that another one has, byte for byte."""
        return (
            self.first <= other.first
            and other.last <= self.last
            and other.commits.items() <= self.commits.items()
            and other.events.items() <= self.events.items()
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitRange:
    """Commits in order, and lines of the pages that hold events of their segment logs.

    The lines are only those of versions whose copies in the same page are in the chain.
    """

    commits: Sequence[Commit]
    events: Mapping[str, Line] = field(default_factory=dict)

    def read_events(self, storage: Storage, log: LogFile) -> Events:
        """Return the events of a log with their next rows, if possible from a page."""
        line = self.events.get(log.path)
        copied = None if line is None else decode_events_line(line, log)
        if copied is not None:
            return copied
        return _naming_next_rows(log, read_events(storage, log, with_next=True))


def own_logs(commit: Commit) -> list[LogFile]:
    """Return the logs with events of the commit itself, not merged ones."""
    return [log for log in commit.actions.add_logs if log.version < 0]


def _naming_next_rows(log: LogFile, events: Events) -> Events:
    """Return the events of a commit's own log.

    Raises FormatError if they do not name the next rows.
    """
    if events.next_rows is None:
        raise FormatError(
            f"{log.path} does not name the rows that followed; restore the file from a backup"
        )
    return events


def decode_events_line(line: Line, log: LogFile) -> Events | None:
    """Return the events of a line, None if they are not those that the commit records.

    The checksum of the log in the line decides: logs of two chains may have the same path and
    length.
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
            return events if _is_of(events, log) else None
    except FormatError:
        return None


def _is_of(events: Events, log: LogFile) -> bool:
    """Return whether the columns have the length and times that the commit records."""
    assert events.next_rows is not None
    columns = (
        events.segment,
        events.offset,
        events.until,
        events.next_rows.segment,
        events.next_rows.offset,
    )
    if any(column.shape != (log.events,) for column in columns):
        return False
    until_range = int(events.until.min()), int(events.until.max())
    is_offset_given = events.next_rows.offset >= 0
    return (
        until_range == (log.least_until, log.greatest_until)
        and int(events.offset.min()) >= 0
        and bool((is_offset_given == events.next_rows.is_row).all())
    )


def _events_line(version: int, log: LogFile, events: Events) -> Line:
    assert events.next_rows is not None
    columns = (
        events.segment,
        events.offset,
        events.until,
        events.next_rows.segment,
        events.next_rows.offset,
    )
    lists = [column.tolist() for column in columns]
    return canonical_json([version, log.path, log.crc32, *lists])


def _version_of(line: Line) -> int:
    """Return the version of a line of events, without a look at the events."""
    return int(line[1 : line.index(b",")])


def _path_of(line: Line) -> str:
    """Return the segment log of a line of events, without a look at the events."""
    begin = line.index(b'"') + 1
    return line[begin : line.index(b'"', begin)].decode()


def encode_page(page: Page) -> bytes:
    """Return the page as zstd over lines: a head, the commits in order, the events."""
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
            raise ValueError("it is of another format, or of other versions than its name says")
        absent = {*checked.counts(head["absent"])}
        is_within = all(first <= version <= last for version in absent)
        commits_end = 1 + (last - first + 1 - len(absent))
        if commits_end > len(lines) or not is_within:
            raise ValueError("it has fewer lines than commits")
        present = (version for version in range(first, last + 1) if version not in absent)
        return Page(
            table_id=checked.plain_id(head["table_id"]),
            first=first,
            last=last,
            commits=dict(zip(present, lines[1:commits_end], strict=True)),
            events=_by_path(lines[commits_end:]),
        )


def _by_path(lines: Iterable[Line]) -> dict[str, Line]:
    events: dict[str, Line] = {}
    for line in lines:
        _version_of(line)  # raises ValueError if it does not begin with a number
        events[_path_of(line)] = line
    return events


def _read_page(storage: Storage, table_id: str, ref: PageRef) -> Page | None:
    try:
        page = decode_page(read_sealed(storage, ref.path), ref.path)
    except (FormatError, NotFoundError):
        return None
    return page if page.table_id == table_id else None


def read_pages(storage: Storage, table_id: str, refs: Sequence[PageRef]) -> list[Page | None]:
    """Read pages, several at once.

    None for each that is missing, damaged or of another table.
    """
    with ThreadPoolExecutor(min(READERS, max(1, len(refs)))) as pool:
        return [*pool.map(partial(_read_page, storage, table_id), refs)]


def read_cover(
    storage: Storage, table_id: str, refs: Iterable[PageRef], first: int, last: int
) -> list[Page]:
    """Read the fewest pages that hold the available part of a range of versions.

    If one of them cannot be used, others are chosen without it.
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
    """Return the pages with commits of a range; those that end last come first."""
    start_after = "" if last is None else layout.log_pages_start_after(last + MAX_VERSIONS)
    refs = takewhile(lambda ref: ref.last >= first, _refs(storage, start_after))
    return [ref for ref in refs if last is None or ref.first <= last]


def _refs(storage: Storage, start_after: str) -> Iterator[PageRef]:
    for entry in storage.list(layout.LOG_PAGES, start_after):
        name = layout.log_page_place(entry.path)
        if name is not None:
            first, last, crc32 = name
            yield PageRef(path=entry.path, first=first, last=last, crc32=crc32, size=entry.size)


def cover(refs: Iterable[PageRef], first: int, last: int) -> list[PageRef]:
    """Choose the fewest pages that hold the available part of a range of versions.

    Of pages that reach equally far, the smallest one is chosen.
    """
    ordered = sorted(refs, key=lambda ref: ref.first)
    chosen: list[PageRef] = []
    best: PageRef | None = None
    position = 0
    version = first
    while version <= last:
        while position < len(ordered) and ordered[position].first <= version:
            best = _wider(best, ordered[position], last)
            position += 1
        if best is not None and best.last >= version:
            chosen.append(best)
            version = best.last + 1
        elif position < len(ordered):
            version = ordered[position].first
        else:
            break
    return chosen


def _wider(best: PageRef | None, other: PageRef, last: int) -> PageRef:
    if best is None:
        return other
    return max(best, other, key=lambda ref: (min(ref.last, last), -ref.size))


def useful_pages(storage: Storage, first: int, last: int, tuning: Tuning) -> list[PageRef]:
    """Return the pages that a reader of a range of versions may ask for.

    A page of which the range needs little is left out: the commits themselves are read sooner.
    """
    if last - first < tuning.page_least_versions:
        return []
    return [ref for ref in list_pages(storage, first, last) if _is_useful(ref, first, last, tuning)]


def _is_useful(ref: PageRef, first: int, last: int, tuning: Tuning) -> bool:
    needed = min(ref.last, last) - max(ref.first, first) + 1
    return needed >= tuning.page_least_versions and ref.size <= needed * tuning.page_commit_bytes


class EventReader:
    """A reader of segment logs that name the next rows; it reads each log once."""

    def __init__(self, storage: Storage) -> None:
        self.storage = storage
        self.known: dict[str, Events] = {}

    def load(self, logs: Sequence[LogFile]) -> None:
        """Read logs, several at once where the store is far."""
        for log in logs:
            recent = recent_events(self.storage, log)
            if recent is not None:
                self.known[log.path] = recent
        missing = [log for log in logs if log.path not in self.known]
        read = partial(read_events, self.storage, with_next=True)
        if is_local(self.storage.uri):
            # Threads would take longer to start than all of the reads
            self.known |= {log.path: read(log) for log in missing}
        elif missing:
            with ThreadPoolExecutor(min(READERS, len(missing))) as pool:
                paths = [log.path for log in missing]
                self.known |= zip(paths, pool.map(read, missing), strict=True)

    def read(self, log: LogFile) -> Events:
        """Return the events of a log that may be at hand."""
        self.load([log])
        return self.known[log.path]


def span_of(version: int, step: int, fan_in: int) -> int:
    """Return the versions of a version's page: `step` times a power of `fan_in`."""
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
    """Store a page that ends with a version, and takes in pages before it.

    `step` is the number of versions between two checkpoints. `events` keeps the logs that are read.
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
        # Readers would choose an incomplete page over those that hold what it lacks
        merged = _merged([], table_id, own_first, last)
        fresh = _fresh_commits(merged.missing(), known, read_commit, tuning.page_max_filled)
    store_page(state.storage, _with_commits(merged, fresh, events))


def _merged(pages: Iterable[Page], table_id: str, first: int, last: int) -> Page:
    """Return a page with the lines that pages hold of a range of versions."""
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
    """Return the missing commits: those at hand, and others if they are few."""
    unknown = [version for version in missing if version not in known]
    if len(unknown) > max_filled:
        unknown = []

    def read(version: int) -> Commit | None:
        try:
            return read_commit(version)
        except (FormatError, NotFoundError):
            return None  # a reader of the range reports it

    others: list[Commit | None] = []
    if unknown:
        with ThreadPoolExecutor(READERS) as pool:
            others = [*pool.map(read, unknown)]
    fresh = [known[version] for version in missing if version in known]
    fresh += [commit for commit in others if commit is not None]
    return sorted(fresh, key=lambda commit: commit.version)


def _with_commits(page: Page, fresh: Iterable[Commit], reader: EventReader) -> Page:
    """Return the page with copies of more commits and of their short logs."""
    commits = {**page.commits}
    events = {**page.events}
    size = 0
    logs: list[tuple[int, LogFile]] = []
    for commit in fresh:
        line = encode_commit(commit).rstrip(b"\n")
        size += len(line)
        if len(line) <= MAX_COMMIT_BYTES and size <= MAX_FRESH_BYTES:
            commits[commit.version] = line
            short = [log for log in own_logs(commit) if log.events <= SHORT_EVENTS]
            logs += [(commit.version, log) for log in short]
    reader.load([log for _, log in logs])
    for version, log in logs:
        line = _events_line(version, log, _naming_next_rows(log, reader.read(log)))
        size += len(line)
        if size <= MAX_FRESH_BYTES:
            events[log.path] = line
    return replace(page, commits=commits, events=events)


def store_page(storage: Storage, page: Page) -> None:
    """Store a page. Writers that store the same page at once store the same bytes."""
    data = encode_page(page)
    storage.put_if_absent(layout.log_page_path(page.first, page.last, zlib.crc32(data)), data)


def trimmed(page: Page, oldest: int) -> Page:
    """Return the page without the copies of commits up to the oldest version."""
    return _merged([page], page.table_id, oldest + 1, page.last)
