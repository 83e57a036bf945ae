"""A check of logs, runs and data files against each other, in this process.

Rows are buffered by slots of the key hash, and events by ranges of row ids. The number of slots is
such that one slot fits into the given memory. All versions of a key are in one slot.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import pyarrow as pa

from opal_lake.data.column_read import WHOLE_BYTES, StoredRanges
from opal_lake.data.columns import conformed, physical_schema
from opal_lake.data.data_file import stored_parts
from opal_lake.data.segment import DataFile, RunFile, Segment
from opal_lake.definition.schema import OUTSIDE_ID, UPDATED_AT
from opal_lake.definition.table_spec import TableSpec
from opal_lake.engine.executor import AtStep
from opal_lake.errors import RowCountError
from opal_lake.events.segment_log import Events
from opal_lake.inspect.check.chain import Sizes
from opal_lake.inspect.check.content.events import LogCheck
from opal_lake.inspect.check.content.fault_counts import FaultCounts
from opal_lake.inspect.check.content.ranges import Doubts, SegmentFacts, check_range
from opal_lake.inspect.check.content.slots import (
    ExpectedEnds,
    RangeRules,
    Stored,
    check_slot,
    columns_of,
    entries_from,
)
from opal_lake.inspect.check.files import is_found, read_found
from opal_lake.inspect.check.finding import Findings
from opal_lake.inspect.check.keys import RunCheck
from opal_lake.inspect.check.rows import FileCheck, bounded_columns
from opal_lake.inspect.check.sample import KeyRange
from opal_lake.inspect.check.spill_buffer import (
    FLUSH_ROWS,
    MEMORY_BYTES,
    Column,
    Slots,
    SpillBuffer,
    Spilled,
)
from opal_lake.inspect.check.state import KnownEvents
from opal_lake.key_store.entries import Entries, no_entries
from opal_lake.log.snapshot import Snapshot
from opal_lake.rule.metagen import entries_of_rows, rule_columns
from opal_lake.storage.protocol import Storage

# Memory of a check before its first slot: libraries, a row group, a file
BASE_BYTES = 400 << 20
LEAST_BYTES = 512 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuning:
    """Limits of a check. The defaults suit tables of any size; tests set others."""

    slot_bytes: int = 500  # of a row or an entry, while its slot is checked
    buffer_bytes: int = MEMORY_BYTES
    flush_rows: int = FLUSH_ROWS
    compared_versions: int = 256
    compared_rows: int = 20_000_000  # of all compared versions together


DEFAULT_TUNING = Tuning()


@dataclass(slots=True)
class KnownContent:
    """The rows of data files and entries of runs, read once for all versions.

    `files` and `runs` have by path whether the file could be read to its end, and its rows or
    entries.
    """

    buffer: SpillBuffer = field(default_factory=SpillBuffer)
    files: dict[str, tuple[bool, list[Spilled]]] = field(default_factory=dict)
    runs: dict[str, tuple[bool, list[Spilled]]] = field(default_factory=dict)

    def rows(self, work: "FileWork", reader: "FileReader") -> Iterator[Entries]:
        """Yield the rows of a file, or none of a pending file; set `reader.whole`."""
        path = work.file.path
        if path not in self.files:
            read = reader.rows(replace(work, is_pending=False))
            parts = [self.buffer.put(columns_of(entries)) for entries in read]
            self.files[path] = reader.whole, parts
        reader.whole, parts = self.files[path]
        if not work.is_pending:
            yield from map(self._entries, parts)

    def entries(self, run: RunFile, read: Iterator[Entries | None]) -> Iterator[Entries | None]:
        """Yield the entries of a run, and None after its end, like `read_run`."""
        if run.path not in self.runs:
            parts: list[Spilled] = []
            is_whole = False
            for entries in read:
                if entries is None:
                    is_whole = True
                else:
                    parts.append(self.buffer.put(columns_of(entries)))
                yield entries
            self.runs[run.path] = is_whole, parts
            return
        is_whole, parts = self.runs[run.path]
        yield from map(self._entries, parts)
        if is_whole:
            yield None

    def _entries(self, part: Spilled) -> Entries:
        return entries_from([self.buffer.column(part, index) for index in range(len(part.kinds))])


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """The content to check, and how.

    `known` is given if several versions are compared. `of_version` is named in findings of a
    version that is not the newest.
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
    tuning: Tuning = DEFAULT_TUNING

    @property
    def findings(self) -> Findings:
        """The findings so far, of all parts of the check."""
        return self.events.findings

    @property
    def rules(self) -> RangeRules:
        """The rules for ranges of row ids."""
        floor = self.state.root.floor
        return RangeRules(
            floor=floor,
            only_held=floor is not None or not self.keys.is_all,
            discarded=np.array(sorted(self.discarded), np.int64),
        )

    @property
    def rows(self) -> int:
        """About how many rows and entries are compared."""
        file_rows = sum(file.rows for file in self.state.files.values())
        entries = sum(run.entries for run in self.state.runs.values())
        return int((file_rows + entries) * self.keys.share)

    @property
    def slots(self) -> int:
        """The number of slots such that one slot fits into memory."""
        available = max(1, self.memory - BASE_BYTES)
        return max(1, -(-self.rows * self.tuning.slot_bytes // available))

    def new_buffer(self) -> SpillBuffer:
        """Return an empty buffer for arrays that wait."""
        return SpillBuffer(memory_bytes=self.tuning.buffer_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class FileWork:
    """A data file, its known segments, and whether all of it is checked."""

    file: DataFile
    segments: tuple[Segment, ...]
    is_pending: bool
    is_whole: bool

    @property
    def size(self) -> int:
        """The size of the file, in bytes."""
        return self.file.size


def file_works(
    state: Snapshot, sizes: Sizes, keys: KeyRange, files: Iterable[DataFile] | None = None
) -> Iterator[FileWork]:
    """Yield the work on the existing files of a state, or on some of them."""
    if files is None:
        files = state.files.values()
    for file in files:
        if not is_found(file, sizes):
            continue
        known = [number for number in file.segments if number in state.segments]
        yield FileWork(
            file=file,
            segments=tuple(state.segments[number] for number in known),
            is_pending=not state.pending.isdisjoint(file.segments),
            is_whole=keys.takes(file),
        )


@dataclass(slots=True, kw_only=True)
class FileReader:
    """A reader of files. `whole` is true once all rows of a file can be compared."""

    storage: Storage
    spec: TableSpec
    findings: Findings
    whole: bool = False

    def rows(self, work: FileWork) -> Iterator[Entries]:
        """Yield the rows that the rule needs, and check the file.

        A pending file and a file of a table without keys yield no rows.
        """
        file = work.file
        self.whole = False
        source = self._source(work)
        if source is None:
            return
        columns = rule_columns(self.spec)
        if work.is_whole:
            columns = physical_schema(self.spec).names
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
                parts = stored_parts(
                    source, self.spec, columns, file.path, rows=file.rows, as_stored=True
                )
                for part in parts:
                    is_sound = check.add(part)
                    if is_sound and self.spec.has_keys and not work.is_pending:
                        yield entries_of_rows(conformed(part, self.spec), self.spec)
            except RowCountError as error:
                self.findings.add("I11", file.path, str(error))
                return
            self.whole = check.finish(self.findings)

    def _source(self, work: FileWork) -> pa.NativeFile | None:
        """Return the source of a file.

        A file that is checked in part is not read whole: its footer is verified, and its values
        have checksums of their own.
        """
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
    """Yield the entries of a run that can be compared.

    The last item is None if the run was read to its end.
    """
    if keys.is_all:
        stored = read_found(storage, run, findings)
        if stored is None:
            return
        read = stored.read
    else:
        # The blocks of a sample are read one by one
        read = partial(storage.get, run.path)
    with findings.going_on("I19", run.path):
        check = RunCheck(run=run, read=read, keys=keys)
        for entries in check.entries():
            if 2 * check.index.ties == ties:
                yield entries
        if check.finish(ties, findings):
            yield None


@dataclass(slots=True, kw_only=True)
class LocalCheck:
    """The check of the content of a state, slot by slot."""

    content: Content
    counts: FaultCounts = field(default_factory=FaultCounts)
    slots: int = field(init=False)
    rows: Slots = field(init=False)
    entries: Slots = field(init=False)
    ends: Slots = field(init=False)
    doubts: Slots = field(init=False)
    events_of_logs: Slots = field(init=False)

    def __post_init__(self) -> None:
        self.slots = self.content.slots
        buffer = self.content.new_buffer()
        flush_rows = self.content.tuning.flush_rows
        for name in ("rows", "entries", "ends", "doubts", "events_of_logs"):
            setattr(self, name, Slots(count=self.slots, buffer=buffer, flush_rows=flush_rows))

    def run(self, *, deep: bool) -> None:
        """Check logs and runs; if `deep`, also files, and all of them against each other."""
        content, state = self.content, self.content.state
        facts = SegmentFacts.of(state, content.discarded)
        could_read_logs = self._read_logs(facts, deep=deep)
        runs = self._read_runs(deep=deep)
        if not deep or not self._read_files():
            return  # without all rows, correct events and entries would look wrong
        for slot in range(self.slots):
            content.at_step("slot", slot, self.slots)
            self._check_slot(slot, facts)
        if could_read_logs:
            for id_range in range(self.slots):
                content.at_step("range of rows", id_range, self.slots)
                self._check_range(id_range)
        self.counts.report(
            state,
            runs,
            content.findings,
            events=could_read_logs,
            store=len(runs) == len(state.runs),
            of_version=content.of_version,
        )

    def _read_logs(self, facts: SegmentFacts, *, deep: bool) -> bool:
        """Check the logs; return whether all could be read."""
        state = self.content.state
        whole = True
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
        """Check the runs; return the paths of those that could be read, by number."""
        content, state = self.content, self.content.state
        ties = 2 * len(state.spec.tie_break)
        whole: dict[int, str] = {}
        for number, run in enumerate(state.runs.values()):
            content.at_step("run", number, len(state.runs))
            if not is_found(run, content.sizes):
                continue
            read = read_run(state.storage, run, content.keys, ties, content.findings)
            if content.known is not None:
                read = content.known.entries(run, read)
            for entries in read:
                if entries is None:
                    whole[number] = run.path
                elif deep:
                    slot = content.keys.slot_of(entries.high, self.slots)
                    numbers = np.full(len(entries), number, np.int32)
                    self.entries.add(slot, (*columns_of(entries), numbers))
        return whole

    def _read_files(self) -> bool:
        """Check the files; return whether all could be read."""
        content, state = self.content, self.content.state
        reader = FileReader(storage=state.storage, spec=state.spec, findings=content.findings)
        whole = 0
        for done, work in enumerate(file_works(state, content.sizes, content.keys)):
            content.at_step("file", done, len(state.files))
            if content.known is None:
                read = reader.rows(work)
            else:
                read = content.known.rows(work, reader)
            for entries in read:
                slot = content.keys.slot_of(entries.high, self.slots)
                # Rows of keys outside a sample are in no slot
                inside = slot < self.slots
                sampled = entries if inside.all() else entries.take(inside)
                self.rows.add(slot[inside], columns_of(sampled))
            whole += reader.whole
        return whole == len(state.files)

    def _check_slot(self, slot: int, facts: SegmentFacts) -> None:
        """Check the rows and entries of a slot; put ends and doubts into ranges."""
        content = self.content
        nothing = no_entries(len(content.state.spec.tie_break))
        row_columns = self.rows.take(slot)
        rows = entries_from(row_columns) if row_columns else nothing
        stored = Stored(entries=nothing, run=_NO_RUN)
        columns = self.entries.take(slot)
        if columns:
            stored = Stored(entries=entries_from(columns[:-1]), run=columns[-1])
        ends, doubtful = check_slot(rows, stored, content.rules, self.counts)
        if not content.rules.only_held:
            ends = ends.take(~ends.stays)
        self.ends.add(facts.range_of(ends.segment, ends.offset, self.slots), ends.columns)
        doubts = doubtful.entries
        range_of_row = facts.range_of(doubts.segment, doubts.offset, self.slots)
        self.doubts.add(range_of_row, (doubts.segment, doubts.offset, doubtful.run))

    def _check_range(self, id_range: int) -> None:
        """Check the events of a range of row ids, and the doubtful entries of runs."""
        # A range without rows, events or doubts has no columns
        segment, offset, until, stays = self.ends.take(id_range) or _NO_ENDS
        rows = ExpectedEnds(segment=segment, offset=offset, until=until, stays=stays)
        segment, offset, until = self.events_of_logs.take(id_range) or _NO_EVENTS
        events = Events(segment=segment, offset=offset, until=until)
        segment, offset, run = self.doubts.take(id_range) or _NO_DOUBTS
        doubts = Doubts(segment=segment, offset=offset, run=run)
        check_range(rows, events, doubts, self.content.rules, self.counts)


def look_here(content: Content) -> None:
    """Check all content in this process."""
    LocalCheck(content=content).run(deep=True)


_NO_RUN = np.empty(0, np.int32)
_NO_ENDS: tuple[Column, ...] = (
    np.empty(0, np.int64),
    np.empty(0, np.int32),
    np.empty(0, np.int64),
    np.empty(0, np.bool_),
)
_NO_EVENTS = _NO_ENDS[:3]
_NO_DOUBTS: tuple[Column, ...] = (*_NO_ENDS[:2], _NO_RUN)
