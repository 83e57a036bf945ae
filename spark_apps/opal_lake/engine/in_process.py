"""The engine of this process: one task at a time, and rows as tables of Arrow."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from itertools import chain, count, pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from opal_lake.data.data_file import decode_file, decode_parts
from opal_lake.data.segment import DataFile
from opal_lake.data.z_value import interleave, plan_curve
from opal_lake.definition.added_columns import NewColumns
from opal_lake.definition.key_hash import hash_keys
from opal_lake.definition.schema import OFFSET, arrow_schema
from opal_lake.definition.table_spec import TableSpec
from opal_lake.engine.arrow_rows import ArrowRows
from opal_lake.engine.executor import (
    AtStep,
    Attempt,
    EntryTask,
    Ordering,
    ReadAs,
    Source,
    Stage,
    T,
    Task,
    W,
    no_step,
)
from opal_lake.key_store.entries import concat_entries, no_entries
from opal_lake.log.snapshot import Snapshot
from opal_lake.log.visibility import invalid_rows
from opal_lake.read.changed_rows import (
    CHANGE_TYPE,
    COMMIT_TIMESTAMP,
    COMMIT_VERSION,
    INSERT,
    feed_fields,
    read_changes,
)
from opal_lake.read.changes import plan_changes
from opal_lake.read.history_changes import history_changes, history_fields
from opal_lake.read.history_view import history_of_all, history_of_keys, view_fields
from opal_lake.read.merge_rows import rows_of_merge, touched_partitions
from opal_lake.read.partition_net import plan_net, read_net
from opal_lake.read.read import plan_read, read_rows
from opal_lake.read.region import RegionTest
from opal_lake.read.replaced_rows import with_ended
from opal_lake.read.statement import StatementPlan
from opal_lake.read.statement_rows import arrow_region_test, rows_of_table
from opal_lake.read.view import ChangesPlan, HistoryPlan, View
from opal_lake.read.where import matching, needed_names, where_predicate, without
from opal_lake.rule.metagen import entries_of_rows, rule_columns
from opal_lake.storage.verified import read_verified

if TYPE_CHECKING:
    from opal_lake.operations.read import Changes


# Entries that a task and its merge hold in memory: about 1 GB with their copies
SLOT_ENTRIES = 1 << 22


@dataclass(frozen=True, slots=True, kw_only=True)
class InProcess:
    """The engine that runs tasks in this process, one after the other.

    Memory holds the rows of one task, or all rows of a source that is split by key hash. `tasks` is
    the number of partitions into which rows are split. `at_step` gets the number of done files or
    tasks, and their total.
    """

    tasks: int = 1
    attempt: str = "0"
    at_step: AtStep = no_step

    def fit(
        self,
        source: pa.Table | Iterable[pa.RecordBatch],
        how: ReadAs,
        spec_of: Callable[[], TableSpec],
    ) -> AbstractContextManager[Source]:
        return nullcontext(ArrowRows.of(source, how))

    def rows(self, view: View, limit: int | None = None) -> pa.Table:
        """Read the visible rows; with a limit, only enough files for that many rows."""
        snapshot, condition = view.snapshot, view.condition
        if view.net_of is not None:
            shown, needed = needed_names(snapshot.spec, view.columns, condition)
            plan_of_net = plan_net(snapshot, view.net_of, view.as_of)
            matching_rows = matching(read_net(plan_of_net, needed), condition)
            return matching_rows.select(shown).slice(0, limit)
        invalid = view.narrowed(invalid_rows(snapshot, view.as_of))
        plan = plan_read(snapshot, view.as_of, where_predicate(condition), invalid)
        return read_rows(plan, view.columns, condition, limit=limit)

    def history(self, plan: HistoryPlan) -> pa.Table:
        condition = plan.condition
        if condition is None:
            return _history(plan, plan.columns)
        shown = [field.name for field in view_fields(plan.snapshot, plan.columns)]
        _, needed = needed_names(plan.snapshot.spec, shown, condition)
        matching_rows = matching(_history(plan, needed), condition)
        return without(matching_rows, needed, shown)

    def changes(self, plan: ChangesPlan) -> pa.Table:
        condition, feed, spec = plan.condition, plan.feed, plan.versions.head.spec
        if condition is None:
            return _changes(plan, feed)
        if feed.is_of_history:
            fields = history_fields(spec, feed.columns)
        else:
            fields = feed_fields(spec, feed.columns)
        shown = [field.name for field in fields]
        _, needed = needed_names(spec, shown, condition)
        rows = _changes(plan, replace(feed, columns=needed))
        return without(matching(rows, condition), needed, shown)

    def statement_rows(self, plan: StatementPlan) -> pa.Table:
        if plan.source is None:
            return rows_of_table(plan)
        return rows_of_merge(plan)

    def with_ended(self, rows: pa.Table, view: View) -> AbstractContextManager[pa.Table]:
        return nullcontext(with_ended(rows, view))

    def touched_partitions(self, plan: StatementPlan) -> pa.Table:
        return touched_partitions(plan)

    def region_test(self, plan: StatementPlan) -> RegionTest | None:
        return arrow_region_test(plan)

    def as_inserts(self, rows: pa.Table, version: int, committed_us: int) -> pa.Table:
        """Return the rows with the columns of a change feed."""
        moment = pa.scalar(committed_us, pa.timestamp("us", tz="UTC"))
        columns = {CHANGE_TYPE: INSERT, COMMIT_VERSION: version, COMMIT_TIMESTAMP: moment}
        for name, value in columns.items():
            rows = rows.append_column(name, pa.repeat(value, rows.num_rows))
        return rows

    def no_rows(self, spec: TableSpec) -> pa.Table:
        return arrow_schema(spec.schema).empty_table()

    def column_types(self, columns: Mapping[str, Any]) -> NewColumns:
        return columns

    def run(self, task: Callable[[W, str], T], works: Sequence[W]) -> list[T]:
        return [task(work, self.attempt) for work in self._reported("task", works)]

    def slots(self, entries: int, rows: pa.Table | None = None) -> int:
        """Return the number of ranges: few, but memory must hold a range's entries.

        More ranges do not make one process faster. The `rows` of a source are in memory already,
        and more ranges would only make more files.
        """
        slots = self.tasks
        if rows is not None:
            return slots
        while entries > slots * SLOT_ENTRIES:
            slots *= 2
        return slots

    def statement_slots(self, plan: StatementPlan, rows: pa.Table, entries: int) -> int:
        return self.slots(entries, rows)

    def _reported(self, noun: str, works: Sequence[W]) -> Iterator[W]:
        """Yield the works, and report before each of them how many are done."""
        for done, work in enumerate(works):
            self.at_step(noun, done, len(works))
            yield work

    def by_partition(self, rows: pa.Table, base: Snapshot, task: Task[T]) -> list[T]:
        rounded_up = -(-rows.num_rows // self.tasks)
        part_rows = max(1, rounded_up)
        results = []
        for part in range(self.tasks):
            own_rows = rows.slice(part * part_rows, part_rows)
            results.append(self._done(own_rows, part, task))
        return results

    def by_key_hash(self, rows: pa.Table, base: Snapshot, slots: int, task: Task[T]) -> list[T]:
        if slots == 1:
            return [self._done(rows, 0, task)]
        slot_of_row = _slots_of_keys(rows, base.spec, slots)
        results = []
        for slot in range(slots):
            is_of_slot = pa.array(slot_of_row == slot)
            results.append(self._done(rows.filter(is_of_slot), slot, task))
        return results

    def stored_by_key_hash(
        self,
        base: Snapshot,
        files: Sequence[DataFile],
        slots: int,
        task: EntryTask[T],
        *,
        only: Collection[int] | None = None,
    ) -> list[T]:
        spec = base.spec
        stored = [no_entries(len(spec.tie_break))]
        for file in self._reported("file", files):
            data = read_verified(base.storage, file)
            rows = decode_file(data, spec, rule_columns(spec), file.path, rows=file.rows)
            stored.append(entries_of_rows(rows, spec))
        entries = concat_entries(stored)
        slot_of_entry = slots_of(entries.high, slots)
        chosen = range(slots) if only is None else sorted(only)
        results = []
        for slot in self._reported("task", chosen):
            own = entries
            # A single slot has all entries: to copy them would double the memory
            if slots > 1:
                own = entries.take(slot_of_entry == slot)
            results.append(task(own, Attempt(part=slot, name=self.attempt)))
        return results

    def in_order(self, ordering: Ordering, task: Task[T]) -> list[list[T]]:
        parts = count()
        results: list[list[T]] = []
        # One bin after the other, so that memory holds the rows of a single one
        for position, files in enumerate(self._reported("partition", ordering.bins)):
            results_of_bin: list[T] = []
            for piece in _along_curve(ordering, files, ordering.files[position]):
                attempt = Attempt(part=next(parts), name=self.attempt, bin=position)
                results_of_bin.append(task(piece.combine_chunks().to_batches(), attempt))
            results.append(results_of_bin)
        return results

    def by_stages(self, stages: Sequence[Stage], slots: int) -> list[Any]:
        results: list[Any] = []
        for stage in stages:
            # The results of the last stage's tasks are rows of this stage's schema
            batches = [*chain.from_iterable(results), *stage.read(stage.works)]
            rows = pa.Table.from_batches(batches, stage.schema)
            slot_of_row = rows["slot"].to_numpy()
            results = []
            for slot in range(slots):
                is_of_slot = pa.array(slot_of_row == slot)
                results.append(stage.task(rows.filter(is_of_slot).to_batches()))
        return results

    def _done(self, rows: pa.Table, part: int, task: Task[T]) -> T:
        """Run a task on rows, and return its result."""
        return task(rows.to_batches(), Attempt(part=part, name=self.attempt))


def _history(plan: HistoryPlan, columns: Sequence[str] | None) -> pa.Table:
    if plan.keys is None:
        return history_of_all(plan.snapshot, columns)
    return history_of_keys(plan.snapshot, plan.cache, plan.keys, columns)


def _changes(plan: ChangesPlan, feed: "Changes") -> pa.Table:
    if feed.is_of_history:
        return history_changes(plan.log, plan.cache, plan.versions, feed)
    predicate = where_predicate(plan.condition)
    planned = plan_changes(plan.log, plan.versions, predicate, is_net=feed.is_net)
    return read_changes(planned, feed)


def _slots_of_keys(rows: pa.Table, spec: TableSpec, slots: int) -> npt.NDArray[np.int64]:
    """Return each row's slot, 0 for a row without a key: its task will refuse it."""
    keys = [rows[field.name] for field in spec.keys]
    has_key = np.logical_and.reduce([pc.is_valid(column).to_numpy() for column in keys])
    valid_keys = [column.filter(pa.array(has_key)) for column in keys]
    hashes = hash_keys(valid_keys, spec.key_types)
    slot_of_row = np.zeros(rows.num_rows, np.int64)
    slot_of_row[has_key] = slots_of(hashes[:, 0], slots)
    return slot_of_row


