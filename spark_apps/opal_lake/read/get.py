"""Rows by their keys.

The key store knows the row id of a key's row. The footer of the row's file shows its row group.
"""

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from opal_lake.arrays import BoolArray, IndexArray, UInt64Array
from opal_lake.data.column_read import readers
from opal_lake.data.columns import physical_schema, physical_type, to_fields
from opal_lake.data.data_file import existing_names
from opal_lake.data.segment import DataFile
from opal_lake.definition.key_hash import given_keys, hash_bytes, hash_keys
from opal_lake.definition.ordering import of_order
from opal_lake.definition.schema import SEGMENT, Atomic, Field, arrow_type, type_name
from opal_lake.definition.table_spec import TableSpec
from opal_lake.errors import FormatError, InvalidInputError, count_text
from opal_lake.events.bitmap import Bitmaps, add_rows
from opal_lake.events.segment_log import concat_ids
from opal_lake.key_store.cache.protocol import RunCache
from opal_lake.key_store.entries import (
    Entries,
    concat_entries,
    no_entries,
    same_as_next,
    sorted_entries,
)
from opal_lake.log.snapshot import Snapshot
from opal_lake.read.marked_rows import MarkedRows, read_marked
from opal_lake.read.result_columns import chosen_fields

_LAST = np.iinfo(np.int64).max

Hashes = UInt64Array


def get_rows(
    snapshot: Snapshot,
    cache: RunCache,
    keys: Sequence[Mapping[str, Any]],
    as_of: int | None,
    columns: Sequence[str] | None,
) -> pa.Table:
    """Return the visible rows of keys, in the keys' order; a key may have none."""
    spec = snapshot.spec
    given = _given(keys, spec)
    hashes = hash_keys([given[field.physical] for field in spec.keys], spec.key_types)
    newest = _newest(snapshot, cache, _distinct(hashes), as_of)
    newest = newest.take(by_keys(newest, hashes))
    fields = chosen_fields(spec, columns)
    # Most key columns need not be read: their values were given
    known = {field.physical for field in fields if _is_as_stored(given, field, spec)}
    unknown = [field for field in fields if field.physical not in known]
    rows = rows_of_entries(snapshot, newest, unknown)
    position_of_key = pa.array(_ranks(newest, hashes))
    for name in known:
        rows = rows.append_column(name, given[name].take(position_of_key))
    return to_fields(rows, spec, fields)


def visible_rows(
    snapshot: Snapshot,
    cache: RunCache,
    hashes: Hashes,
    fields: Sequence[Field],
    keys: Mapping[str, pa.Array | pa.ChunkedArray],
) -> tuple[pa.Table, Entries]:
    """Return fields of the visible rows of key hashes, and the entries of these rows.

    `keys` has the values of key columns by name, in the order of the hashes. They and what the
    entries show are not read from the data files.
    """
    spec = snapshot.spec
    newest = _newest(snapshot, cache, _distinct(hashes), None)
    columns = _columns_of_entries(newest, spec)
    given = [field for field in spec.keys if _is_exact(field, keys.get(field.name))]
    if given and len(newest):
        value_set = hash_bytes(hashes[:, 0], hashes[:, 1])
        position = pc.index_in(hash_bytes(newest.high, newest.low), value_set=value_set)
        for field in given:
            columns[field.name] = keys[field.name].take(position)
    unread = [field for field in fields if field.name not in columns]
    if unread:
        stored = to_fields(rows_of_entries(snapshot, newest, unread), spec, unread)
        columns.update(zip(stored.column_names, stored.columns, strict=True))
    if not fields:
        return to_fields(pa.table({"": pa.nulls(len(newest))}), spec, []), newest
    names = [field.name for field in fields]
    return pa.table([columns[name] for name in names], names=names), newest


def _columns_of_entries(entries: Entries, spec: TableSpec) -> dict[str, Any]:
    """Return the delta and the tie-breaks of entries, by name."""
    columns = {spec.delta.name: of_order(entries.delta, _all_true(entries), _atomic(spec.delta))}
    for index, field in enumerate(spec.tie_break):
        is_valid = entries.ties[2 * index].astype(np.bool_)
        columns[field.name] = of_order(entries.ties[2 * index + 1], is_valid, _atomic(field))
    return columns


