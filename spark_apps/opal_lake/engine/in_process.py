"""Tasks in this process, one after the other, over Arrow."""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import count, pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from opal_lake.data.data_file import decode_file, decode_parts
from opal_lake.data.segment import DataFile
from opal_lake.data.z_value import interleave, plan_curve
from opal_lake.engine.executor import Attempt, EntryTask, Ordering, Stage, T, Task, W
from opal_lake.key_store.entries import concat_entries, no_entries
from opal_lake.log.snapshot import Snapshot
from opal_lake.rule.metagen import entries_of_rows, rule_columns
from opal_lake.spec.key_hash import hash_keys
from opal_lake.spec.schema import OFFSET, Atomic
from opal_lake.spec.table_spec import TableSpec
from opal_lake.storage.verified import read_verified


@dataclass(frozen=True, slots=True, kw_only=True)
class InProcess:
    """Holds what a task works on, and of rows by key hash all of them. `tasks` is into how many partitions rows are cut."""

    tasks: int = 1
    attempt: str = "0"

    def run(self, task: Callable[[W, str], T], works: Sequence[W]) -> list[T]:
        return [task(work, self.attempt) for work in works]

    def slots(self, entries: int, rows: pa.Table | None = None) -> int:
        """One process gains nothing by more."""
        return self.tasks

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
        for file in files:
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
        parts = (entries if slots == 1 else entries.take(mine == slot) for slot in chosen)
        return [
            task(part, Attempt(part=slot, name=self.attempt))
            for slot, part in zip(chosen, parts, strict=True)
        ]

    def in_order(self, ordering: Ordering, task: Task[T]) -> list[list[T]]:
        """Of one bin at a time."""
        parts = count()
        results: list[list[T]] = []
        for position, files in enumerate(ordering.bins):
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
