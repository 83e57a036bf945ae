"""A statement from the version that it reads to its commit.

The statement reads a version, claims a number, and computes rows: each ends a row of that version
or is an insert. It commits if no other job touched the keys of these rows meanwhile, otherwise it
runs again from the new head.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import count

from opal_lake.data.rejects import EXAMPLES, rejects_text
from opal_lake.data.segment import DataFile
from opal_lake.definition.table_spec import NO_DELETES, TableSpec
from opal_lake.engine.open_table import OpenTable
from opal_lake.engine.results import find_result, keep_result
from opal_lake.errors import ConflictError, FencedError, InvalidInputError, count_text
from opal_lake.log.claim import claim_number
from opal_lake.log.commit import Commit
from opal_lake.log.conflict import Draft, Proposal
from opal_lake.log.snapshot import Snapshot
from opal_lake.maintenance.fold_files import fold_if_due
from opal_lake.read.region import Region
from opal_lake.read.statement import StatementPlan
from opal_lake.result import JobResult
from opal_lake.rule.outputs import JobOutputs, rule_counts, slot_writer
from opal_lake.savepoints.business_snapshot import finish_what_is_over
from opal_lake.write.commit_time import commit_time
from opal_lake.write.ingest_job import assign_groups, processing_actions, with_files
from opal_lake.write.statement_task import FAULTS, StatementOutput, write_statement_slot
from opal_lake.write.touched import check_region_untouched, check_untouched


@dataclass(frozen=True, slots=True, kw_only=True)
class StatementRun:
    """A statement to run: the name of its operation, and its plan on a given version.

    `tries` is how often it runs if other jobs touch its rows meanwhile. A statement that
    `replaces_definition` commits it even if it writes no row, and needs a table without pending
    rows. `has_latest` is true if its caller can ask for the latest row of each key.
    """

    operation: str
    plan: Callable[[Snapshot], StatementPlan]
    token: str | None = None
    tries: int
    replaces_definition: bool = False
    has_latest: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    """One run of a statement: the version that it read, and what its tasks wrote."""

    statement: StatementRun
    base: Snapshot
    plan: StatementPlan
    spec: TableSpec
    number: int
    started_us: int
    outputs: Sequence[StatementOutput]
    rule_outputs: JobOutputs

    @property
    def files(self) -> list[DataFile]:
        """The data files that were written, in the order of their segments."""
        files: list[DataFile] = []
        for output in self.outputs:
            files += output.ingested.files
        return sorted(files, key=lambda file: file.segments)

    @property
    def changes_nothing(self) -> bool:
        """True if the run has nothing to commit."""
        if self.files:
            return False
        is_defined_anew = self.plan.spec != self.base.spec
        return not (self.statement.replaces_definition and is_defined_anew)


def run_statement(table: OpenTable, statement: StatementRun) -> JobResult:
    """Run a statement until it commits; raise ConflictError if it has no try left."""
    if statement.tries < 1:
        raise InvalidInputError(f"tries must be at least 1, got {statement.tries}")
    started_us = table.log.clock.now_us()
    for attempt in range(statement.tries):
        base = table.log.head()
        base.spec.require_keys(f"the {statement.operation}")
        earlier = find_result(table.log, base, statement.operation, statement.token)
        if earlier is not None:
            return earlier
        try:
            return _run_on(table, statement, base, started_us)
        except FencedError:
            raise
        except ConflictError as error:
            if attempt + 1 == statement.tries:
                raise ConflictError(
                    f"the {statement.operation} ran {count_text(statement.tries, 'time')}, and "
                    f"each time a commit of another job conflicted with it: {error}"
                ) from error
    raise AssertionError


def _run_on(
    table: OpenTable, statement: StatementRun, base: Snapshot, started_us: int
) -> JobResult:
    """Run a statement on the state of a version, and commit it."""
    base = finish_what_is_over(table.log, base)
    plan = statement.plan(base)
    if plan.region is not None and plan.region.is_of_source:
        touched = table.executor.touched_partitions(plan)
        plan = replace(plan, region=Region(partitions=touched))
    spec = _with_deletes(plan)
    # After the head was read: of equal deltas the greater number wins
    number = claim_number(table.storage, base.root, statement.operation, table.log.clock)
    commit_us = commit_time(table.log, base)
    rows = table.executor.statement_rows(plan)
    writer = slot_writer(base, number, table.cache)
    slots = table.executor.statement_slots(plan, rows, writer.merged_entries)
    task = partial(write_statement_slot, spec=spec, writer=writer, slots=slots, commit_us=commit_us)
    outputs = table.executor.by_key_hash(rows, plan.snapshot, slots, task)
    _check_outputs(statement, plan, outputs)
    rule_outputs = JobOutputs(
        writer=writer, outputs=tuple(output.rule_output for output in outputs), slots=slots
    )
    run = _Run(
        statement=statement,
        base=base,
        plan=plan,
        spec=spec,
        number=number,
        started_us=started_us,
        outputs=outputs,
        rule_outputs=rule_outputs,
    )
    if run.changes_nothing:
        return keep_result(table.storage, _result(table, run))
    result = _commit(table, run)
    fold_if_due(table.log, base, result.version)
    return result


def _with_deletes(plan: StatementPlan) -> TableSpec:
    """Return the plan's spec with a column for deletes, if the statement needs one.

    A table without a delete condition gets the condition that no row meets.
    """
    spec = plan.spec
    deletes_rows = any(clause.action == "delete" for clause in plan.clauses)
    if spec.deletes is None and deletes_rows:
        return replace(spec, deletes=NO_DELETES)
    return spec


def _check_outputs(
    statement: StatementRun, plan: StatementPlan, outputs: Sequence[StatementOutput]
) -> None:
    """Raise InvalidInputError for rows that the statement cannot apply."""
    rejected: Counter[str] = Counter()
    rejected_rows: list[str | None] = []
    faults: Counter[str] = Counter()
    examples: dict[str, list[str]] = {reason: [] for reason in FAULTS}
    for output in outputs:
        rejected.update(output.ingested.rejected)
        rejected_rows += [example["row"] for example in output.ingested.examples]
        faults.update(output.faults)
        for reason, examples_of_task in output.examples.items():
            examples[reason] += examples_of_task
    name = statement.operation
    if rejected:
        raise InvalidInputError(
            f"the {name} would write {count_text(rejected.total(), 'row')} that cannot go into the "
            f"table, so nothing was changed:\n{rejects_text(rejected, rejected_rows[:EXAMPLES])}"
        )
    only_deletes = all(clause.action == "delete" for clause in plan.clauses)
    for reason in FAULTS:
        if faults[reason]:
            keys = ", ".join(examples[reason][:EXAMPLES])
            fault = _FAULT_TEXTS[reason]
            if reason == "outlasted" and only_deletes:
                fault = _OUTLASTED_DELETE
            # A table that orders by commit has no latest row
            if reason == "repeated" and statement.has_latest and not plan.spec.orders_by_commit:
                fault += _OR_LATEST
            rows = count_text(faults[reason], "row")
            raise InvalidInputError(
                f"the {name} changed nothing: {rows} {fault}. Keys, for example: {keys}"
            )


_FAULT_TEXTS = {
    "repeated": (
        "with a key that it would write more than once; leave one row of each key in the source"
    ),
    "existing": (
        "would be inserted under keys that the table has already; use upsert or a merge to replace "
        "them"
    ),
    "moved": "would get another key; delete the old row, and insert the new one",
    "outlasted": (
        "with a lower delta or tie-break than the row to replace, which would stay visible; give "
        "a delta that is not lower"
    ),
}
_OR_LATEST = ", or use duplicates='latest'"
_OUTLASTED_DELETE = "with a later delta than `at`, which would stay visible; give a later `at`"


def _commit(table: OpenTable, run: _Run) -> JobResult:
    log, base = table.log, run.base
    attempts = count()
    # A race that is lost again costs only a look at the new winners: hidden rows stay hidden
    checked: set[int] = set()

    def build(head: Snapshot, winners: Sequence[Commit]) -> Draft:
        spec = _spec_on(head, run)
        if run.statement.replaces_definition and head.pending:
            raise ConflictError(f"rows were ingested after version {base.version}")
        fresh = [winner for winner in winners if winner.version not in checked]
        for winner in fresh:
            check_untouched(winner, base, run.spec, run.files, run.rule_outputs)
        if run.plan.region is not None:
            test = table.executor.region_test(run.plan)
            check_region_untouched(fresh, head, test, run.statement.operation)
        checked.update(winner.version for winner in fresh)
        placed = assign_groups(run.files, head)
        actions = processing_actions(run.rule_outputs, head, winners, placed)
        if spec != head.spec:
            actions = replace(actions, spec=spec)
        actions = with_files(actions, log, run.number, next(attempts), placed)
        return Draft(actions=actions, result=_result(table, run), changes_view=bool(run.files))

    proposal = Proposal(
        operation=run.statement.operation,
        number=run.number,
        build=build,
        started_us=run.started_us,
        token=run.statement.token,
        business_snapshot=base.root.business.open,
        skips_refresh=True,
    )
    return log.commit(base, proposal)


def _spec_on(head: Snapshot, run: _Run) -> TableSpec:
    """Return the spec that the table has from the commit on.

    Raises ConflictError if another job changed what the statement's rows depend on. They do not
    depend on properties, nor on a first delete, which adds a condition that no row meets.
    """
    base, own = run.base.spec, run.spec
    deletes = head.spec.deletes
    if base.deletes is None and deletes == NO_DELETES:
        deletes = None
    if replace(head.spec, properties=base.properties, deletes=deletes) != base:
        raise ConflictError(
            f"the columns or the constraints of the table changed after version {run.base.version}"
        )
    if run.statement.replaces_definition:
        if head.spec != base:
            raise ConflictError(f"the table's properties changed after version {run.base.version}")
        return own
    # A statement changes nothing else of the definition
    deletes = head.spec.deletes if own.deletes is None else own.deletes
    return replace(head.spec, schema=own.schema, deletes=deletes)


def _result(table: OpenTable, run: _Run) -> JobResult:
    counts: Counter[str] = Counter()
    for output in run.outputs:
        counts.update(output.counts)
    files = run.files
    rule = rule_counts(run.rule_outputs.counts, len(files))
    written: Mapping[str, int] = {
        "inserted": counts["inserted"],
        "updated": counts["updated"],
        "deleted": counts["deleted"],
        "files": len(files),
        "bytes": sum(file.size for file in files),
        "events": rule["events"],
        "segments": rule["segments"],
    }
    return JobResult(
        operation=run.statement.operation,
        table=table.uri,
        token=run.statement.token,
        counts=written,
        notes=tuple(_column_notes(run)),
    )


def _column_notes(run: _Run) -> Iterator[str]:
    """Yield what becomes of columns that a statement adds to the table, or drops."""
    if run.changes_nothing:
        return
    before = {field.id: field.name for field in run.base.spec.schema.fields}
    after = {field.id: field.name for field in run.spec.schema.fields}
    for number, name in before.items():
        if number not in after:
            yield f"dropped column {name!r}"
    for number, name in after.items():
        if number not in before:
            yield f"added column {name!r}"
