"""The history view: when each row was the valid row of its key. No view is stored.

It is a slowly changing dimension of type 2. Of the rows of a key with the same delta, the last one
in the order of the rule counts. It is valid from its delta to the delta of the next row; a delete
is never valid. No row that ended up to the floor is shown: such rows may have been dropped.
"""

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from opal_lake.arrays import BoolArray, IndexArray, Int64Array, UInt64Array
from opal_lake.data.column_read import read_columns
from opal_lake.data.columns import physical_schema, to_fields
from opal_lake.data.segment import DataFile, RunFile
from opal_lake.definition.ordering import of_order
from opal_lake.definition.schema import Atomic, DataType, Field
from opal_lake.definition.table_spec import TableSpec
from opal_lake.key_store.cache.protocol import RunCache
from opal_lake.key_store.entries import (
    Entries,
    concat_entries,
    greatest_of_equal,
    no_entries,
    same_as_next,
    sort_order,
    sorted_entries,
)
from opal_lake.log.snapshot import Snapshot
from opal_lake.read.get import Hashes, by_keys, hashes_of_keys, rows_of_entries
from opal_lake.read.result_columns import fields_beside
from opal_lake.rule.metagen import entries_of_rows, rule_columns
from opal_lake.storage.protocol import READERS

VALID_FROM = "valid_from"
VALID_UNTIL = "valid_until"
IS_CURRENT = "is_current"
DELETED = "deleted"
VIEW_COLUMNS = frozenset({VALID_FROM, VALID_UNTIL, IS_CURRENT, DELETED})
_SLICE_ENTRIES = 1 << 16
_MAX_LOOKS = (
    64  # into a run; with more, it costs less to read all entries between the first and last
)


def view_types(spec: TableSpec) -> dict[str, DataType]:
    """Return the types of the view's own columns."""
    times: dict[str, DataType] = dict.fromkeys((VALID_FROM, VALID_UNTIL), spec.delta.type)
    return times | dict.fromkeys((IS_CURRENT, DELETED), Atomic(name="boolean"))


def view_fields(snapshot: Snapshot, columns: Sequence[str] | None) -> tuple[Field, ...]:
    """Return the table's columns in a history view: the named ones, or all."""
    return fields_beside(VIEW_COLUMNS, snapshot.spec, columns, "a history view")


def history_of_all(snapshot: Snapshot, columns: Sequence[str] | None) -> pa.Table:
    """Read every row that is valid at some readable event time.

    The rows are sorted by key hash and time.
    """
    spec = snapshot.spec
    fields = view_fields(snapshot, columns)
    physical = [*dict.fromkeys([*(field.physical for field in fields), *rule_columns(spec)])]
    files = [file for file in snapshot.files.values() if snapshot.pending.isdisjoint(file.segments)]

    def read(file: DataFile) -> pa.Table:
        return read_columns(snapshot.storage, file, spec, physical)

    with ThreadPoolExecutor(READERS) as pool:
        parts = [*pool.map(read, files)]
    empty = physical_schema(spec).empty_table().select(physical)
    rows = pa.concat_tables([empty, *parts], promote_options="default")
    entries = entries_of_rows(rows, spec)
    order = sort_order(entries)
    # Of rows with the same key and delta, the last one counts
    is_last = ~same_as_next(entries.take(order), 3)
    order = order[is_last]
    times = intervals_of(entries.take(order), snapshot.root.floor)
    shown = rows.take(pa.array(order[times.shown]))
    return with_times(to_fields(shown, spec, fields), times, spec)


def history_of_keys(
    snapshot: Snapshot,
    cache: RunCache,
    keys: Sequence[Mapping[str, Any]],
    columns: Sequence[str] | None,
) -> pa.Table:
    """Read the history of a few keys, in their order, by the key store."""
    spec = snapshot.spec
    fields = view_fields(snapshot, columns)
    hashes = hashes_of_keys(keys, spec)
    entries = entries_of_keys(snapshot, cache, hashes)
    times = intervals_of(entries.take(by_keys(entries, hashes)), snapshot.root.floor)
    rows = rows_of_entries(snapshot, times.rows, fields)
    return with_times(to_fields(rows, spec, fields), times, spec)


