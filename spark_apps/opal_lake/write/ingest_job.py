"""An ingest from the claim of its number to the commit.

Its tasks write rows to segments; an inline ingest applies the rule to them in the same tasks.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any

import numpy as np

from opal_lake import layout
from opal_lake.data.json_rows import JsonForm
from opal_lake.data.rejects import EXAMPLES, fewer_reasons, rejects_text
from opal_lake.data.reported import check_ingested
from opal_lake.data.segment import DataFile, SideFile
from opal_lake.definition.job_names import (
    check_application,
    check_partition_key,
    check_position_names,
    check_replaces,
    check_token,
)
from opal_lake.definition.schema import COMMIT
from opal_lake.definition.table_spec import NO_DELETES, TableSpec, stream_by_commit
from opal_lake.engine.executor import Rows
from opal_lake.engine.open_table import OpenTable
from opal_lake.errors import ConflictError, FormatError, InvalidInputError, NoRowsError, count_text
from opal_lake.events.segment_log import read_events
from opal_lake.ids import segment_part
from opal_lake.log.claim import claim_number
from opal_lake.log.commit import Actions, Commit, file_to_json
from opal_lake.log.commit_log import CommitLog
from opal_lake.log.conflict import Draft, Proposal, check_positions
from opal_lake.log.lists import segment_of_file
from opal_lake.log.pending import Selection, discarding
from opal_lake.log.sections import write_side
from opal_lake.log.snapshot import Snapshot
from opal_lake.maintenance.fold_files import fold_if_due
from opal_lake.read.view import View
from opal_lake.reject_threshold import RejectThreshold, parse_threshold
from opal_lake.result import JobResult, check_visible
from opal_lake.rule.outputs import (
    JobOutputs,
    rule_counts,
    rule_notes,
    slot_writer,
    statement_counts,
)
from opal_lake.savepoints.business_snapshot import finish_before, waits
from opal_lake.storage.spark_path import spark_path
from opal_lake.write.commit_time import commit_time
from opal_lake.write.ingest_task import IngestOutput, write_partition
from opal_lake.write.inline import write_slot
from opal_lake.write.spec_change import NewColumnsOf, with_new_columns
from opal_lake.write.touched import KeysTouchedError, check_untouched
from opal_lake.write.unchanged import KnownTable, check_look_ups

if TYPE_CHECKING:
    from opal_lake.operations.ingest import Ingest

# Returns a source's rows with the table's columns, for the executor. It is called with the number
# of the job, and only if there is work to do
SourceRows = Callable[[TableSpec, int], Rows]


# Of an ingest that depends on the rows of its base: how often it runs if they change
INGEST_TRIES = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestRun:
    """A started ingest: its arguments, and the number that it claimed.

    - `expected_rows` is the number of rows by a list of the source.
    - A `hurried` caller has to make the next commit soon. An inline ingest then leaves large merges
      of the key store to a compaction.
    - `row_form` is the form of the JSON of rejected rows; None if it lacks some of the source's
      data.
    - `notes` come first in the result.
    - `can_quarantine` is False for a caller that has no option to put bad rows aside.
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
    def spec(self) -> TableSpec:
        """The definition of the table by which rows are written.

        An ingest that ends rows gives a table without a delete condition the one that no row meets.
        """
        if self.asked.mode == "replace" and self.base.spec.deletes is None:
            return replace(self.base.spec, deletes=NO_DELETES)
        return self.base.spec

    @property
    def quarantine(self) -> bool:
        """True if bad rows are put aside; False if they fail the ingest."""
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
    """Append rows: pending until a MetaGen, or visible immediately if ingested inline.

    Rows of a business snapshot that has to wait for the open one are pending in any case.
    """
    run = start_ingest(table, asked, new_columns)
    is_batch = asked.metadata == "batch"
    name = asked.business_snapshot
    if isinstance(run, JobResult):
        may_be_pending = is_batch or name is not None
        return run if may_be_pending else check_visible(run)
    if row_form is not None and row_form.schema is None:
        row_form = replace(row_form, schema=run.base.spec.schema)
    run = replace(run, expected_rows=expected_rows, hurried=hurried, row_form=row_form, notes=notes)
    if run.base.spec.orders_by_commit or asked.mode == "replace":
        return _ingest_on_base(table, rows, run)
    source_rows = rows(run.base.spec, run.number)
    is_held_back = not is_batch and name is not None and waits(table.log, run.base, name)
    if is_batch or is_held_back:
        return commit_ingest(table.log, run, write_segments(table, source_rows, run))
    outputs, rule_outputs = write_inline(table, source_rows, run)
    result = commit_ingest(table.log, run, outputs, rule_outputs)
    fold_if_due(table.log, run.base, result.version)
    return result


