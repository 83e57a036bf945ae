"""When each row was the valid one of its key: a slowly changing dimension of type 2, for which nothing is stored.

Of the rows of a key, in the order of the rule, the last one of each delta counts. It is valid from its delta to the delta of the next one;
a delete is never valid. What ended up to the floor may have been dropped, so that none of it is shown.
"""

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from dataclasses import fields as dataclass_fields
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from opal_lake.data.column_read import read_columns
from opal_lake.data.columns import physical_schema, to_fields
from opal_lake.data.segment import RunFile
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

VALID_FROM, VALID_UNTIL, IS_CURRENT, DELETED = "valid_from", "valid_until", "is_current", "deleted"
VIEW_COLUMNS = frozenset({VALID_FROM, VALID_UNTIL, IS_CURRENT, DELETED})
_PART = 1 << 16
_LOOKS = 64  # of a run, before all of it costs less


def view_types(spec: TableSpec) -> dict[str, DataType]:
    """Return the types of the view's own columns."""
    times: dict[str, DataType] = dict.fromkeys((VALID_FROM, VALID_UNTIL), spec.delta.type)
    return times | dict.fromkeys((IS_CURRENT, DELETED), Atomic(name="boolean"))


def view_fields(snapshot: Snapshot, columns: Sequence[str] | None) -> tuple[Field, ...]:
    """The table's columns in a history view."""
    return fields_beside(VIEW_COLUMNS, snapshot.spec, columns, "a history view")


def history_of_all(snapshot: Snapshot, columns: Sequence[str] | None) -> pa.Table:
    """Every row that is valid at some readable event time, into memory; sorted by key hash and time."""
    spec, fields = snapshot.spec, view_fields(snapshot, columns)
    physical = [*dict.fromkeys([*(field.physical for field in fields), *rule_columns(spec)])]
    files = [file for file in snapshot.files.values() if snapshot.pending.isdisjoint(file.segments)]
    with ThreadPoolExecutor(READERS) as pool:
        parts = [
            *pool.map(lambda file: read_columns(snapshot.storage, file, spec, physical), files)
        ]
    rows = pa.concat_tables(
        [physical_schema(spec).empty_table().select(physical), *parts], promote_options="default"
    )
    entries = entries_of_rows(rows, spec)
    order = sort_order(entries)
    order = order[~same_as_next(entries.take(order), 3)]
    entries = entries.take(order)
    times = intervals_of(entries, snapshot.root.floor)
    return with_times(to_fields(rows.take(pa.array(order[times.shown])), spec, fields), times, spec)


def history_of_keys(
    snapshot: Snapshot,
    cache: RunCache,
    keys: Sequence[Mapping[str, Any]],
    columns: Sequence[str] | None,
) -> pa.Table:
    """Of a few keys, in their order: the key store knows all their rows."""
    fields, hashes = view_fields(snapshot, columns), hashes_of_keys(keys, snapshot.spec)
    entries = entries_of_keys(snapshot, cache, hashes)
    times = intervals_of(entries.take(by_keys(entries, hashes)), snapshot.root.floor)
    return with_times(
        to_fields(rows_of_entries(snapshot, times.rows, fields), snapshot.spec, fields),
        times,
        snapshot.spec,
    )


def entries_of_keys(snapshot: Snapshot, cache: RunCache, hashes: Hashes | None) -> Entries:
    """All that the key store holds of some keys, or of all: of equal (key, delta) the greatest."""
    parts = [no_entries(len(snapshot.spec.tie_break))]
    for run in snapshot.runs.values():
        parts += (
            cache.slices(run, _PART)
            if hashes is None
            else _entries_in(run, cache, np.unique(hashes[:, 0]))
        )
    stored = greatest_of_equal(sorted_entries(concat_entries(parts)))
    if hashes is None:
        return stored
    known = {*map(tuple, hashes.tolist())}
    return stored.take(
        np.array(
            [key in known for key in zip(stored.high.tolist(), stored.low.tolist(), strict=True)],
            np.bool_,
        )
    )


def _entries_in(run: RunFile, cache: RunCache, words: npt.NDArray[np.uint64]) -> Iterator[Entries]:
    """Those of a run with one of these first hash words: a look for each word, or one through all between them."""
    inside = words[(words >= run.hash_low) & (words <= run.hash_high)]
    if len(inside) <= _LOOKS:
        for word in inside.tolist():
            yield from cache.slices(run, _PART, word, word)
        return
    for part in cache.slices(run, _PART, int(inside[0]), int(inside[-1])):
        yield part.take(np.isin(part.high, inside))


@dataclass(frozen=True, slots=True, kw_only=True)
class Intervals:
    """From `rows.delta` to `until`, where there is an end, each row was valid; `deleted` says that its key had none then.

    `shown` are the positions of the rows among the entries that they were chosen from.
    """

    rows: Entries
    shown: npt.NDArray[np.intp]
    until: npt.NDArray[np.int64]
    has_end: npt.NDArray[np.bool_]
    deleted: npt.NDArray[np.bool_]

    def take(self, rows: npt.NDArray[Any]) -> "Intervals":
        return Intervals(
            **{part.name: _taken(getattr(self, part.name), rows) for part in dataclass_fields(self)}
        )


def concat_intervals(parts: Sequence[Intervals]) -> Intervals:
    """Of at least one part, in their order."""
    names = [member.name for member in dataclass_fields(Intervals)[1:]]
    arrays = {name: np.concatenate([getattr(part, name) for part in parts]) for name in names}
    return Intervals(rows=concat_entries([part.rows for part in parts]), **arrays)


def _taken(part: Any, rows: npt.NDArray[Any]) -> Any:
    return part.take(rows) if isinstance(part, Entries) else part[rows]


def intervals_of(entries: Entries, floor: int | None) -> Intervals:
    """Of entries of different (key, delta): when each is valid, if that is a time that can be read."""
    ends = same_as_next(entries, 2)
    following = np.minimum(np.arange(len(entries)) + 1, max(len(entries) - 1, 0))
    is_valid = ~entries.deleted
    if floor is not None:
        is_valid &= ~(ends & (entries.delta[following] <= floor))
    shown = np.flatnonzero(is_valid)
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
    """The columns of the view beside those of the table."""
    kind = spec.delta.type
    assert isinstance(kind, Atomic)
    shown = {
        VALID_FROM: of_order(times.rows.delta, np.ones(len(times.rows), np.bool_), kind),
        VALID_UNTIL: of_order(times.until, times.has_end, kind),
        IS_CURRENT: pa.array(~times.has_end),
        DELETED: pa.array(times.deleted),
    }
    return pa.table([*rows.columns, *shown.values()], names=[*rows.column_names, *shown])
