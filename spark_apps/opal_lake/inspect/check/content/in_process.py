"""Logs, runs and data files against each other, in this process: their rows wait by slots of the key hash, and events by row ids.

What a slot holds is bounded by the memory that is given, whatever the table holds; but the versions of one key are never parted.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa

from opal_lake.data.column_read import WHOLE_BYTES, StoredRanges
from opal_lake.data.columns import physical_schema
from opal_lake.data.data_file import stored_parts
from opal_lake.data.segment import DataFile, RunFile, Segment
from opal_lake.definition.schema import OUTSIDE_ID, UPDATED_AT
from opal_lake.definition.table_spec import TableSpec
from opal_lake.engine.executor import AtStep
from opal_lake.errors import RowCountError
from opal_lake.events.segment_log import Events
from opal_lake.inspect.check.chain import Sizes
from opal_lake.inspect.check.content.events import LogCheck
from opal_lake.inspect.check.content.ranges import Doubts, SegmentFacts, check_range
from opal_lake.inspect.check.content.slots import (
    ExpectedEnds,
    RangeRules,
    Stored,
    check_slot,
    columns_of,
    entries_from,
)
from opal_lake.inspect.check.content.tally import Tally
from opal_lake.inspect.check.files import is_found, read_found
from opal_lake.inspect.check.finding import Findings
from opal_lake.inspect.check.keys import RunCheck
from opal_lake.inspect.check.rows import FileCheck, bounded_columns
from opal_lake.inspect.check.sample import KeyRange
from opal_lake.inspect.check.shelf import Column, Shelf, Shelved, Slots
from opal_lake.inspect.check.state import KnownEvents
from opal_lake.key_store.entries import Entries, no_entries
from opal_lake.log.snapshot import Snapshot
from opal_lake.rule.metagen import entries_of_rows, rule_columns
from opal_lake.storage.protocol import Storage

BASE_BYTES = (
    400 << 20
)  # what a check takes before it looks at the first slot: libraries, a row group, a file
LEAST_BYTES = 512 << 20
SLOT_BYTES = 500  # a row or an entry while its slot is looked at


@dataclass(slots=True)
class KnownContent:
    """What data files and runs hold, each read once for all versions that are compared.

    Of each by its path whether it could be read to its end, and its rows or entries.
    """

    shelf: Shelf = field(default_factory=Shelf)
    files: dict[str, tuple[bool, list[Shelved]]] = field(default_factory=dict)
    runs: dict[str, tuple[bool, list[Shelved]]] = field(default_factory=dict)

    def rows(self, work: "FileWork", reader: "FileReader") -> Iterator[Entries]:
        """Yield the rows of a file; none of a pending one. The reader says whether it is whole."""
        path = work.file.path
        if path not in self.files:
            read = reader.rows(replace(work, is_pending=False))
            parts = [self.shelf.put(columns_of(entries)) for entries in read]
            self.files[path] = reader.whole, parts
        reader.whole, parts = self.files[path]
        if not work.is_pending:
            yield from map(self._entries, parts)

    def entries(self, run: RunFile, read: Iterator[Entries | None]) -> Iterator[Entries | None]:
        """Yield what a run holds, and None behind its end, as `read_run` does."""
        if run.path not in self.runs:
            parts, is_whole = [], False
            for entries in read:
                if entries is None:
                    is_whole = True
                else:
                    parts.append(self.shelf.put(columns_of(entries)))
                yield entries
            self.runs[run.path] = is_whole, parts
            return
        is_whole, parts = self.runs[run.path]
        yield from map(self._entries, parts)
        if is_whole:
            yield None

    def _entries(self, part: Shelved) -> Entries:
        return entries_from([self.shelf.column(part, index) for index in range(len(part.kinds))])


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """What is to be looked at, and where findings go.

    `known` is given where several versions are compared; `of_version` is said of findings in one that is not the newest.
    """

    state: Snapshot
    sizes: Sizes
    events: KnownEvents
    keys: KeyRange
    discarded: frozenset[int]
    memory: int
    at_step: AtStep
    known: KnownContent | None = None
    of_version: int | None = None

    @property
    def findings(self) -> Findings:
        return self.events.findings

    @property
    def rules(self) -> RangeRules:
        floor = self.state.root.floor
        return RangeRules(
            floor=floor,
            only_held=floor is not None or not self.keys.is_all,
            discarded=np.array(sorted(self.discarded), np.int64),
        )

    @property
    def rows(self) -> int:
        """Rows and entries that are compared, about."""
        rows = sum(file.rows for file in self.state.files.values()) + sum(
            run.entries for run in self.state.runs.values()
        )
        return int(rows * self.keys.share)

    @property
    def slots(self) -> int:
        """So many that one of them fits."""
        return max(1, -(-self.rows * SLOT_BYTES // max(1, self.memory - BASE_BYTES)))


@dataclass(frozen=True, slots=True, kw_only=True)
class FileWork:
    """A data file, its segments as far as they are known, and whether all of it is looked at."""

    file: DataFile
    segments: tuple[Segment, ...]
    is_pending: bool
    is_whole: bool


def file_works(
    state: Snapshot, sizes: Sizes, keys: KeyRange, files: Iterable[DataFile] | None = None
) -> Iterator[FileWork]:
    """Of the files of a state, or some of them, as far as they exist."""
    for file in state.files.values() if files is None else files:
        if is_found(file, sizes):
            known = tuple(
                state.segments[number] for number in file.segments if number in state.segments
            )
            pending = not state.pending.isdisjoint(file.segments)
            yield FileWork(file=file, segments=known, is_pending=pending, is_whole=keys.takes(file))


@dataclass(slots=True, kw_only=True)
class FileReader:
    """Reads a file once: its rows come out, `whole` says in the end whether they are all that there should be."""

    storage: Storage
    spec: TableSpec
    findings: Findings
    whole: bool = False

    def rows(self, work: FileWork) -> Iterator[Entries]:
        """As the rule sees them; none of a pending file, or of a table without keys."""
        file, self.whole = work.file, False
        source = self._source(work)
        if source is None:
            return
        columns = physical_schema(self.spec).names if work.is_whole else rule_columns(self.spec)
        bounded = tuple(
            column for column in bounded_columns(self.spec) if column.physical in columns
        )
        check = FileCheck(
            file=file,
            segments={segment.id: segment for segment in work.segments},
            spec=self.spec,
            bounded=bounded,
        )
        with self.findings.going_on("I10", file.path):
            try:
                columns = [*columns, OUTSIDE_ID, UPDATED_AT]
                for part in stored_parts(source, self.spec, columns, file.path, rows=file.rows):
                    is_sound = check.add(part)
                    if is_sound and self.spec.has_keys and not work.is_pending:
                        yield entries_of_rows(part, self.spec)
            except RowCountError as error:
                self.findings.add("I11", file.path, str(error))
                return
            self.whole = check.finish(self.findings)

    def _source(self, work: FileWork) -> pa.NativeFile | None:
        """Of a file of which not all is looked at, only the footer is verified where the values have checksums of their own."""
        file = work.file
        if work.is_whole or self.spec.file_format != "parquet" or file.size <= WHOLE_BYTES:
            stored = read_found(self.storage, file, self.findings)
            return stored and stored.source()
        with self.findings.going_on("I9", file.path):
            return pa.PythonFile(StoredRanges(self.storage, file), mode="r")
        return None


def read_run(
    storage: Storage, run: RunFile, keys: KeyRange, ties: int, findings: Findings
) -> Iterator[Entries | None]:
    """The entries that can be compared with rows, and None after the last one of a run that could be read to its end."""
    if keys.is_all:
        stored = read_found(storage, run, findings)
        if stored is None:
            return
        read = stored.read
    else:
        read = lambda start, length: storage.get(run.path, start, length)  # noqa: E731  # one of two readers
    with findings.going_on("I19", run.path):
        check = RunCheck(run=run, read=read, keys=keys)
        for entries in check.entries():
            if 2 * check.index.ties == ties:
                yield entries
        if check.finish(ties, findings):
            yield None


@dataclass(slots=True, kw_only=True)
class LocalCheck:
    """The content of a state, slot by slot."""

    content: Content
    shelf: Shelf = field(default_factory=Shelf)
    tally: Tally = field(default_factory=Tally)
    slots: int = field(init=False)
    rows: Slots = field(init=False)
    entries: Slots = field(init=False)
    ends: Slots = field(init=False)
    doubts: Slots = field(init=False)
    events_of_logs: Slots = field(init=False)

    def __post_init__(self) -> None:
        self.slots = self.content.slots
        for name in ("rows", "entries", "ends", "doubts", "events_of_logs"):
            setattr(self, name, Slots(count=self.slots, shelf=self.shelf))

    def run(self, *, deep: bool) -> None:
        content, state = self.content, self.content.state
        facts = SegmentFacts.of(state, content.discarded)
        logs = self._read_logs(facts, deep=deep)
        runs = self._read_runs(deep=deep)
        if not deep or not self._read_files():
            return  # what a missing row would have meant for the others is unknown
        for slot in range(self.slots):
            content.at_step("slot", slot, self.slots)
            self._check_slot(slot, facts)
        for id_range in range(self.slots if logs else 0):
            content.at_step("range of rows", id_range, self.slots)
            self._check_range(id_range)
        self.tally.tell(
            state,
            runs,
            content.findings,
            events=logs,
            store=len(runs) == len(state.runs),
            of_version=content.of_version,
        )

    def _read_logs(self, facts: SegmentFacts, *, deep: bool) -> bool:
        """Whether all could be read."""
        state, whole = self.content.state, True
        for done, log in enumerate(state.logs.values()):
            self.content.at_step("log", done, len(state.logs))
            parts = self.content.events.of(log)
            if parts is None:
                whole = False
                continue
            check = LogCheck(log=log, facts=facts, has_floor=state.root.floor is not None)
            for events in check.pass_on(parts):
                if deep:
                    slot = facts.range_of(events.segment, events.offset, self.slots)
                    self.events_of_logs.add(slot, (events.segment, events.offset, events.until))
            check.finish(self.content.findings)
        return whole

    def _read_runs(self, *, deep: bool) -> dict[int, str]:
        """The paths of those that could be read, by number."""
        content, state, whole = self.content, self.content.state, {}
        for number, run in enumerate(state.runs.values()):
            content.at_step("run", number, len(state.runs))
            if not is_found(run, content.sizes):
                continue
            ties = 2 * len(state.spec.tie_break)
            read = read_run(state.storage, run, content.keys, ties, content.findings)
            for entries in read if content.known is None else content.known.entries(run, read):
                if entries is None:
                    whole[number] = run.path
                elif deep:
                    slot = content.keys.slot_of(entries.high, self.slots)
                    self.entries.add(
                        slot, (*columns_of(entries), np.full(len(entries), number, np.int32))
                    )
        return whole

    def _read_files(self) -> bool:
        """Whether all could be read."""
        content, state = self.content, self.content.state
        reader = FileReader(storage=state.storage, spec=state.spec, findings=content.findings)
        whole = 0
        for done, work in enumerate(file_works(state, content.sizes, content.keys)):
            content.at_step("file", done, len(state.files))
            known = content.known
            for entries in reader.rows(work) if known is None else known.rows(work, reader):
                slot = content.keys.slot_of(entries.high, self.slots)
                inside = slot < self.slots
                kept = entries if inside.all() else entries.take(inside)
                self.rows.add(slot[inside], columns_of(kept))
            whole += reader.whole
        return whole == len(state.files)

    def _check_slot(self, slot: int, facts: SegmentFacts) -> None:
        content, nothing = self.content, no_entries(len(self.content.state.spec.tie_break))
        rows, entries = self.rows.take(slot), self.entries.take(slot)
        stored = (
            Stored(entries=entries_from(entries[:-1]), run=entries[-1])
            if entries
            else Stored(entries=nothing, run=_NO_RUN)
        )
        ends, doubtful = check_slot(
            entries_from(rows) if rows else nothing, stored, content.rules, self.tally
        )
        if not content.rules.only_held:
            ends = ends.take(~ends.stays)
        self.ends.add(facts.range_of(ends.segment, ends.offset, self.slots), ends.columns)
        doubts = doubtful.entries
        range_of_row = facts.range_of(doubts.segment, doubts.offset, self.slots)
        self.doubts.add(range_of_row, (doubts.segment, doubts.offset, doubtful.run))

    def _check_range(self, slot: int) -> None:
        segment, offset, until, stays = self.ends.take(slot) or _NO_ENDS
        rows = ExpectedEnds(segment=segment, offset=offset, until=until, stays=stays)
        of_event, of_row, times = self.events_of_logs.take(slot) or _NO_ENDS[:3]
        events = Events(segment=of_event, offset=of_row, until=times)
        doubts = Doubts(
            **dict(
                zip(
                    ("segment", "offset", "run"),
                    self.doubts.take(slot) or (*_NO_ENDS[:2], _NO_RUN),
                    strict=True,
                )
            )
        )
        check_range(rows, events, doubts, self.content.rules, self.tally)


def look_here(content: Content) -> None:
    """All of it, in this process."""
    LocalCheck(content=content).run(deep=True)


_NO_RUN = np.empty(0, np.int32)
_NO_ENDS: tuple[Column, ...] = (
    np.empty(0, np.int64),
    np.empty(0, np.int32),
    np.empty(0, np.int64),
    np.empty(0, np.bool_),
)
