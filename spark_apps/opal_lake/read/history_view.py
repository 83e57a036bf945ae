"""When each row was the valid one of its key: a slowly changing dimension of type 2, for which nothing is stored.

Of the rows of a key, in the order of the rule, the last one of each delta counts. It is valid from its delta to the delta of the next one;
a delete is never valid. What ended up to the floor may have been dropped, so that none of it is shown.
"""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from opal_lake.data.column_read import read_columns
from opal_lake.data.columns import physical_schema, to_fields
from opal_lake.key_store.cache.protocol import RunCache
from opal_lake.key_store.entries import Entries, concat_entries, greatest_of_equal, no_entries, same_as_next, sort_order, sorted_entries
from opal_lake.log.snapshot import Snapshot
from opal_lake.read.get import Hashes, by_keys, hashes_of_keys, rows_of_entries
from opal_lake.read.result_columns import fields_beside
from opal_lake.rule.metagen import entries_of_rows, rule_columns
from opal_lake.spec.ordering import of_order
from opal_lake.spec.schema import Atomic, Field
from opal_lake.storage.protocol import READERS

VALID_FROM, VALID_UNTIL, IS_CURRENT, DELETED = "valid_from", "valid_until", "is_current", "deleted"
VIEW_COLUMNS = frozenset({VALID_FROM, VALID_UNTIL, IS_CURRENT, DELETED})
_PART = 1 << 16


def view_fields(snapshot: Snapshot, columns: Sequence[str] | None) -> tuple[Field, ...]:
    """The table's columns in a history view."""
    return fields_beside(VIEW_COLUMNS, snapshot.spec, columns, "a history view")


def history_of_all(snapshot: Snapshot, columns: Sequence[str] | None) -> pa.Table:
    """Every row that is valid at some readable event time, into memory; sorted by key hash and time."""
    spec, fields = snapshot.spec, view_fields(snapshot, columns)
    physical = [*dict.fromkeys([*(field.physical for field in fields), *rule_columns(spec)])]
    files = [file for file in snapshot.files.values() if snapshot.pending.isdisjoint(file.segments)]
    with ThreadPoolExecutor(READERS) as pool:
        parts = [*pool.map(lambda file: read_columns(snapshot.storage, file, spec, physical), files)]
    rows = pa.concat_tables([physical_schema(spec).empty_table().select(physical), *parts], promote_options="default")
    entries = entries_of_rows(rows, spec)
    order = sort_order(entries)
    order = order[~same_as_next(entries.take(order), 3)]
    entries = entries.take(order)
    shown = _shown(entries, snapshot.root.floor)
    return _with_times(to_fields(rows.take(pa.array(order[shown])), spec, fields), entries, shown, snapshot)


def history_of_keys(snapshot: Snapshot, cache: RunCache, keys: Sequence[Mapping[str, Any]], columns: Sequence[str] | None) -> pa.Table:
    """Of a few keys, in their order: the key store knows all their rows."""
    fields, hashes = view_fields(snapshot, columns), hashes_of_keys(keys, snapshot.spec)
    entries = _entries_of(snapshot, cache, hashes)
    entries = entries.take(by_keys(entries, hashes))
    shown = _shown(entries, snapshot.root.floor)
    rows = rows_of_entries(snapshot, entries.take(shown), fields)
    return _with_times(to_fields(rows, snapshot.spec, fields), entries, shown, snapshot)


def _entries_of(snapshot: Snapshot, cache: RunCache, hashes: Hashes) -> Entries:
    known = {tuple(key) for key in hashes.tolist()}
    parts = [no_entries(len(snapshot.spec.tie_break))]
    for run in snapshot.runs.values():
        for high in {high for high, _ in known if run.hash_low <= high <= run.hash_high}:
            parts += cache.slices(run, _PART, high, high)
    stored = greatest_of_equal(sorted_entries(concat_entries(parts)))
    return stored.take(np.array([key in known for key in zip(stored.high.tolist(), stored.low.tolist(), strict=True)], np.bool_))


def _shown(entries: Entries, floor: int | None) -> npt.NDArray[np.intp]:
    """Which of the entries, of different (key, delta), are valid for a time that can be read."""
    is_valid = ~entries.deleted
    if floor is not None:
        is_valid &= ~(same_as_next(entries, 2) & (np.append(entries.delta[1:], 0)[: len(entries)] <= floor))
    return np.flatnonzero(is_valid)


def _with_times(rows: pa.Table, entries: Entries, shown: npt.NDArray[np.intp], snapshot: Snapshot) -> pa.Table:
    kind = snapshot.spec.delta.type
    assert isinstance(kind, Atomic)
    has_next = same_as_next(entries, 2)[shown]
    following = np.minimum(shown + 1, max(len(entries) - 1, 0))
    times = {
        VALID_FROM: of_order(entries.delta[shown], np.ones(len(shown), np.bool_), kind),
        VALID_UNTIL: of_order(entries.delta[following], has_next, kind),
        IS_CURRENT: pa.array(~has_next),
        DELETED: pa.array(has_next & entries.deleted[following]),
    }
    return pa.table([*rows.columns, *times.values()], names=[*rows.column_names, *times])