def _ingest_on_base(table: OpenTable, rows: SourceRows, run: IngestRun) -> JobResult:
    """Run an ingest, again if another job changes rows that it depends on.

    In a table that orders rows by their commits, these are rows of the same keys: the last job to
    commit has the greatest time. An ingest that replaces a partition key depends on its rows.
    """
    for attempt in range(INGEST_TRIES):
        try:
            result = _ingest_once(table, rows, run)
        except KeysTouchedError as error:
            if attempt + 1 == INGEST_TRIES:
                raise ConflictError(
                    f"the ingest ran {INGEST_TRIES} times, and each time another job changed its "
                    f"rows before it committed: {error}; run it again"
                ) from error
            again = start_ingest(table, run.asked)
            if isinstance(again, JobResult):
                return again
            run = replace(run, number=again.number, base=again.base)
        else:
            fold_if_due(table.log, run.base, result.version)
            return result
    raise AssertionError


def _ingest_once(table: OpenTable, rows: SourceRows, run: IngestRun) -> JobResult:
    """Ingest rows, with deletes of the rows that an ingest with `mode="replace"` ends."""
    with _with_ended(table, rows(run.spec, run.number), run) as source_rows:
        if run.asked.metadata == "batch":
            return commit_ingest(table.log, run, write_segments(table, source_rows, run))
        outputs, rule_outputs = write_inline(table, source_rows, run)
        return commit_ingest(table.log, run, outputs, rule_outputs)


def _with_ended(table: OpenTable, rows: Rows, run: IngestRun) -> AbstractContextManager[Rows]:
    """Return a source's rows, with deletes of the visible rows that it no longer has."""
    if run.asked.mode != "replace":
        return nullcontext(rows)
    segments = _replaced_segments(run.base, run.asked)
    if not segments:
        return nullcontext(rows)
    return table.executor.with_ended(rows, View(snapshot=run.base, only=segments))


def _replaced_segments(base: Snapshot, asked: "Ingest") -> frozenset[int]:
    """Return the visible segments of the ingest's partition key."""
    numbers = base.partitions.get(str(asked.partition_key), frozenset())
    if not numbers:
        return frozenset()
    visible = base.segments.keys() - base.pending
    return frozenset(segment for segment in visible if segment_part(segment) in numbers)


def _check_winners(
    head: Snapshot,
    winners: Sequence[Commit],
    run: IngestRun,
    files: Sequence[DataFile],
    rule_outputs: JobOutputs | None,
) -> None:
    """Raise KeysTouchedError if winners changed rows on which the ingest depends."""
    if rule_outputs and run.base.spec.orders_by_commit:
        for winner in winners:
            check_untouched(winner, run.base, run.spec, files, rule_outputs)
    if run.asked.mode == "replace":
        _check_replaced(head, winners, run.asked)


def _check_replaced(head: Snapshot, winners: Sequence[Commit], asked: "Ingest") -> None:
    """Raise KeysTouchedError if a winner changed rows of the replaced key."""
    numbers = head.partitions.get(str(asked.partition_key), frozenset())
    for winner in winners:
        if not winner.actions.processed:
            # The logs of a compaction hold older events
            continue
        parts = {segment_part(segment) for segment in winner.actions.processed_ids}
        for log in winner.actions.add_logs:
            events = read_events(head.storage, log)
            parts |= {segment_part(segment) for segment in np.unique(events.segment).tolist()}
        if not parts.isdisjoint(numbers):
            raise KeysTouchedError(
                f"version {winner.version} changed rows of partition key {asked.partition_key!r}, "
                "which the ingest replaces"
            )