def _all_true(entries: Entries) -> BoolArray:
    return np.ones(len(entries), np.bool_)


def _atomic(field: Field) -> Atomic:
    assert isinstance(field.type, Atomic)
    return field.type


def _is_exact(field: Field, values: pa.Array | pa.ChunkedArray | None) -> bool:
    """Return whether values with the hash of a stored key are the stored values.

    -0.0 has the hash of 0.0.
    """
    if values is None or values.type != arrow_type(field.type):
        return False
    return not pa.types.is_floating(values.type)


def hashes_of_keys(keys: Any, spec: TableSpec) -> Hashes:
    """Return the hashes of keys that a user gives, in their order, without repeats."""
    hashes, _ = hashed_keys(keys, spec)
    return _distinct(hashes)


def hashed_keys(keys: Any, spec: TableSpec) -> tuple[Hashes, dict[str, pa.Array]]:
    """Return the hashes of keys that a user gives, and their values by key column."""
    given = _given(keys, spec)
    hashes = hash_keys([*given.values()], spec.key_types)
    values = {field.name: given[field.physical] for field in spec.keys}
    return hashes, values


def _given(keys: Any, spec: TableSpec) -> dict[str, pa.Array]:
    """Return the values that a user gives for key columns, by physical name.

    Raises InvalidInputError unless each key is a mapping of all key columns to values.
    """
    spec.require_keys("a look-up by key")
    names = [field.name for field in spec.keys]
    is_single = isinstance(keys, Mapping | str) or not isinstance(keys, Iterable)
    keys = [keys] if is_single else list(keys)
    columns = {*names}
    for key in keys:
        if not isinstance(key, Mapping) or key.keys() != columns:
            raise InvalidInputError(_keys_advice(names, key))
    values = [_in_order(key, names) for key in keys]
    given = given_keys(values, spec.key_types, names)
    return {field.physical: column for field, column in zip(spec.keys, given, strict=True)}


def _in_order(key: Mapping[str, Any], names: Sequence[str]) -> list[Any]:
    return [key[name] for name in names]


def _keys_advice(names: Sequence[str], wrong: Any) -> str:
    """Return the message for a key of a wrong form."""
    example = ", ".join(f"{name!r}: ..." for name in names)
    advice = (
        f"keys must be mappings with the key columns {', '.join(names)}, in a list: [{{{example}}}]"
    )
    if isinstance(wrong, Mapping):
        folded = {name.casefold() for name in names}
        for name in wrong:
            if isinstance(name, str) and name not in names and name.casefold() in folded:
                return f"{advice}; {name!r} differs in case only"
    return advice


def _is_as_stored(given: Mapping[str, pa.Array], field: Field, spec: TableSpec) -> bool:
    """Return whether a field is a key column whose given values are the stored ones.

    Equal hashes prove that, if the types are the same.
    """
    if field.physical not in given:
        return False
    return bool(given[field.physical].type == physical_type(field.type, spec.file_format))


def _distinct(hashes: Hashes) -> Hashes:
    """Return each hash once, in the order of first occurrences."""
    _, first = np.unique(hashes, axis=0, return_index=True)
    return hashes[np.sort(first)]


def key_of_texts(texts: Sequence[str], spec: TableSpec) -> dict[str, Any]:
    """Return a key from the texts of a command line; bytes are hexadecimal."""
    names = [field.name for field in spec.keys]
    if len(texts) != len(names):
        key = ", ".join(map(repr, names))
        raise InvalidInputError(
            f"the key is {key}: give {count_text(len(names), 'value')} in this order, "
            f"got {len(texts)}"
        )
    pairs = zip(spec.keys, texts, strict=True)
    return {field.name: _key_value(text, field) for field, text in pairs}


def _key_value(text: str, field: Field) -> Any:
    kind = field.type.name if isinstance(field.type, Atomic) else ""
    try:
        match kind:
            case "boolean":
                return {"true": True, "false": False}[text.lower()]
            case "binary":
                return bytes.fromhex(text)
    except (KeyError, ValueError) as error:
        form = "true or false" if kind == "boolean" else "hexadecimal digits"
        raise InvalidInputError(
            f"{text!r} is not a value of key column {field.name}, which is "
            f"{type_name(field.type)}: write {form}"
        ) from error
    return text


