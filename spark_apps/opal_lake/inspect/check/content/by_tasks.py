"""A check by tasks: they read files, runs and logs; rows and entries meet by slots of the key hash, then events and rows by ranges of ids.

What a task finds is sent as a report, a row without values. The driver holds the metadata and the findings; they equal those of the local
check.
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
from opal_lake.inspect.check.content.tally import Tally
from opal_lake.inspect.check.files import is_found, read_found
from opal_lake.inspect.check.finding import Findings
from opal_lake.inspect.check.sample import KeyRange
from opal_lake.key_store.entries import Entries
from opal_lake.storage.protocol import Storage

_ROW = -1  # instead of a run's number
_ENDS, _STAYS, _EVENT, _DOUBT = range(4)


def look_by_tasks(content: Content, executor: Executor, slots: int) -> None:
    """Check the content of a state."""
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
    works += [
        RunWork(number=n, run=run)
        for n, run in enumerate(state.runs.values())
        if is_found(run, content.sizes)
    ]
    logs = [*state.logs.values()]
    read, size = (
        sum((work.file if isinstance(work, FileWork) else work.run).size for work in works),
        sum(log.size for log in logs),
    )
    stages = [
        Stage(
            works=works,
            size=read,
            read=partial(_read_placed, task=task),
            schema=task.placed,
            task=partial(_check_slot, task=task),
        ),
        Stage(
            works=logs,
            size=size,
            read=partial(_read_events, task=task),
            schema=_ENDS_SCHEMA,
            task=partial(_check_range, task=task),
        ),
    ]
    _add_findings(
        content, [report for reports in executor.by_stages(stages, slots) for report in reports]
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RunWork:
    """A run, and its position among those of the state."""

    number: int
    run: RunFile


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckTask:
    """What all tasks need to know."""

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
        words = ["high", "low", "delta", *(f"tie{n}" for n in range(self.ties)), "segment"]
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
    """Findings of a task, and the files, runs and logs that it read to their ends."""

    findings: Findings = field(default_factory=Findings)
    tally: Tally = field(default_factory=Tally)
    whole: list[str] = field(default_factory=list)


def _batch(
    slot: np.ndarray[Any, Any], columns: Sequence[np.ndarray[Any, Any]], schema: pa.Schema
) -> pa.RecordBatch:
    arrays = [pa.array(slot.astype(np.int32)), pa.nulls(len(slot), pa.binary())]
    arrays += [
        pa.array(column.view(np.int64) if column.dtype == np.uint64 else column)
        for column in columns
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _report_batch(report: bytes, schema: pa.Schema) -> pa.RecordBatch:
    nothing = [pa.array([0], pa.int32()).cast(member.type) for member in list(schema)[2:]]
    return pa.RecordBatch.from_arrays(
        [pa.array([0], pa.int32()), pa.array([report], pa.binary()), *nothing], schema=schema
    )


def _read_placed(
    works: Iterable[FileWork | RunWork], *, task: CheckTask
) -> Iterator[pa.RecordBatch]:
    """Rows of files and entries of runs, each with its slot."""
    report = Report()
    reader = FileReader(storage=task.storage, spec=task.spec, findings=report.findings)
    for work in works:
        if isinstance(work, FileWork):
            yield from (_placed(entries, _ROW, task) for entries in reader.rows(work))
            report.whole += [work.file.path] if reader.whole else []
            continue
        for entries in read_run(task.storage, work.run, task.keys, task.ties, report.findings):
            if entries is None:
                report.whole.append(work.run.path)
            else:
                yield _placed(entries, work.number, task)
    yield _report_batch(pickle.dumps(report), task.placed)


def _placed(entries: Entries, run: int, task: CheckTask) -> pa.RecordBatch:
    slot = task.keys.slot_of(entries.high, task.slots)
    inside = slot < task.slots
    kept = entries.take(inside)
    return _batch(slot[inside], (np.full(len(kept), run, np.int32), *columns_of(kept)), task.placed)


def _read_events(logs: Iterable[LogFile], *, task: CheckTask) -> Iterator[pa.RecordBatch]:
    """Events of logs, each with the range of its row id."""
    report = Report()
    for log in logs:
        file = read_found(task.storage, log, report.findings)
        if file is None:
            continue
        with report.findings.going_on("I9", log.path):
            check = LogCheck(log=log, facts=task.facts, has_floor=task.rules.floor is not None)
            for part in check.pass_on(
                event_parts(file.source(), log.path, log.events, with_next=True)
            ):
                yield _ends_batch(
                    part.segment,
                    part.offset,
                    part.until,
                    np.full(len(part), _EVENT, np.int32),
                    task,
                )
            check.finish(report.findings)
            report.whole.append(log.path)
    yield _report_batch(pickle.dumps(report), _ENDS_SCHEMA)


def _ends_batch(
    segment: Any, offset: Any, until: Any, kind: Any, task: CheckTask
) -> pa.RecordBatch:
    slot = task.facts.range_of(segment, offset, task.slots)
    return _batch(slot, (kind, segment, offset, until), _ENDS_SCHEMA)


def _split_reports(batches: Batches) -> tuple[list[bytes], list[np.ndarray[Any, Any]] | None]:
    """The reports, and the columns of all other rows."""
    parts = [batch for batch in batches if batch.num_rows]
    if not parts:
        return [], None
    rows = pa.Table.from_batches(parts)
    is_report = rows.column(1).is_valid().to_numpy()
    reports = rows.column(1).drop_null().to_pylist()
    plain = (
        rows.filter(pa.array(~is_report)).combine_chunks()
        if is_report.any()
        else rows.combine_chunks()
    )
    columns = [
        np.asarray(plain.column(index).combine_chunks().to_numpy(zero_copy_only=False))
        for index in range(2, plain.num_columns)
    ]
    return reports, columns if plain.num_rows else None


def _check_slot(batches: Batches, *, task: CheckTask) -> Iterator[pa.RecordBatch]:
    """Check the rule and the runs on the keys of a slot, and pass its rows on by ranges of row ids."""
    reports, columns = _split_reports(batches)
    yield from (_report_batch(report, _ENDS_SCHEMA) for report in reports)
    if columns is None:
        return
    run, high, low, *others = columns
    entries = entries_from([high.view(np.uint64), low.view(np.uint64), *others])
    is_row = run == _ROW
    own, tally = Stored(entries=entries.take(~is_row), run=run[~is_row]), Tally()
    ends, doubtful = check_slot(entries.take(is_row), own, task.rules, tally)
    if not task.rules.only_held:
        ends = ends.take(~ends.stays)
    yield _ends_batch(
        ends.segment,
        ends.offset,
        ends.until,
        np.where(ends.stays, _STAYS, _ENDS).astype(np.int32),
        task,
    )
    doubts, kind = doubtful.entries, np.full(len(doubtful.run), _DOUBT, np.int32)
    yield _ends_batch(doubts.segment, doubts.offset, doubtful.run.astype(np.int64), kind, task)
    if tally.counts:
        yield _report_batch(pickle.dumps(Report(tally=tally)), _ENDS_SCHEMA)


def _check_range(batches: Batches, *, task: CheckTask) -> list[Report]:
    """Compare rows and events of a range of row ids; return the reports received, too."""
    pickled, columns = _split_reports(batches)
    reports: list[Report] = [pickle.loads(report) for report in pickled]  # of our own tasks
    if columns is not None:
        kind, segment, offset, until = columns
        held, event, doubt = kind <= _STAYS, kind == _EVENT, kind == _DOUBT
        report = Report()
        check_range(
            ExpectedEnds(
                segment=segment[held],
                offset=offset[held],
                until=until[held],
                stays=kind[held] == _STAYS,
            ),
            Events(segment=segment[event], offset=offset[event], until=until[event]),
            Doubts(segment=segment[doubt], offset=offset[doubt], run=until[doubt].astype(np.int32)),
            task.rules,
            report.tally,
        )
        reports.append(report)
    return reports


def _add_findings(content: Content, reports: Sequence[Report]) -> None:
    """Merge the reports. If a file is damaged, the tally says nothing: its missing rows would make others look wrong."""
    state, tally = content.state, Tally()
    whole = {path for report in reports for path in report.whole}
    for report in reports:
        tally.merge(report.tally)
        content.findings.unique.update(report.findings.unique)
    if whole >= state.files.keys():
        runs = {number: path for number, path in enumerate(state.runs) if path in whole}
        tally.tell(
            state,
            runs,
            content.findings,
            events=whole >= state.logs.keys(),
            store=len(runs) == len(state.runs),
        )
