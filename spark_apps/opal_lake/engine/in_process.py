"""The engine that is this process: tasks one after the other, and rows as tables of Arrow."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from itertools import count, pairwise
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
from opal_lake.definition.schema import OFFSET, Atomic, arrow_schema
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
from opal_lake.read.partition_net import plan_net, read_net
from opal_lake.read.read import plan_read, read_rows
from opal_lake.read.view import ChangesPlan, HistoryPlan, View
from opal_lake.read.where import matching, needed_names, where_predicate, without
from opal_lake.rule.metagen import entries_of_rows, rule_columns
from opal_lake.storage.verified import read_verified

if TYPE_CHECKING:
    from opal_lake.operations.read import Changes


SLOT_ENTRIES = 1 << 22  # that a task holds with those it merges: about 1 GB with their copies


@dataclass(frozen=True, slots=True, kw_only=True)
class InProcess:
    """Holds what a task works on, and of rows by key hash all of them.

    `tasks` is into how many partitions rows are cut. `at_step` is told what is done, of how many
    files or tasks.
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
        """Read the rows; with a limit only as many files as have so many of them."""
        snapshot, condition = view.snapshot, view.condition
        if view.net_of is not None:
            shown, needed = needed_names(snapshot.spec, view.columns, condition)
            rows = read_net(plan_net(snapshot, view.net_of, view.as_of), needed)
            return matching(rows, condition).select(shown).slice(0, limit)
        invalid = view.narrowed(invalid_rows(snapshot, view.as_of))
        plan = plan_read(snapshot, view.as_of, where_predicate(condition), invalid)
        return read_rows(plan, view.columns, condition, limit=limit)

    def history(self, plan: HistoryPlan) -> pa.Table:
        condition = plan.condition
        if condition is None:
            return _history(plan, plan.columns)
        shown = [field.name for field in view_fields(plan.snapshot, plan.columns)]
        _, needed = needed_names(plan.snapshot.spec, shown, condition)
        return without(matching(_history(plan, needed), condition), needed, shown)

    def changes(self, plan: ChangesPlan) -> pa.Table:
        condition, feed, spec = plan.condition, plan.feed, plan.versions.head.spec
        if condition is None:
            return _changes(plan, feed)
        fields_of = history_fields if feed.is_of_history else feed_fields
        fields = fields_of(spec, feed.columns)
        shown = [field.name for field in fields]
        _, needed = needed_names(spec, shown, condition)
        rows = _changes(plan, replace(feed, columns=needed))
        return without(matching(rows, condition), needed, shown)

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
        return [task(work, self.attempt) for work in self._told("task", works)]

    def slots(self, entries: int, rows: pa.Table | None = None) -> int:
        """One process gains nothing by more, but holds the entries of one at a time.

        A source's rows are in memory already, and in more slots they would make more files.
        """
        slots = self.tasks
        while rows is None and entries > slots * SLOT_ENTRIES:
            slots *= 2
        return slots

    def _told(self, noun: str, works: Sequence[W]) -> Iterator[W]:
        """Yield the works; tell before each how many are done."""
        for done, work in enumerate(works):
            self.at_step(noun, done, len(works))
            yield work

    def by_partition(self, rows: pa.Table, base: Snapshot, task: Task[T]) -> list[T]:
        length = max(1, -(-rows.num_rows // self.tasks))
        return [
            self._done(rows.slice(part * length, length), part, task) for part in range(self.tasks)
        ]

    def by_key_hash(self, rows: pa.Table, base: Snapshot, slots: int, task: Task[T]) -> list[T]:
        if slots == 1:
            return [self._done(rows, 0, task)]
        mine = _slots_of_keys(rows, base.spec, slots)
        return [
            self._done(rows.filter(pa.array(mine == slot)), slot, task) for slot in range(slots)
        ]

    def stored_by_key_hash(
        self,
        base: Snapshot,
        files: Sequence[DataFile],
        slots: int,
        task: EntryTask[T],
        *,
        only: Collection[int] | None = None,
    ) -> list[T]:
        spec, stored = base.spec, [no_entries(len(base.spec.tie_break))]
        for file in self._told("file", files):
            rows = decode_file(
                read_verified(base.storage, file),
                spec,
                rule_columns(spec),
                file.path,
                rows=file.rows,
            )
            stored.append(entries_of_rows(rows, spec))
        entries = concat_entries(stored)
        mine, chosen = slots_of(entries.high, slots), range(slots) if only is None else sorted(only)
        return [
            task(
                entries if slots == 1 else entries.take(mine == slot),
                Attempt(part=slot, name=self.attempt),
            )
            for slot in self._told("task", chosen)
        ]

    def in_order(self, ordering: Ordering, task: Task[T]) -> list[list[T]]:
        """Of one bin at a time."""
        parts = count()
        results: list[list[T]] = []
        for position, files in enumerate(self._told("partition", ordering.bins)):
            pieces = _along_curve(ordering, files, ordering.files[position])
            attempts = (Attempt(part=part, name=self.attempt, bin=position) for part in parts)
            results.append(
                [
                    task(piece.combine_chunks().to_batches(), attempt)
                    for piece, attempt in zip(pieces, attempts, strict=False)
                ]
            )
        return results

    def by_stages(self, stages: Sequence[Stage], slots: int) -> list[Any]:
        made: list[Any] = []
        for position, stage in enumerate(stages):
            rows = pa.Table.from_batches([*made, *stage.read(stage.works)], stage.schema)
            mine = rows["slot"].to_numpy()
            made = [
                stage.task(rows.filter(pa.array(mine == slot)).to_batches())
                for slot in range(slots)
            ]
            if position < len(stages) - 1:
                made = [batch for batches in made for batch in batches]
        return made

    def _done(self, rows: pa.Table, part: int, task: Task[T]) -> T:
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
    """Of each row; the task that gets a row without a key refuses it."""
    keys = [rows[field.name] for field in spec.keys]
    known = np.logical_and.reduce([pc.is_valid(column).to_numpy() for column in keys])
    slot_of_row = np.zeros(rows.num_rows, np.int64)
    hashes = hash_keys(
        [column.filter(pa.array(known)) for column in keys],
        [f.type for f in spec.keys if isinstance(f.type, Atomic)],
    )
    slot_of_row[known] = slots_of(hashes[:, 0], slots)
    return slot_of_row


def slots_of(high: npt.NDArray[np.uint64], slots: int) -> npt.NDArray[np.int64]:
    """Which of equal ranges each hash is in (FORMAT, key store)."""
    return (high >> np.uint64(32)).astype(np.int64) * slots >> 32


def _along_curve(
    ordering: Ordering, files: Sequence[DataFile], file_count: float
) -> Iterator[pa.Table]:
    spec, storage = ordering.base.spec, ordering.base.storage
    rows = pa.concat_tables(
        part
        for file in files
        for part in decode_parts(read_verified(storage, file), spec, file.path, rows=file.rows)
    )
    columns = [rows[field.physical].combine_chunks() for field in ordering.columns]
    ties = rows[OFFSET].to_numpy().astype(np.int64) >> ordering.tie_shift
    curve = plan_curve(columns, ties, file_count)
    z = interleave(columns, curve.knots) | ties
    order = np.argsort(z, kind="stable")
    cuts = [0, *np.searchsorted(z[order], curve.cuts).tolist(), len(order)]
    return (rows.take(pa.array(order[start:end])) for start, end in pairwise(cuts))