def _check_commit_order(spec: TableSpec, asked: "Ingest") -> None:
    """Raise InvalidInputError for an ingest whose rows cannot be ordered by commits."""
    if not spec.orders_by_commit:
        return
    table = f"the table orders rows by the time of their jobs (delta={COMMIT!r})"
    if asked.metadata == "batch":
        raise InvalidInputError(
            f"{table}, so that they cannot wait for a metagen; ingest with metadata='inline', or "
            "use upsert"
        )
    if asked.business_snapshot is not None or asked.business_snapshot_column is not None:
        raise InvalidInputError(
            f"{table}, so that they cannot be held back for a business snapshot; leave out "
            "business_snapshot"
        )
    if asked.positions:
        raise stream_by_commit()


def start_ingest(
    table: OpenTable, asked: "Ingest", new_columns: NewColumnsOf | None = None
) -> IngestRun | JobResult:
    """Start an ingest and claim its number; or return the result of an earlier one.

    New columns are added in a commit of their own, before the commit of the rows.
    """
    check_names(asked)
    asked.check_key()
    started_us = table.log.clock.now_us()
    base = table.log.head(to_commit=True)
    base.spec.require_keys("an ingest")
    earlier = table.log.earlier_result(base, "ingest", asked.token, asked.application)
    if earlier is not None:
        return earlier
    _check_commit_order(base.spec, asked)
    check_positions(base, asked.positions or {}, table.log.read_commit)
    if asked.business_snapshot is not None:
        base.root.business.check_ingest(asked.business_snapshot, base.root.savepoints)
    # Before the number is claimed: the tasks write by the spec of this base
    base = with_new_columns(table.log, base, asked.on_new_columns, new_columns)
    return IngestRun(
        asked=asked,
        number=claim_number(table.storage, base.root, "ingest", table.log.clock),
        base=base,
        started_us=started_us,
    )


def check_names(asked: "Ingest") -> None:
    """Raise InvalidInputError for a token or other name that a commit cannot hold.

    It is called before any file is written.
    """
    check_token(asked.token)
    check_application(asked.application)
    check_position_names(asked.positions or {}, asked.application)
    check_partition_key(asked.partition_key)
    check_replaces(asked.replaces or (), asked.token)


def write_segments(table: OpenTable, rows: Rows, run: IngestRun) -> list[IngestOutput]:
    """Write the rows to segments, in a task for each partition of the rows."""
    task = partial(
        write_partition,
        storage=table.storage,
        spec=run.spec,
        number=run.number,
        quarantine=run.quarantine,
        row_form=run.row_form,
    )
    return table.executor.by_partition(rows, run.base, task)


def write_inline(
    table: OpenTable, rows: Rows, run: IngestRun
) -> tuple[list[IngestOutput], JobOutputs]:
    """Write the rows and apply the rule, in a task for each range of the key hash."""
    writer = slot_writer(run.base, run.number, table.cache, hurried=run.hurried)
    slots = table.executor.slots(writer.merged_entries, rows)
    task = partial(
        write_slot,
        spec=run.spec,
        writer=writer,
        slots=slots,
        quarantine=run.quarantine,
        row_form=run.row_form,
        known=KnownTable(snapshot=run.base),
        commit_us=commit_time(table.log, run.base),
    )
    written = table.executor.by_key_hash(rows, run.base, slots, task)
    ingested = [output.ingested for output in written]
    outputs = tuple(output.rule_output for output in written)
    return ingested, JobOutputs(writer=writer, outputs=outputs, slots=slots)


