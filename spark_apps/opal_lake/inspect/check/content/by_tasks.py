"""A check by tasks: they read files, runs and logs, and compare what meets in a slot.

Rows and entries meet by slots of the key hash, then events and rows by ranges of row ids. Findings
of a task are sent as a report, in a row without values. The driver has the metadata and all
findings, which equal those of the check in one process.
"""

import pickle
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from opal_lake.data.segment import LogFile, RunFile
from opal_lake.definition.table_spec import TableSpec
from opal_lake.engine.executor import Batches, Executor, Stage
from opal_lake.events.segment_log import Events, event_parts
from opal_lake.inspect.check.content.events import LogCheck
from opal_lake.inspect.check.content.fault_counts import FaultCounts
from opal_lake.inspect.check.content.in_process import (
    Content,
    FileReader,
    FileWork,
    file_works,
    read_run,
)
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
from opal_lake.inspect.check.sample import KeyRange
from opal_lake.key_store.entries import Entries
from opal_lake.storage.protocol import Storage

_ROW = -1  # instead of a run's number
# Kinds of the rows that meet in a range of row ids: rows that end, rows that stay, events, doubts
_ENDS, _STAYS, _EVENT, _DOUBT = range(4)


def look_by_tasks(content: Content, executor: Executor, slots: int) -> None:
    """Check the content of a state by tasks."""
    state = content.state
    facts = SegmentFacts.of(state, content.discarded)
    task = CheckTask(
        storage=state.storage,
        spec=state.spec,
        keys=content.keys,
        rules=content.rules,
        facts=facts,
        slots=slots,
    )
    works: list[FileWork | RunWork] = [*file_works(state, content.sizes, content.keys)]
    for number, run in enumerate(state.runs.values()):
        if is_found(run, content.sizes):
            works.append(RunWork(number=number, run=run))
    logs = [*state.logs.values()]
    by_slots = Stage(
        works=works,
        size=sum(work.size for work in works),
        read=partial(_read_placed, task=task),
        schema=task.placed,
        task=partial(_check_slot, task=task),
    )
    by_ranges = Stage(
        works=logs,
        size=sum(log.size for log in logs),
        read=partial(_read_events, task=task),
        schema=_ENDS_SCHEMA,
        task=partial(_check_range, task=task),
    )
    all_reports: list[Report] = []
    for reports in executor.by_stages([by_slots, by_ranges], slots):
        all_reports += reports
    _add_findings(content, all_reports)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunWork:
    """A run, and its position among those of the state."""

    number: int
    run: RunFile

    @property
    def size(self) -> int:
        """The size of the run, in bytes."""
        return self.run.size


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckTask:
    """The state and the rules, for all tasks."""

    storage: Storage
    spec: TableSpec
    keys: KeyRange
    rules: RangeRules
    facts: SegmentFacts
    slots: int

    @property
    def ties(self) -> int:
        return 2 * len(self.spec.tie_break)

    @property
    def placed(self) -> pa.Schema:
        """The schema of rows and entries with their slots."""
        ties = [f"tie{number}" for number in range(self.ties)]
        words = ["high", "low", "delta", *ties, "segment"]
        fields = [
            ("run", pa.int32()),
            *((name, pa.int64()) for name in words),
            ("offset", pa.int32()),
            ("deleted", pa.bool_()),
        ]
        return pa.schema([*_HEAD, *fields])


_HEAD = [("slot", pa.int32()), ("report", pa.binary())]
_ENDS_SCHEMA = pa.schema(
    [
        *_HEAD,
        ("kind", pa.int32()),
        ("segment", pa.int64()),
        ("offset", pa.int32()),
        ("until", pa.int64()),
    ]
)


@dataclass(slots=True, kw_only=True)
class Report:
    """Findings of a task, and the paths of the files that it read to their ends."""

    findings: Findings = field(default_factory=Findings)
    counts: FaultCounts = field(default_factory=FaultCounts)
    whole: list[str] = field(default_factory=list)


def _batch(
    slot: np.ndarray[Any, Any], columns: Sequence[np.ndarray[Any, Any]], schema: pa.Schema
) -> pa.RecordBatch:
    arrays = [pa.array(slot.astype(np.int32)), pa.nulls(len(slot), pa.binary())]
    for column in columns:
        # The schema has signed words; the bits of a hash stay the same
        is_unsigned = column.dtype == np.uint64
        arrays.append(pa.array(column.view(np.int64) if is_unsigned else column))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _report_batch(report: bytes, schema: pa.Schema) -> pa.RecordBatch:
    """Return a batch of one row with a report; its slot and its values are 0."""
    zero = pa.array([0], pa.int32())
    head = [zero, pa.array([report], pa.binary())]
    zeros = [zero.cast(kind) for kind in schema.types[len(_HEAD) :]]
    return pa.RecordBatch.from_arrays([*head, *zeros], schema=schema)


def _read_placed(
    works: Iterable[FileWork | RunWork], *, task: CheckTask
) -> Iterator[pa.RecordBatch]:
    """Yield rows of files and entries of runs, each with its slot."""
    report = Report()
    reader = FileReader(storage=task.storage, spec=task.spec, findings=report.findings)
    for work in works:
        if isinstance(work, FileWork):
            for rows in reader.rows(work):
                yield _placed(rows, _ROW, task)
            if reader.whole:
                report.whole.append(work.file.path)
            continue
        for entries in read_run(task.storage, work.run, task.keys, task.ties, report.findings):
            if entries is None:
                report.whole.append(work.run.path)
            else:
                yield _placed(entries, work.number, task)
    yield _report_batch(pickle.dumps(report), task.placed)