def entries_of_keys(snapshot: Snapshot, cache: RunCache, hashes: Hashes | None) -> Entries:
    """Return the greatest entry of each (key, delta), for some keys or for all."""
    parts = [no_entries(len(snapshot.spec.tie_break))]
    for run in snapshot.runs.values():
        if hashes is None:
            parts += cache.slices(run, _SLICE_ENTRIES)
        else:
            parts += _entries_in(run, cache, np.unique(hashes[:, 0]))
    # I21: of a (key, delta), only the entry of the greatest row is always stored
    stored = greatest_of_equal(sorted_entries(concat_entries(parts)))
    if hashes is None:
        return stored
    known = {*map(tuple, hashes.tolist())}
    keys = zip(stored.high.tolist(), stored.low.tolist(), strict=True)
    return stored.take(np.array([key in known for key in keys], np.bool_))


def _entries_in(run: RunFile, cache: RunCache, words: UInt64Array) -> Iterator[Entries]:
    """Yield the entries of a run whose first hash word is among ascending `words`.

    For few words, each is looked up. For many, all entries between the words are read.
    """
    inside = words[(words >= run.hash_low) & (words <= run.hash_high)]
    if len(inside) <= _MAX_LOOKS:
        for word in inside.tolist():
            yield from cache.slices(run, _SLICE_ENTRIES, word, word)
        return
    for part in cache.slices(run, _SLICE_ENTRIES, int(inside[0]), int(inside[-1])):
        yield part.take(np.isin(part.high, inside))


@dataclass(frozen=True, slots=True, kw_only=True)
class Intervals:
    """Rows and the time for which each was valid. Fields have an element a row.

    - A row is valid from `rows.delta`. It is valid until `until` where `has_end` is true, and
      otherwise still.
    - `deleted` is true if a delete ended the row.
    - `shown` has the position of the row among the entries that rows were chosen from.
    """

    rows: Entries
    shown: IndexArray
    until: Int64Array
    has_end: BoolArray
    deleted: BoolArray

    def take(self, rows: npt.NDArray[Any]) -> "Intervals":
        """Return the intervals at some positions."""
        return Intervals(
            rows=self.rows.take(rows),
            shown=self.shown[rows],
            until=self.until[rows],
            has_end=self.has_end[rows],
            deleted=self.deleted[rows],
        )


def concat_intervals(parts: Sequence[Intervals]) -> Intervals:
    """Return the intervals of all parts, in their order; there must be a part."""
    return Intervals(
        rows=concat_entries([part.rows for part in parts]),
        shown=np.concatenate([part.shown for part in parts]),
        until=np.concatenate([part.until for part in parts]),
        has_end=np.concatenate([part.has_end for part in parts]),
        deleted=np.concatenate([part.deleted for part in parts]),
    )


def intervals_of(entries: Entries, floor: int | None) -> Intervals:
    """Return the intervals of sorted entries that did not end up to the floor.

    No two entries have the same key and delta. Deletes have no interval.
    """
    # An entry ends when the next one has the same key
    ends = same_as_next(entries, 2)
    last_position = max(len(entries) - 1, 0)
    following = np.minimum(np.arange(len(entries)) + 1, last_position)
    is_shown = ~entries.deleted
    if floor is not None:
        ended_by_floor = ends & (entries.delta[following] <= floor)
        is_shown &= ~ended_by_floor
    shown = np.flatnonzero(is_shown)
    after = following[shown]
    has_end = ends[shown]
    return Intervals(
        rows=entries.take(shown),
        shown=shown,
        until=entries.delta[after],
        has_end=has_end,
        deleted=has_end & entries.deleted[after],
    )


def with_times(rows: pa.Table, times: Intervals, spec: TableSpec) -> pa.Table:
    """Append the columns of the view to rows of the table."""
    kind = spec.delta.type
    assert isinstance(kind, Atomic)
    shown = {
        VALID_FROM: of_order(times.rows.delta, np.ones(len(times.rows), np.bool_), kind),
        VALID_UNTIL: of_order(times.until, times.has_end, kind),
        IS_CURRENT: pa.array(~times.has_end),
        DELETED: pa.array(times.deleted),
    }
    return pa.table([*rows.columns, *shown.values()], names=[*rows.column_names, *shown])