def commit_ingest(
    log: CommitLog,
    run: IngestRun,
    outputs: Sequence[IngestOutput],
    rule_outputs: JobOutputs | None = None,
) -> JobResult:
    """Commit the written segments: visible with `rule_outputs`, otherwise pending.

    Raises InvalidInputError, before the log is changed, if rows are bad and may not be put aside,
    or if too many rows are bad.
    """
    asked = run.asked
    is_inline = rule_outputs is not None
    rejected, examples = _check_rows(log, run, outputs)
    files: list[DataFile] = []
    for output in outputs:
        files += output.files
    files.sort(key=lambda file: file.segments)
    counts = _counts(files, rejected, rule_outputs) | _ended_counts(run, outputs, files)
    look_ups = [output.look_ups for output in outputs if output.look_ups is not None]
    attempts = count()
    # A race that is lost again costs only a look at the new winners
    checked: set[int] = set()

    def build(head: Snapshot, winners: Sequence[Commit]) -> Draft | None:
        fresh = [winner for winner in winners if winner.version not in checked]
        _check_winners(head, fresh, run, files, rule_outputs)
        checked.update(winner.version for winner in fresh)
        replaced = discarding(head, _discarded(head, asked))
        changes_table = files or rejected or asked.positions or replaced.discarded
        if not changes_table and not _is_named(asked):
            return None
        if look_ups and rule_outputs is not None:
            check_look_ups(head, rule_outputs.writer.cache, run.base.version, look_ups)
        unused_tokens = _unused_tokens(run, head)
        notes = [*run.notes, *_replaced_notes(replaced, unused_tokens)]
        notes += _business_notes(run, head, is_inline=is_inline)
        placed = assign_groups(files, head)
        actions = Actions()
        if rule_outputs:
            actions = processing_actions(rule_outputs, head, winners, placed)
        actions = replace(
            with_files(actions, log, run.number, next(attempts), placed),
            spec=_new_spec(head, run),
            discarded=replaced.discarded,
            withdrawn=replaced.withdrawn,
            unheld=replaced.unheld,
            replaced_tokens=unused_tokens,
        )
        notes += _rejected_notes(log, run, rejected)
        if rule_outputs:
            notes += rule_notes(rule_outputs.counts, run.base.spec)
            notes += _pending_notes(head, replaced)
        result = JobResult(
            operation="ingest",
            table=log.storage.uri,
            counts=counts | _replaced_counts(run, replaced) | _statement_counts(rule_outputs),
            notes=tuple(notes),
            examples=examples,
        )
        return Draft(actions=actions, result=result, changes_view=bool(actions.processed))

    name = asked.business_snapshot
    begins_snapshot = False
    if is_inline and name is not None and run.base.root.business.is_held(name):
        begins_snapshot = True
        # Rows of `name` can be visible only after the open business snapshot is finished
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
        skips_refresh=is_inline and not begins_snapshot,
    )
    return log.commit(run.base, proposal)


def _is_named(asked: "Ingest") -> bool:
    """Return whether to commit even without rows, for a repeated call to find."""
    names = (asked.token, asked.application, asked.business_snapshot)
    return names != (None, None, None)


def _check_rows(
    log: CommitLog, run: IngestRun, outputs: Sequence[IngestOutput]
) -> tuple[Counter[str], Sequence[Mapping[str, Any]]]:
    """Return the number of rejected rows by reason, and examples of them.

    Raises an error if the ingest may not reject any rows, or not so many, if it may not be empty,
    or if the source has another number of rows than expected.
    """
    reasons: Counter[str] = Counter()
    examples: list[Mapping[str, Any]] = []
    files: list[DataFile] = []
    for output in outputs:
        reasons.update(output.rejected)
        examples += output.examples
        files += output.files
    rejected = fewer_reasons(reasons)
    examples = examples[:EXAMPLES]
    ended = sum(output.ended for output in outputs)
    rows = rejected.total() + sum(file.rows for file in files) - ended
    if rejected and not run.quarantine:
        raise InvalidInputError(_refusal(run, rejected, examples))
    threshold = parse_threshold(run.asked.reject_threshold, run.asked.on_bad_rows)
    if threshold is not None and threshold.is_exceeded(rejected.total(), rows):
        where = _how_to_read_rejected(log, run)
        raise InvalidInputError(_too_many(threshold, rows, rejected, examples, where))
    if run.asked.on_empty == "fail" and not rows:
        raise NoRowsError(
            "the source has no row; nothing was ingested. If the source may be empty, use "
            "on_empty='accept' (`opal ingest --accept-empty`)"
        )
    if run.expected_rows not in (None, rows):
        raise InvalidInputError(
            f"the source gave {count_text(rows, 'row')}, but lists {run.expected_rows:,}: it "
            "changed meanwhile, or was not read completely. Nothing was ingested; run the ingest "
            "again when nobody writes to the source"
        )
    return rejected, tuple(examples)