def _placed(entries: Entries, run: int, task: CheckTask) -> pa.RecordBatch:
    """Return the entries of sampled keys with their slots and the number of their run."""
    slot = task.keys.slot_of(entries.high, task.slots)
    # Rows of keys outside a sample are in no slot
    inside = slot < task.slots
    sampled = entries.take(inside)
    runs = np.full(len(sampled), run, np.int32)
    return _batch(slot[inside], (runs, *columns_of(sampled)), task.placed)


def _read_events(logs: Iterable[LogFile], *, task: CheckTask) -> Iterator[pa.RecordBatch]:
    """Yield events of logs, each with the range of its row id."""
    report = Report()
    for log in logs:
        file = read_found(task.storage, log, report.findings)
        if file is None:
            continue
        with report.findings.going_on("I9", log.path):
            check = LogCheck(log=log, facts=task.facts, has_floor=task.rules.floor is not None)
            parts = event_parts(file.source(), log.path, log.events, with_next=True)
            for part in check.pass_on(parts):
                kind = np.full(len(part), _EVENT, np.int32)
                yield _ends_batch(part.segment, part.offset, part.until, kind, task)
            check.finish(report.findings)
            report.whole.append(log.path)
    yield _report_batch(pickle.dumps(report), _ENDS_SCHEMA)


def _ends_batch(
    segment: Any, offset: Any, until: Any, kind: Any, task: CheckTask
) -> pa.RecordBatch:
    slot = task.facts.range_of(segment, offset, task.slots)
    return _batch(slot, (kind, segment, offset, until), _ENDS_SCHEMA)


def _split_reports(batches: Batches) -> tuple[list[bytes], list[np.ndarray[Any, Any]] | None]:
    """Return the reports, and the columns of all other rows, None without any."""
    parts = [batch for batch in batches if batch.num_rows]
    if not parts:
        return [], None
    rows = pa.Table.from_batches(parts)
    is_report = rows.column(1).is_valid().to_numpy()
    reports = rows.column(1).drop_null().to_pylist()
    plain = rows.filter(pa.array(~is_report)) if is_report.any() else rows
    plain = plain.combine_chunks()
    if not plain.num_rows:
        return reports, None
    columns: list[np.ndarray[Any, Any]] = []
    for index in range(2, plain.num_columns):
        column = plain.column(index).combine_chunks()
        columns.append(np.asarray(column.to_numpy(zero_copy_only=False)))
    return reports, columns


def _check_slot(batches: Batches, *, task: CheckTask) -> Iterator[pa.RecordBatch]:
    """Check the rule and the runs on a slot; pass its rows on by ranges of row ids."""
    reports, columns = _split_reports(batches)
    for report in reports:
        yield _report_batch(report, _ENDS_SCHEMA)
    if columns is None:
        return
    run, high, low, *others = columns
    entries = entries_from([high.view(np.uint64), low.view(np.uint64), *others])
    is_row = run == _ROW
    stored = Stored(entries=entries.take(~is_row), run=run[~is_row])
    counts = FaultCounts()
    ends, doubtful = check_slot(entries.take(is_row), stored, task.rules, counts)
    if not task.rules.only_held:
        ends = ends.take(~ends.stays)
    kind = np.where(ends.stays, _STAYS, _ENDS).astype(np.int32)
    yield _ends_batch(ends.segment, ends.offset, ends.until, kind, task)
    doubts = doubtful.entries
    kind = np.full(len(doubtful.run), _DOUBT, np.int32)
    # The number of the run stands in the column of times
    yield _ends_batch(doubts.segment, doubts.offset, doubtful.run.astype(np.int64), kind, task)
    if counts.faults:
        yield _report_batch(pickle.dumps(Report(counts=counts)), _ENDS_SCHEMA)


def _check_range(batches: Batches, *, task: CheckTask) -> list[Report]:
    """Compare rows and events of a range of row ids; return the reports received, too."""
    pickled, columns = _split_reports(batches)
    reports: list[Report] = [pickle.loads(report) for report in pickled]  # written by our own tasks
    if columns is not None:
        kind, segment, offset, until = columns
        is_row, is_event, is_doubt = kind <= _STAYS, kind == _EVENT, kind == _DOUBT
        rows = ExpectedEnds(
            segment=segment[is_row],
            offset=offset[is_row],
            until=until[is_row],
            stays=kind[is_row] == _STAYS,
        )
        events = Events(segment=segment[is_event], offset=offset[is_event], until=until[is_event])
        doubts = Doubts(
            segment=segment[is_doubt],
            offset=offset[is_doubt],
            run=until[is_doubt].astype(np.int32),
        )
        report = Report()
        check_range(rows, events, doubts, task.rules, report.counts)
        reports.append(report)
    return reports


def _add_findings(content: Content, reports: Sequence[Report]) -> None:
    """Merge the reports.

    If a file is damaged, the counts are not reported: its missing rows would make others look
    wrong.
    """
    state = content.state
    counts = FaultCounts()
    whole: set[str] = set()
    for report in reports:
        whole.update(report.whole)
        counts.merge(report.counts)
        content.findings.unique.update(report.findings.unique)
    if whole >= state.files.keys():
        runs = {number: path for number, path in enumerate(state.runs) if path in whole}
        counts.report(
            state,
            runs,
            content.findings,
            events=whole >= state.logs.keys(),
            store=len(runs) == len(state.runs),
        )
