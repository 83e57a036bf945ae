"""The tasks of an erasure: they find the keys and rows to erase, and filter runs of the key store.

A row that a task finds may be visible, superseded, a delete or pending: an erasure asks for rows
that are stored, whatever a read shows.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from opal_lake import layout
from opal_lake.arrays import BoolArray
from opal_lake.data.column_read import column_parts
from opal_lake.data.columns import to_logical
from opal_lake.data.prune import Comparable, ascending_values, may_hold_any, may_match
from opal_lake.data.segment import DataFile, RunFile
from opal_lake.definition.conditions.condition import Condition
from opal_lake.definition.key_hash import hash_keys
from opal_lake.definition.schema import OFFSET, SEGMENT, Atomic
from opal_lake.definition.table_spec import TableSpec
from opal_lake.events.bitmap import Bitmaps, add_rows
from opal_lake.key_store.entries import Entries, concat_entries
from opal_lake.read.read import bounds_of_all
from opal_lake.read.where import where_condition, where_predicate
from opal_lake.rule.slot import SlotWriter, write_run
from opal_lake.storage.protocol import Storage

RUN_ROWS = 1 << 20  # entries of a run that are read at once
PIECE_ROWS = 1 << 22  # entries in memory: more are written as several runs
MAX_KEYS = 10_000  # that files are pruned by: with more, a look at all of them prunes little
_PIECE_BITS = 10  # of the sequence number in a run's name, for its position among the pieces
_HASH = np.dtype([("high", np.uint64), ("low", np.uint64)])
Hashes = npt.NDArray[np.void]  # key hashes, each a pair of words


@dataclass(frozen=True, slots=True, kw_only=True)
class Keys:
    """Keys to erase: their hashes, and the values of each key column by field id.

    The values are ascending, in the form of bounds, and prune files. A column with too many of them
    is left out.
    """

    hashes: Hashes
    values: Mapping[int, Sequence[Comparable]]

    def may_be_in(self, file: DataFile, spec: TableSpec) -> bool:
        """Return whether a file may hold one of the keys, by its bounds."""
        bounds = bounds_of_all(file, spec)
        for number, values in self.values.items():
            if number in bounds and not may_hold_any(values, bounds[number]):
                return False
        return True


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyTask:
    """The arguments of tasks that find the keys of rows that meet `where`."""

    storage: Storage
    spec: TableSpec
    where: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RowTask:
    """The arguments of tasks that find rows: all rows of the keys.

    In a table without keys, they are the rows that meet the condition.
    """

    storage: Storage
    spec: TableSpec
    where: str
    keys: Keys


@dataclass(frozen=True, slots=True, kw_only=True)
class EraseRunTask:
    """The arguments of tasks that write runs again without the entries of some keys.

    A task reads `slice_rows` entries at a time, and writes a run for about `piece_rows` of them.
    """

    writer: SlotWriter
    hashes: Hashes
    slice_rows: int = RUN_ROWS
    piece_rows: int = PIECE_ROWS


@dataclass(frozen=True, slots=True, kw_only=True)
class ErasedRun:
    """A run with entries of erased keys, and the runs that replace it."""

    replaced: RunFile
    made: tuple[RunFile, ...]
    erased: int


def no_keys(spec: TableSpec) -> Keys:
    """Return the keys of a search that has found none."""
    return Keys(hashes=np.empty(0, _HASH), values={field.id: () for field in spec.keys})


def united(parts: Sequence[Keys], spec: TableSpec) -> Keys:
    """Return the keys of all parts, each once and in order."""
    if not parts:
        return no_keys(spec)
    values: dict[int, Sequence[Comparable]] = {}
    for field in spec.keys:
        distinct: set[Comparable] | None = set()
        for part in parts:
            if distinct is None or field.id not in part.values:
                distinct = None
            else:
                distinct.update(part.values[field.id])
        if distinct is not None and len(distinct) <= MAX_KEYS:
            values[field.id] = tuple(sorted(distinct))
    hashes = np.unique(np.concatenate([part.hashes for part in parts]))
    return Keys(hashes=hashes, values=values)


def keys_in_file(task: KeyTask, file: DataFile, attempt: str) -> Keys:
    """Return the keys of the rows of a file that meet the condition."""
    condition = _condition(task.where, task.spec)
    if not _may_match(condition, task.spec, file):
        return no_keys(task.spec)
    names = [field.physical for field in task.spec.keys]
    matches = no_keys(task.spec)
    for rows in _parts(task.storage, task.spec, file, condition, names):
        matching = rows.filter(_matching(rows, task.spec, condition))
        if matching.num_rows:
            matches = united([matches, _keys_of(matching, task.spec)], task.spec)
    return matches


def _keys_of(rows: pa.Table, spec: TableSpec) -> Keys:
    values: dict[int, Sequence[Comparable]] = {}
    for field in spec.keys:
        ascending = ascending_values(rows[field.physical])
        if ascending is not None:
            values[field.id] = ascending
    return Keys(hashes=_hashes(rows, spec), values=values)


def rows_in_file(task: RowTask, file: DataFile, attempt: str) -> Bitmaps:
    """Return the rows of a file that are to be erased, by segment."""
    matches: Bitmaps = {}
    condition = None
    if task.spec.has_keys:
        may_hold_rows = task.keys.may_be_in(file, task.spec)
    else:
        condition = _condition(task.where, task.spec)
        may_hold_rows = _may_match(condition, task.spec, file)
    if not may_hold_rows:
        return matches
    names = [*(field.physical for field in task.spec.keys), SEGMENT, OFFSET]
    for rows in _parts(task.storage, task.spec, file, condition, names):
        if condition is None:
            is_erased = np.isin(_hashes(rows, task.spec), task.keys.hashes)
        else:
            is_erased = np.asarray(_matching(rows, task.spec, condition), np.bool_)
        segment = rows[SEGMENT].to_numpy()[is_erased]
        offset = rows[OFFSET].to_numpy()[is_erased]
        add_rows(matches, segment, offset)
    return matches


def erase_in_run(task: EraseRunTask, run: RunFile, attempt: str) -> ErasedRun | None:
    """Write a run again without entries of erased keys; return None if it has none."""
    words = task.hashes["high"]
    near = words[(words >= run.hash_low) & (words <= run.hash_high)]
    if not len(near):
        return None
    cache = task.writer.cache
    # Only the blocks between the least and the greatest erased key are read to find the entries
    suspects = cache.slices(run, task.slice_rows, int(near.min()), int(near.max()))
    if not any(_is_erased(entries, task.hashes).any() for entries in suspects):
        return None
    writer = replace(task.writer, runs=())
    first_number = task.writer.runs.index(run) << _PIECE_BITS
    made: list[RunFile] = []
    for number, piece in enumerate(_remaining_pieces(task, run), first_number):
        stem = layout.job_file_name(task.writer.number, number, attempt)
        made.append(write_run(writer, piece, stem))
    remaining = sum(piece.entries for piece in made)
    return ErasedRun(replaced=run, made=tuple(made), erased=run.entries - remaining)


def _remaining_pieces(task: EraseRunTask, run: RunFile) -> Iterator[Entries]:
    """Yield the entries of a run that stay, in pieces with at least one entry."""
    waiting: list[Entries] = []
    waiting_rows = 0
    for entries in task.writer.cache.slices(run, task.slice_rows):
        remaining: Entries = entries.take(~_is_erased(entries, task.hashes))
        waiting.append(remaining)
        waiting_rows += len(remaining)
        if waiting_rows >= task.piece_rows:
            yield concat_entries(waiting)
            waiting, waiting_rows = [], 0
    if waiting_rows:
        yield concat_entries(waiting)


def _is_erased(entries: Entries, hashes: Hashes) -> BoolArray:
    return np.isin(_pairs(entries.high, entries.low), hashes)


def _condition(where: str, spec: TableSpec) -> Condition:
    condition = where_condition(where, spec)
    assert condition is not None
    return condition


def _may_match(condition: Condition, spec: TableSpec, file: DataFile) -> bool:
    """Return whether a file may hold a row that meets the condition, by its bounds."""
    predicate = where_predicate(condition)
    return predicate is None or may_match(predicate, bounds_of_all(file, spec), file.rows)


def _parts(
    storage: Storage,
    spec: TableSpec,
    file: DataFile,
    condition: Condition | None,
    physical_names: Sequence[str],
) -> Iterator[pa.Table]:
    """Yield parts of a file: the named columns, and those that the condition tests."""
    tested = [] if condition is None else condition.column_names
    tested_physical = [spec.schema.field(name).physical for name in tested]
    names = [*dict.fromkeys([*physical_names, *tested_physical])]
    return column_parts(storage, file, spec, names)


def _matching(rows: pa.Table, spec: TableSpec, condition: Condition) -> pa.BooleanArray:
    logical = to_logical(rows, spec, condition.column_names)
    return condition.holds(logical, numbered=False)


def _hashes(rows: pa.Table, spec: TableSpec) -> Hashes:
    types = [field.type for field in spec.keys if isinstance(field.type, Atomic)]
    columns = [rows[field.physical] for field in spec.keys]
    words = hash_keys(columns, types)
    return _pairs(words[:, 0], words[:, 1])


def _pairs(high: npt.NDArray[np.uint64], low: npt.NDArray[np.uint64]) -> Hashes:
    pairs = np.empty(len(high), _HASH)
    pairs["high"] = high
    pairs["low"] = low
    return pairs