def _counts(
    files: Sequence[DataFile], rejected: Counter[str], rule_outputs: JobOutputs | None
) -> dict[str, int]:
    """Return the counts of the result; raise FormatError if the rule missed rows."""
    counts = {
        "rows": sum(file.rows for file in files),
        "files": len(files),
        "bytes": sum(file.size for file in files),
    }
    if rule_outputs is None:
        return {**counts, "rejected": rejected.total()}
    ruled_rows = rule_outputs.counts["rows"]
    if ruled_rows != counts["rows"]:
        raise FormatError(
            f"the tasks wrote {counts['rows']} rows, but applied the rule to {ruled_rows} rows; "
            "nothing was ingested. Report this as a bug"
        )
    rule = rule_counts(rule_outputs.counts, len(files))
    return {**counts, "rejected": rejected.total(), **rule}


def _ended_counts(
    run: IngestRun, outputs: Sequence[IngestOutput], files: Sequence[DataFile]
) -> dict[str, int]:
    """Return the counts of the source's rows and of those that end."""
    if run.asked.mode != "replace":
        return {}
    ended = sum(output.ended for output in outputs)
    return {"rows": sum(file.rows for file in files) - ended, "ended": ended}


def _new_spec(head: Snapshot, run: IngestRun) -> TableSpec | None:
    """Return the definition with a delete condition, if the ingest adds it."""
    if run.spec.deletes is None or head.spec.deletes is not None:
        return None
    return replace(head.spec, deletes=run.spec.deletes)


def _business_notes(run: IngestRun, head: Snapshot, *, is_inline: bool) -> Iterator[str]:
    """Yield a note if the rows are held back.

    Raises InvalidInputError if their business snapshot no longer accepts rows, and ConflictError if
    rows that were written as visible have to be held back now.
    """
    name, business = run.asked.business_snapshot, head.root.business
    if name is None:
        return
    business.check_ingest(name, head.root.savepoints)
    if not business.is_held(name):
        return
    if is_inline:
        raise ConflictError(
            f"while rows of business snapshot {name} were written, another job added rows of the "
            f"earlier business snapshot {business.open}; run the ingest again"
        )
    yield (
        f"rows of business snapshot {name} are held back until {business.open} is finished, "
        "by a metagen after the drift time"
    )


def _unused_tokens(run: IngestRun, head: Snapshot) -> tuple[str, ...]:
    """Return the tokens of replaced ingests without a commit, which may still run."""
    return tuple(
        token for token in run.asked.replaces or () if head.version_of_token(token) is None
    )


def _discarded(head: Snapshot, asked: "Ingest") -> frozenset[int]:
    """Return the pending segments that an ingest replaces."""
    discarded = Selection(tokens=tuple(asked.replaces or ())).of(head)
    if asked.mode == "replace":
        discarded |= Selection(partition_key=asked.partition_key).of(head)
    return discarded


def _rows_discarded(actions: Actions) -> int:
    return sum(discarded.segment.rows for discarded in actions.discarded)


def _replaced_counts(run: IngestRun, replaced: Actions) -> dict[str, int]:
    """Return the count of replaced pending rows, if the ingest names earlier ingests."""
    if not run.asked.replaces and run.asked.mode != "replace":
        return {}
    return {"replaced": _rows_discarded(replaced)}


def _statement_counts(rule_outputs: JobOutputs | None) -> dict[str, int]:
    return {} if rule_outputs is None else statement_counts(rule_outputs.counts)


def _replaced_notes(replaced: Actions, unused_tokens: Sequence[str]) -> list[str]:
    """Return notes on the earlier ingests that an ingest replaces."""
    notes = []
    if replaced.discarded:
        rows = _rows_discarded(replaced)
        notes.append(
            f"discarded {count_text(rows, 'pending row')} of earlier tries, "
            "which these rows replace"
        )
    if unused_tokens:
        notes.append(
            f"no ingest has committed with token {', '.join(map(repr, unused_tokens))}, "
            "which these rows replace; an ingest with it that still runs can no longer commit"
        )
    return notes


