"""A MetaGen from its plan to its commit.

Each task applies the rule to the pending rows of one range of the key hash. One commit makes the
rows of all tasks visible.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from opal_lake.data.segment import DataFile, Segment
from opal_lake.engine.open_table import OpenTable
from opal_lake.engine.results import find_result, keep_result
from opal_lake.errors import ConflictError, FormatError
from opal_lake.log.claim import claim_number
from opal_lake.log.commit import Commit
from opal_lake.log.commit_log import CommitLog
from opal_lake.log.conflict import Draft, Proposal
from opal_lake.log.pending import (
    MAX_KEYS_LISTED,
    WITHOUT_KEY,
    Selection,
    check_tokens,
    discarded_since,
    pending_keys,
    pending_notes,
)
from opal_lake.log.snapshot import Snapshot
from opal_lake.result import JobResult
from opal_lake.rule.outputs import (
    JobOutputs,
    rule_counts,
    rule_notes,
    slot_writer,
    statement_counts,
)
from opal_lake.savepoints.business_snapshot import (
    finish_what_is_over,
    held_notes,
    is_over,
    may_finish,
    segments_due,
)
from opal_lake.write.metagen_task import process_entries

_MAX_PLANS = 16  # of one MetaGen: it plans again after each discard, and at last gives up


class DiscardedError(ConflictError):
    """An error of a MetaGen of which another job has discarded segments.

    The MetaGen has to begin again, because its runs hold entries of discarded rows. `segments` are
    all segments that it selected when it began.
    """

    def __init__(self, message: str, segments: frozenset[int]) -> None:
        super().__init__(message)
        self.segments = segments


@dataclass(frozen=True, slots=True, kw_only=True)
class MetaGenPlan:
    """The segments that a MetaGen makes visible, and the files that hold their rows.

    `selects_held` is true if it also selects segments that are held back.
    """

    number: int
    base: Snapshot
    started_us: int
    segments: tuple[int, ...]
    files: tuple[DataFile, ...]
    selection: Selection = WITHOUT_KEY
    selects_held: bool = False

    @property
    def rows(self) -> int:
        """The number of rows to make visible."""
        return sum(file.rows for file in self.files)


def metagen(
    table: OpenTable, token: str | None = None, selection: Selection = WITHOUT_KEY
) -> JobResult:
    """Apply the rule to the selected pending rows and make them visible.

    The rows of each business snapshot are a commit of their own. The last commit has the token.
    """
    among: frozenset[int] | None = None
    for _ in range(_MAX_PLANS - 1):
        try:
            return _metagen(table, token, selection, among)
        except DiscardedError as error:
            # Rows that replaced the discarded ones came after this job began, and perhaps nobody
            # has checked them yet. They are left to the next MetaGen
            among = error.segments
    return _metagen(table, token, selection, among)


def _metagen(
    table: OpenTable, token: str | None, selection: Selection, among: frozenset[int] | None
) -> JobResult:
    """Make a commit for each business snapshot; return the result of the last commit.

    If `among` is given, only these segments are made visible.
    """
    while True:
        plan = start_metagen(table, token, selection, among)
        if isinstance(plan, JobResult):
            return plan
        if among is None:
            among = selection.of(plan.base)
        over = is_over(table.log, plan.base)
        takes_all_due = segments_due(plan.base) <= {*plan.segments}
        # This commit finishes the open business snapshot: selected rows that it held back become
        # due, and need another commit
        frees_held_rows = over and plan.selects_held and takes_all_due
        is_last = not frees_held_rows
        outputs = apply_to_pending(table, plan)
        try:
            result = commit_metagen(table.log, plan, outputs, token if is_last else None)
        except DiscardedError as error:
            raise DiscardedError(str(error), among) from error
        if is_last:
            if over:
                finish_what_is_over(table.log, table.log.refresh(plan.base))
            return result


def start_metagen(
    table: OpenTable,
    token: str | None,
    selection: Selection = WITHOUT_KEY,
    among: frozenset[int] | None = None,
) -> MetaGenPlan | JobResult:
    """Claim a number and plan a MetaGen of the selected pending segments.

    If `among` is given, only these segments are planned. If an equal job was done before or there
    is nothing to do, return its result instead. An open business snapshot without pending rows is
    finished first, once its drift time is over.
    """
    started_us = table.log.clock.now_us()
    base = table.log.head()
    base.spec.require_keys("a MetaGen")
    earlier = find_result(table.log, base, "metagen", token)
    if earlier is not None:
        return earlier
    if among is None:
        _check_selected_tokens(table.log, base, selection)
    base = finish_what_is_over(table.log, base)
    due = selection.of(base) & segments_due(base)
    if among is not None:
        due &= among
    if not due:
        return nothing_pending(table.log, base, token, selection)
    number = claim_number(table.storage, base.root, "metagen", table.log.clock)
    return plan_metagen(base, number, started_us, selection, among)


def result_without_work(
    log: CommitLog, head: Snapshot, token: str | None, selection: Selection
) -> JobResult | None:
    """Return the result of a MetaGen that was done before or has nothing to do.

    Return None if a job has to run, for rows or to finish a business snapshot. Rows that come after
    this version do not count: a job leaves rows that come after its plan to the next MetaGen.
    """
    head.spec.require_keys("a MetaGen")
    earlier = find_result(log, head, "metagen", token)
    if earlier is not None:
        return earlier
    _check_selected_tokens(log, head, selection)
    has_rows = bool(selection.of(head) & segments_due(head))
    if has_rows or may_finish(log, head):
        return None
    return nothing_pending(log, head, token, selection)


def _check_selected_tokens(log: CommitLog, head: Snapshot, selection: Selection) -> None:
    read_back = log.reading_back(head.root.oldest_version)
    check_tokens(head, selection.tokens or (), log.read_commit, read_back)


def plan_metagen(
    base: Snapshot,
    number: int,
    started_us: int,
    selection: Selection = WITHOUT_KEY,
    among: frozenset[int] | None = None,
) -> MetaGenPlan:
    """Plan a MetaGen of the selected segments that are not held back."""
    selected = selection.of(base)
    due = segments_due(base)
    pending = selected & due
    if among is not None:
        pending &= among
    # A pending segment has a file of its own: no rewrite joins it with other segments
    files = tuple(file for file in base.files.values() if not pending.isdisjoint(file.segments))
    return MetaGenPlan(
        number=number,
        base=base,
        started_us=started_us,
        segments=tuple(sorted(pending)),
        files=files,
        selection=selection,
        selects_held=bool(selected - due),
    )


def apply_to_pending(table: OpenTable, plan: MetaGenPlan) -> JobOutputs:
    """Run the tasks of a plan, one for each range of the key hash."""
    writer = slot_writer(plan.base, plan.number, table.cache)
    # Tasks also merge entries of runs, so these count for the number of tasks
    slots = table.executor.slots(plan.rows + writer.merged_entries)
    task = partial(process_entries, writer=writer, slots=slots)
    outputs = table.executor.stored_by_key_hash(plan.base, plan.files, slots, task)
    return JobOutputs(writer=writer, outputs=tuple(outputs), slots=slots)


def commit_metagen(
    log: CommitLog, plan: MetaGenPlan, rule_outputs: JobOutputs, token: str | None
) -> JobResult:
    """Make the processed rows visible.

    Commits nothing if other writers have made all processed rows visible already.
    """
    ruled_rows = rule_outputs.counts["rows"]
    if ruled_rows != plan.rows:
        raise FormatError(
            f"{log.storage.uri}: the pending files have {plan.rows} rows by the metadata, but the "
            f"job read {ruled_rows} rows; run `opal check`"
        )
    # The head of the last attempt to commit: a result without a commit describes this head
    last_head = plan.base

    def build(head: Snapshot, winners: Sequence[Commit]) -> Draft | None:
        nonlocal last_head
        last_head = head
        _check_none_discarded(plan, head)
        still_pending = frozenset(plan.segments) & head.pending
        if not still_pending:
            return None
        staying = _staying(log, head, still_pending)
        processed = _processed(head, still_pending)
        # First, as it counts what it redoes
        actions = replace(rule_outputs.actions(head, winners), processed=processed)
        counts = rule_outputs.counts
        result = JobResult(
            operation="metagen",
            table=log.storage.uri,
            counts={
                **rule_counts(counts, len(still_pending)),
                **statement_counts(counts),
                **staying.counts,
            },
            notes=(*rule_notes(counts, head.spec), *staying.notes),
            examples=staying.examples,
        )
        return Draft(actions=actions, result=result, changes_view=True)

    proposal = Proposal(
        operation="metagen",
        number=plan.number,
        build=build,
        started_us=plan.started_us,
        token=token,
        business_snapshot=plan.base.root.business.open,
    )
    result = log.commit(plan.base, proposal)
    if result.version is not None:
        return result
    return nothing_pending(log, last_head, token, plan.selection)


def _processed(head: Snapshot, numbers: Iterable[int]) -> tuple[Segment, ...]:
    """Return pending segments in the form of the commit that makes them visible."""
    processed = []
    for number in sorted(numbers):
        pending = head.pending_segments[number]
        processed.append(Segment(id=pending.id, rows=pending.rows, group=pending.group))
    return tuple(processed)


def _check_none_discarded(plan: MetaGenPlan, head: Snapshot) -> None:
    """Raise DiscardedError if a segment of the plan was discarded after it was made."""
    gone = discarded_since(head, plan.base.version)
    discarded = [segment for segment in plan.segments if segment in gone]
    if discarded:
        version = gone[discarded[0]]
        raise DiscardedError(
            f"version {version} discarded rows that this metagen had planned to make visible; "
            "run the metagen again",
            frozenset(plan.segments),
        )


def nothing_pending(
    log: CommitLog, head: Snapshot, token: str | None, selection: Selection
) -> JobResult:
    """Store and return the result of a MetaGen that has nothing to do.

    Its version is the head, where all selected rows are visible.
    """
    staying = _staying(log, head)
    done = JobResult(
        operation="metagen",
        table=head.storage.uri,
        version=head.version,
        token=token,
        counts={**rule_counts(Counter(), 0), **staying.counts},
        notes=(*_nothing_notes(head, selection), *staying.notes),
        examples=staying.examples,
    )
    return keep_result(head.storage, done)


def _nothing_notes(head: Snapshot, selection: Selection) -> tuple[str, ...]:
    """Return a note why nothing was done, if a partition key or a token was given."""
    if selection.all or selection == WITHOUT_KEY:
        return ()
    selected = selection.of(head)
    if selected & segments_due(head):
        return (f"rows of {selection.name} that came meanwhile stay pending",)
    if selected:
        return (f"the pending rows of {selection.name} are held back",)
    return (f"no row of {selection.name} is pending",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Staying:
    """The part of a result about rows that stay pending; empty without such rows."""

    counts: Mapping[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    examples: tuple[Mapping[str, Any], ...] = ()


def _staying(log: CommitLog, head: Snapshot, processed: frozenset[int] = frozenset()) -> Staying:
    """Describe the segments that stay pending when some are processed.

    Segments that are held back are listed by business snapshot, all other ones by partition key.
    """
    if head.root.pending <= len(processed):
        return Staying(notes=held_notes(head))
    pending = head.pending_segments.values()
    staying = [segment for segment in pending if segment.id not in processed]
    held_back = head.pending - segments_due(head)
    keys = pending_keys(head, processed | held_back)
    return Staying(
        counts={
            "pending_segments": len(staying),
            "pending_rows": sum(segment.rows for segment in staying),
        },
        notes=(*held_notes(head), *pending_notes(keys, log.clock.now_us())),
        examples=tuple(key.to_json() for key in keys[:MAX_KEYS_LISTED]),
    )
