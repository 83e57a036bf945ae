"""An ingest from the claim of its number to the commit: rows to segments, and inline the rule applied to them in the same tasks."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any

from opal_lake import layout
from opal_lake.data.json_rows import JsonForm
from opal_lake.data.rejects import EXAMPLES, fewer_reasons
from opal_lake.data.reported import check_ingested
from opal_lake.data.segment import DataFile, SideFile
from opal_lake.definition.job_names import (
    check_application,
    check_partition_key,
    check_position_names,
    check_replaces,
    check_token,
)
from opal_lake.definition.table_spec import TableSpec
from opal_lake.engine.executor import Rows
from opal_lake.engine.open_table import OpenTable
from opal_lake.errors import ConflictError, FormatError, InvalidInputError, NoRowsError, count_text
from opal_lake.log.claim import claim_number
from opal_lake.log.commit import MAX_FILES_IN_COMMIT, Actions, Commit, file_to_json
from opal_lake.log.commit_log import CommitLog
from opal_lake.log.conflict import Draft, Proposal, check_positions
from opal_lake.log.lists import segment_of_file
from opal_lake.log.pending import Selection, discarding
from opal_lake.log.sections import write_side
from opal_lake.log.snapshot import Snapshot
from opal_lake.maintenance.fold_files import fold_if_due
from opal_lake.reject_threshold import RejectThreshold, parse_threshold
from opal_lake.result import JobResult, check_visible
from opal_lake.rule.outputs import JobOutputs, rule_counts, rule_notes, slot_writer
from opal_lake.savepoints.business_snapshot import finish_before, waits
from opal_lake.storage.spark_path import spark_path
from opal_lake.write.ingest_task import IngestOutput, write_partition
from opal_lake.write.inline import write_slot
from opal_lake.write.spec_change import NewColumnsOf, with_new_columns
from opal_lake.write.unchanged import KnownTable, check_look_ups

if TYPE_CHECKING:
    from opal_lake.operations.ingest import Ingest

# A source's rows with the table's columns, for the executor; called once there is work to do, with the number of the job
SourceRows = Callable[[TableSpec, int], Rows]


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestRun:
    """An ingest on its way: as it was asked for, and what it claimed.

    `expected_rows` is what a list says that the source holds; `notes` come first in the result. A
    `hurried` caller has to make the next commit soon: an inline ingest then leaves large merges of
    the key store to a compaction. Where a caller has no option for it, `can_quarantine` is False:
    an error then advises another one. `row_form` says how rejected rows are written, if their text says
    all that the source said.
    """

    asked: "Ingest"
    number: int
    base: Snapshot
    started_us: int
    expected_rows: int | None = None
    hurried: bool = False
    row_form: JsonForm | None = None
    notes: tuple[str, ...] = ()
    can_quarantine: bool = True

    @property
    def quarantine(self) -> bool:
        """Whether bad rows are put aside."""
        return self.asked.on_bad_rows == "quarantine"


def ingest(
    table: OpenTable,
    rows: SourceRows,
    asked: "Ingest",
    new_columns: NewColumnsOf | None = None,
    *,
    expected_rows: int | None = None,
    hurried: bool = False,
    row_form: JsonForm | None = None,
    notes: tuple[str, ...] = (),
) -> JobResult:
    """Append rows: pending until a MetaGen, or visible at once when their metadata are made inline.

    Rows of a business snapshot that has to wait for the open one are pending in any case. Without
    `on_empty` a source without a row is accepted.
    """
    run = start_ingest(table, asked, new_columns)
    name = asked.business_snapshot
    if isinstance(run, JobResult):
        return run if asked.metadata == "batch" or name is not None else check_visible(run)
    run = replace(run, expected_rows=expected_rows, hurried=hurried, row_form=row_form, notes=notes)
    source_rows = rows(run.base.spec, run.number)
    if asked.metadata == "batch" or (name is not None and waits(table.log, run.base, name)):
        return commit_ingest(table.log, run, write_segments(table, source_rows, run))
    outputs, rule_outputs = write_inline(table, source_rows, run)
    result = commit_ingest(table.log, run, outputs, rule_outputs)
    fold_if_due(table.log, run.base, result.version)
    return result


def start_ingest(
    table: OpenTable, asked: "Ingest", new_columns: NewColumnsOf | None = None
) -> IngestRun | JobResult:
    """Claim a number; or the result, if this was done before. New columns come in a commit of their own, before that of the rows."""
    check_names(asked)
    started_us = table.log.clock.now_us()
    base = table.log.head(to_commit=True)
    base.spec.require_keys("an ingest")
    earlier = table.log.earlier_result(base, "ingest", asked.token, asked.application)
    if earlier is not None:
        return earlier
    check_positions(base, asked.positions or {}, table.log.read_commit)
    if asked.business_snapshot is not None:
        base.root.business.check_ingest(asked.business_snapshot, base.root.savepoints)
    base = with_new_columns(table.log, base, asked.on_new_columns, new_columns)
    return IngestRun(
        asked=asked,
        number=claim_number(table.storage, base.root, "ingest", table.log.clock),
        base=base,
        started_us=started_us,
    )


def check_names(asked: "Ingest") -> None:
    """Raise InvalidInputError for a name that no commit can hold, before a file is written."""
    check_token(asked.token)
    check_application(asked.application)
    check_position_names(asked.positions or {}, asked.application)
    check_partition_key(asked.partition_key)
    check_replaces(asked.replaces or (), asked.token)


def write_segments(table: OpenTable, rows: Rows, run: IngestRun) -> list[IngestOutput]:
    """A task for each partition of the rows."""
    task = partial(
        write_partition,
        storage=table.storage,
        spec=run.base.spec,
        number=run.number,
        quarantine=run.quarantine,
        row_form=run.row_form,
    )
    return table.executor.by_partition(rows, run.base, task)


def write_inline(
    table: OpenTable, rows: Rows, run: IngestRun
) -> tuple[list[IngestOutput], JobOutputs]:
    """A task for each range of the key hash."""
    writer = slot_writer(run.base, run.number, table.cache, hurried=run.hurried)
    slots = table.executor.slots(writer.merged_entries, rows)
    task = partial(
        write_slot,
        spec=run.base.spec,
        writer=writer,
        slots=slots,
        quarantine=run.quarantine,
        row_form=run.row_form,
        known=KnownTable(snapshot=run.base),
    )
    written = table.executor.by_key_hash(rows, run.base, slots, task)
    outputs = tuple(output.rule_output for output in written)
    return [output.ingested for output in written], JobOutputs(
        writer=writer, outputs=outputs, slots=slots
    )


def commit_ingest(
    log: CommitLog,
    run: IngestRun,
    outputs: Sequence[IngestOutput],
    rule_outputs: JobOutputs | None = None,
) -> JobResult:
    """Add the segments, pending unless the rule was applied to them inline.

    Fails before anything is in the log when there were bad rows that nobody wants put aside, or more than may be.
    """
    asked = run.asked
    rejected, examples = _check_rows(log, run, outputs)
    files = sorted(
        (file for output in outputs for file in output.files), key=lambda file: file.segments
    )
    counts = _counts(files, rejected, rule_outputs)
    look_ups = [output.look_ups for output in outputs if output.look_ups is not None]
    tries = count()

    def build(head: Snapshot, winners: Sequence[Commit]) -> Draft | None:
        replaced = discarding(head, Selection(tokens=tuple(asked.replaces or ())).of(head))
        if not (files or rejected or asked.positions or replaced.discarded) and (
            asked.token,
            asked.application,
            asked.business_snapshot,
        ) == (None, None, None):
            return None
        if look_ups and rule_outputs is not None:
            check_look_ups(head, rule_outputs.writer.cache, run.base.version, look_ups)
        unused_tokens = _unused_tokens(run, head)
        notes = [*run.notes, *_replaced_notes(replaced, unused_tokens)]
        notes += [*_notes_of_business(run, head, is_inline=rule_outputs is not None)]
        placed = assign_groups(files, head)
        actions = _processing(rule_outputs, head, winners, placed) if rule_outputs else Actions()
        is_side = len(placed) > MAX_FILES_IN_COMMIT
        side = _write_side(log, run.number, next(tries), placed) if is_side else None
        actions = replace(
            actions,
            ingested=() if is_side else placed,
            ingested_side=side,
            discarded=replaced.discarded,
            withdrawn=replaced.withdrawn,
            unheld=replaced.unheld,
            replaced_tokens=unused_tokens,
        )
        notes += [
            f"rejected {count_text(number, 'row')}: {reason}"
            for reason, number in rejected.most_common()
        ]
        notes += [_where(log, run)] if rejected else []
        notes += (
            [*rule_notes(rule_outputs.counts), *_pending_notes(head, replaced)]
            if rule_outputs
            else ()
        )
        result = JobResult(
            operation="ingest",
            table=log.storage.uri,
            counts=counts | _replaced_counts(run, replaced),
            notes=tuple(notes),
            examples=examples,
        )
        return Draft(actions=actions, result=result, changes_view=bool(actions.processed))

    name = asked.business_snapshot
    begins = rule_outputs is not None and name is not None and run.base.root.business.is_held(name)
    if begins and name is not None:
        finish_before(log, name)
    proposal = Proposal(
        operation="ingest",
        number=run.number,
        build=build,
        started_us=run.started_us,
        token=asked.token,
        application=asked.application,
        positions=asked.positions or {},
        partition_key=asked.partition_key,
        business_snapshot=asked.business_snapshot,
        at_once=rule_outputs is not None and not begins,
    )
    return log.commit(run.base, proposal)


def _check_rows(
    log: CommitLog, run: IngestRun, outputs: Sequence[IngestOutput]
) -> tuple[Counter[str], Sequence[Mapping[str, Any]]]:
    """What was rejected, and examples of it; an error where there may not be any, or so many."""
    rejected = fewer_reasons(sum((Counter(dict(output.rejected)) for output in outputs), Counter()))
    examples = tuple(example for output in outputs for example in output.examples)[:EXAMPLES]
    met = rejected.total() + sum(file.rows for output in outputs for file in output.files)
    if rejected and not run.quarantine:
        raise InvalidInputError(_refusal(run, rejected, examples))
    threshold = parse_threshold(run.asked.reject_threshold, run.asked.on_bad_rows)
    if threshold is not None and threshold.is_exceeded(rejected.total(), met):
        raise InvalidInputError(_too_many(threshold, met, rejected, examples, _where(log, run)))
    if (
        run.asked.on_empty == "fail"
        and not rejected
        and not any(output.files for output in outputs)
    ):
        raise NoRowsError(
            "the source has no row; nothing was ingested. If that is to be expected: on_empty='accept' (`opal ingest --accept-empty`)"
        )
    if run.expected_rows not in (None, met):
        raise InvalidInputError(
            f"the source gave {count_text(met, 'row')}, listed were {run.expected_rows:,}: it changed meanwhile, or was not read "
            f"completely; nothing was ingested: run it again when nobody writes to the source"
        )
    return rejected, examples


def _counts(
    files: Sequence[DataFile], rejected: Counter[str], rule_outputs: JobOutputs | None
) -> dict[str, int]:
    counts = {
        "rows": sum(file.rows for file in files),
        "files": len(files),
        "bytes": sum(file.size for file in files),
    }
    if rule_outputs is not None and rule_outputs.counts["rows"] != counts["rows"]:
        raise FormatError(
            f"the tasks wrote {counts['rows']} rows and applied the rule to {rule_outputs.counts['rows']}; nothing was ingested"
        )
    return (
        counts
        | {"rejected": rejected.total()}
        | (rule_counts(rule_outputs.counts, len(files)) if rule_outputs else {})
    )


def _notes_of_business(run: IngestRun, head: Snapshot, *, is_inline: bool) -> Iterator[str]:
    """Whether rows of its business snapshot may still come, and that they are held back."""
    name, business = run.asked.business_snapshot, head.root.business
    if name is None:
        return
    business.check_ingest(name, head.root.savepoints)
    if business.is_held(name):
        if is_inline:
            raise ConflictError(
                f"while rows of business snapshot {name} were written, others added rows of {business.open}, which is earlier; run it again"
            )
        yield f"rows of business snapshot {name} are held back until {business.open} is finished, by a metagen after the drift time"


def _unused_tokens(run: IngestRun, head: Snapshot) -> tuple[str, ...]:
    """Return the tokens of replaced tries that have not committed: they may be running still."""
    return tuple(
        token for token in run.asked.replaces or () if head.version_of_token(token) is None
    )


def _replaced_counts(run: IngestRun, replaced: Actions) -> dict[str, int]:
    """The pending rows that an ingest takes the place of, if it names earlier tries."""
    if not run.asked.replaces:
        return {}
    return {"replaced": sum(one.segment.rows for one in replaced.discarded)}


def _replaced_notes(replaced: Actions, unused_tokens: Sequence[str]) -> list[str]:
    notes = []
    if replaced.discarded:
        rows = sum(one.segment.rows for one in replaced.discarded)
        notes.append(
            f"discarded {count_text(rows, 'pending row')} of earlier tries, "
            "which these rows replace"
        )
    if unused_tokens:
        notes.append(
            f"no ingest has committed with token {', '.join(map(repr, unused_tokens))}, "
            "which these rows replace; one that is still running can no longer commit"
        )
    return notes


def _pending_notes(head: Snapshot, replaced: Actions) -> list[str]:
    """What an inline ingest does not take up."""
    pending = head.root.pending - len(replaced.discarded)
    if not pending:
        return []
    wait = "waits" if pending == 1 else "wait"
    return [
        f"{count_text(pending, 'segment')} of earlier ingests {wait} for a metagen; an inline ingest leaves them"
    ]


def _processing(
    rule_outputs: JobOutputs, head: Snapshot, winners: Sequence[Commit], placed: Sequence[DataFile]
) -> Actions:
    processed = tuple(sorted(map(segment_of_file, placed), key=lambda segment: segment.id))
    return replace(rule_outputs.actions(head, winners, placed), processed=processed)


def assign_groups(files: Sequence[DataFile], head: Snapshot) -> tuple[DataFile, ...]:
    """Each new segment in a group."""
    groups = plan_groups(
        head.root.groups, [file.rows for file in files], head.spec.integer("group_rows")
    )
    return tuple(replace(file, group=group) for file, group in zip(files, groups, strict=True))


def plan_groups(filled: Mapping[int, int], sizes: Sequence[int], group_rows: int) -> list[int]:
    """Return the group of each new segment, in order: the newest one until it is full.

    A segment larger than a whole group gets one of its own.
    """
    newest = max(filled, default=0)
    rows = filled.get(newest, 0)
    chosen = []
    for size in sizes:
        if rows and rows + size > group_rows:
            newest, rows = newest + 1, 0
        rows += size
        chosen.append(newest)
    return chosen


def _write_side(log: CommitLog, number: int, attempt: int, files: Sequence[DataFile]) -> SideFile:
    check_ingested(files, number)
    return write_side(log.storage, number, attempt, files, file_to_json)


def _where(log: CommitLog, run: IngestRun) -> str:
    """Of the rows that were put aside, and how to look at them."""
    try:
        root = spark_path(log.storage)
    except InvalidInputError:  # a place that Spark cannot read
        root = log.storage.uri
    path = f"{root}/{layout.rejected_pattern(run.number)}"
    return f"rows that were put aside, with reason and source: spark.read.parquet({path!r}).show(truncate=False)"


def _too_many(
    threshold: RejectThreshold,
    met: int,
    rejected: Counter[str],
    examples: Sequence[object],
    where: str,
) -> str:
    total = rejected.total()
    return (
        f"{total:,} of {count_text(met, 'row')} ({100 * total / met:.3g}%) cannot go into the table, and "
        f"reject_threshold={str(threshold)!r} allows {threshold.most(met):,}, so nothing was ingested:\n{_reasons(rejected, examples)}\n"
        f"Correct the source, or raise the threshold. Until a retention deletes them: {where}"
    )


def _reasons(rejected: Counter[str], examples: Sequence[object]) -> str:
    reasons = "\n".join(
        f"  {count_text(number, 'row')}: {reason}" for reason, number in rejected.most_common()
    )
    return "\n".join([reasons, "for example:", *(f"  {example}" for example in examples)])


def _refusal(run: IngestRun, rejected: Counter[str], examples: Sequence[object]) -> str:
    remedy = (
        "use on_bad_rows='quarantine' (`opal ingest --quarantine`)"
        if run.can_quarantine
        else "ingest the rows by OpalTable.ingest(rows, on_bad_rows='quarantine')"
    )
    return (
        f"{count_text(rejected.total(), 'row')} cannot go into the table, so nothing was ingested:\n{_reasons(rejected, examples)}\n"
        f"Correct the source, or {remedy} to let the good rows in and put these aside."
    )