def slots_of(high: npt.NDArray[np.uint64], slots: int) -> npt.NDArray[np.int64]:
    """Return the slot of each hash, by its first word (FORMAT, key store)."""
    # The upper 32 bits as a fraction of 2**32, times the number of slots
    return (high >> np.uint64(32)).astype(np.int64) * slots >> 32


def _along_curve(
    ordering: Ordering, files: Sequence[DataFile], file_count: float
) -> Iterator[pa.Table]:
    """Yield the rows of files in Z-order, in about `file_count` parts."""
    rows = pa.concat_tables(_parts_of(ordering.base, files))
    columns = [rows[field.physical].combine_chunks() for field in ordering.columns]
    # The lowest bits of a row's position on the curve: rows of equal columns stay in order
    ties = rows[OFFSET].to_numpy().astype(np.int64) >> ordering.tie_shift
    curve = plan_curve(columns, ties, file_count)
    positions = interleave(columns, curve.knots) | ties
    order = np.argsort(positions, kind="stable")
    inner_cuts = np.searchsorted(positions[order], curve.cuts).tolist()
    for start, end in pairwise([0, *inner_cuts, len(order)]):
        yield rows.take(pa.array(order[start:end]))


def _parts_of(base: Snapshot, files: Sequence[DataFile]) -> Iterator[pa.Table]:
    for file in files:
        data = read_verified(base.storage, file)
        yield from decode_parts(data, base.spec, file.path, rows=file.rows)