def _rejected_notes(log: CommitLog, run: IngestRun, rejected: Counter[str]) -> list[str]:
    """Return notes on the rejected rows, by reason, and on how to read them."""
    if not rejected:
        return []
    notes = [
        f"rejected {count_text(number, 'row')}: {reason}"
        for reason, number in rejected.most_common()
    ]
    return [*notes, _how_to_read_rejected(log, run)]


def _pending_notes(head: Snapshot, replaced: Actions) -> list[str]:
    """Return a note on the segments that an inline ingest leaves to a MetaGen."""
    pending = head.root.pending - len(replaced.discarded)
    if not pending:
        return []
    segments = count_text(pending, "segment")
    wait = "waits" if pending == 1 else "wait"
    return [
        f"{segments} of earlier ingests {wait} for a metagen; an inline ingest leaves them pending"
    ]


def processing_actions(
    rule_outputs: JobOutputs, head: Snapshot, winners: Sequence[Commit], placed: Sequence[DataFile]
) -> Actions:
    """Return the actions that make the placed segments visible."""
    segments = [segment_of_file(file) for file in placed]
    processed = tuple(sorted(segments, key=lambda segment: segment.id))
    return replace(rule_outputs.actions(head, winners, placed), processed=processed)


def with_files(
    actions: Actions, log: CommitLog, number: int, attempt: int, placed: Sequence[DataFile]
) -> Actions:
    """Return actions that add data files: many files go into a side file.

    Each attempt to commit writes a side file of its own, because groups depend on the head.
    """
    if len(placed) > log.tuning.ingest_max_files:
        return replace(actions, ingested_side=_write_side(log, number, attempt, placed))
    return replace(actions, ingested=tuple(placed))


def assign_groups(files: Sequence[DataFile], head: Snapshot) -> tuple[DataFile, ...]:
    """Return the files of new segments with their groups."""
    sizes = [file.rows for file in files]
    groups = plan_groups(head.root.groups, sizes, head.spec.integer("group_rows"))
    return tuple(replace(file, group=group) for file, group in zip(files, groups, strict=True))


def plan_groups(filled: Mapping[int, int], sizes: Sequence[int], group_rows: int) -> list[int]:
    """Return the group of each new segment: the newest group until it is full.

    `filled` has the rows of existing groups, `sizes` the rows of the segments. A segment with more
    than `group_rows` gets a group of its own.
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


def _how_to_read_rejected(log: CommitLog, run: IngestRun) -> str:
    """Return a note with the statement of Spark that shows the rejected rows."""
    try:
        root = spark_path(log.storage)
    except InvalidInputError:  # a store that Spark cannot read
        root = log.storage.uri
    path = f"{root}/{layout.rejected_pattern(run.number)}"
    read = f"spark.read.parquet({path!r}).show(truncate=False)"
    return f"rows that were put aside, with reason and source: {read}"


def _too_many(
    threshold: RejectThreshold,
    rows: int,
    rejected: Counter[str],
    examples: Sequence[object],
    where: str,
) -> str:
    total = rejected.total()
    percent = 100 * total / rows
    return (
        f"{total:,} of {count_text(rows, 'row')} ({percent:.3g}%) cannot go into the table, but "
        f"reject_threshold={str(threshold)!r} allows only {threshold.max_rejected(rows):,}. "
        f"Nothing was ingested:\n{rejects_text(rejected, examples)}\n"
        f"Correct the source, or raise the threshold. Until retention deletes them: {where}"
    )


def _refusal(run: IngestRun, rejected: Counter[str], examples: Sequence[object]) -> str:
    if run.can_quarantine:
        remedy = "ingest the rows with on_bad_rows='quarantine' (`opal ingest --quarantine`)"
    else:
        remedy = "ingest the rows by OpalTable.ingest(rows, on_bad_rows='quarantine')"
    return (
        f"{count_text(rejected.total(), 'row')} cannot go into the table, so nothing was "
        f"ingested:\n{rejects_text(rejected, examples)}\n"
        f"Correct the source, or {remedy} to let the good rows in and put these aside."
    )