def by_keys(entries: Entries, hashes: Hashes) -> IndexArray:
    """Return the positions that sort entries by the order of keys.

    Entries of one key keep their order.
    """
    return np.argsort(_ranks(entries, hashes), kind="stable")


def _ranks(entries: Entries, hashes: Hashes) -> IndexArray:
    """Return the first position of each entry's key among `hashes`."""
    rank: dict[tuple[int, ...], int] = {}
    for number, key in enumerate(map(tuple, hashes.tolist())):
        # A repeated key keeps its first position
        rank.setdefault(key, number)
    keys = zip(entries.high.tolist(), entries.low.tolist(), strict=True)
    return np.array([rank[key] for key in keys], np.intp)


def rows_of_entries(snapshot: Snapshot, entries: Entries, fields: Sequence[Field]) -> pa.Table:
    """Return the physical columns of the rows of entries, in their order.

    Columns that are younger than the snapshot are left out.
    """
    physical = [*dict.fromkeys(field.physical for field in fields)]
    marks: Bitmaps = {}
    add_rows(marks, entries.segment, entries.offset)
    files: list[DataFile] = []
    if marks:
        all_files = snapshot.files.values()
        files = [file for file in all_files if not marks.keys().isdisjoint(file.segments)]
    with ThreadPoolExecutor(readers(snapshot.storage, snapshot.spec)) as pool:
        parts = [*pool.map(partial(read_marked, snapshot, marks, physical), files)]
    empty = physical_schema(snapshot.spec).empty_table()
    # With the column of segments, rows are counted even if no other column is read
    columns = empty.select([*existing_names(physical, empty.schema), SEGMENT])
    tables = [columns, *map(_with_segments, parts)]
    rows = pa.concat_tables(tables, promote_options="default")
    if rows.num_rows != len(entries):
        raise FormatError(
            f"{snapshot.storage.uri}: the key store names rows that no data file holds; "
            "run `opal check`"
        )
    ids = concat_ids([part.ids for part in parts])
    # Both have the same row ids: sorted by them, the same rows are at the same positions
    order = np.empty(len(entries), np.intp)
    order[np.lexsort((entries.offset, entries.segment))] = np.lexsort((ids.offset, ids.segment))
    return rows.take(pa.array(order))


def _with_segments(marked: MarkedRows) -> pa.Table:
    """Return the rows with the column of their segments."""
    return pa.table(
        [*marked.rows.columns, pa.array(marked.ids.segment)],
        names=[*marked.rows.column_names, SEGMENT],
    )


def _newest(snapshot: Snapshot, cache: RunCache, hashes: Hashes, as_of: int | None) -> Entries:
    """Return the last entry of each key up to event time `as_of`, without deletes."""
    ties = len(snapshot.spec.tie_break)
    latest = _LAST if as_of is None else as_of
    probes = _probes(hashes[np.argsort(hashes[:, 0])], latest, ties)
    parts = [no_entries(ties), *cache.neighbours([*snapshot.runs.values()], probes)]
    stored = sorted_entries(concat_entries(parts))
    # A neighbour may have another key or a later delta
    if len(probes):
        stored = stored.take(stored.delta <= latest)
    is_last_of_key = ~same_as_next(stored, 2)
    return stored.take(is_last_of_key & ~stored.deleted)


def _probes(hashes: Hashes, delta: int, ties: int) -> Entries:
    """Return probes that sort after all entries of their keys up to the delta."""
    count = len(hashes)
    return Entries(
        high=np.ascontiguousarray(hashes[:, 0]),
        low=np.ascontiguousarray(hashes[:, 1]),
        delta=np.full(count, delta),
        ties=tuple(np.full(count, _LAST) for _ in range(2 * ties)),
        segment=np.full(count, _LAST),
        offset=np.full(count, np.iinfo(np.int32).max, np.int32),
        deleted=np.zeros(count, np.bool_),
    )
