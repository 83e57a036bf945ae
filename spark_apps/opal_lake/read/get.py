"""Rows by their keys. The key store says in which file the row of a key is, and the file's footer in which row group."""

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from opal_lake.data.column_read import readers
from opal_lake.data.columns import physical_schema, physical_type, to_fields
from opal_lake.data.data_file import held_names
from opal_lake.definition.key_hash import given_keys, hash_keys
from opal_lake.definition.schema import SEGMENT, Atomic, Field, type_name
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

Hashes = npt.NDArray[np.uint64]


def get_rows(
    snapshot: Snapshot,
    cache: RunCache,
    keys: Sequence[Mapping[str, Any]],
    as_of: int | None,
    columns: Sequence[str] | None,
) -> pa.Table:
    """The visible rows of these keys, in their order. A key without a row has none in the result."""
    spec = snapshot.spec
    given = _given(keys, spec)
    hashes = hash_keys([given[field.physical] for field in spec.keys], _key_types(spec))
    newest = _newest(snapshot, cache, _distinct(hashes), as_of)
    newest = newest.take(by_keys(newest, hashes))
    fields = chosen_fields(spec, columns)
    known = {
        field.physical: given[field.physical]
        for field in fields
        if _is_as_stored(given, field, spec)
    }
    rows = rows_of_entries(
        snapshot, newest, [field for field in fields if field.physical not in known]
    )
    at = pa.array(_ranks(newest, hashes))
    for name, values in known.items():
        rows = rows.append_column(name, values.take(at))
    return to_fields(rows, spec, fields)


def hashes_of_keys(keys: Any, spec: TableSpec) -> Hashes:
    """Of keys as a user gives them: each once, in their order."""
    given = _given(keys, spec)
    return _distinct(hash_keys([*given.values()], _key_types(spec)))


def _given(keys: Any, spec: TableSpec) -> dict[str, pa.Array]:
    """Key columns by their physical names, with the values that a user gives."""
    spec.require_keys("a look-up by key")
    names = [field.name for field in spec.keys]
    keys = (
        [keys] if isinstance(keys, Mapping | str) or not isinstance(keys, Iterable) else list(keys)
    )
    columns = {*names}
    wrong = [key for key in keys if not isinstance(key, Mapping) or key.keys() != columns]
    if wrong:
        raise InvalidInputError(_keys_advice(names, wrong[0]))
    given = given_keys([[key[name] for name in names] for key in keys], _key_types(spec), names)
    return {field.physical: column for field, column in zip(spec.keys, given, strict=True)}


def _keys_advice(names: Sequence[str], wrong: Any) -> str:
    example = ", ".join(f"{name!r}: ..." for name in names)
    advice = (
        f"keys must be mappings with the key columns {', '.join(names)}, in a list: [{{{example}}}]"
    )
    folded = {name.casefold() for name in names}
    for name in wrong if isinstance(wrong, Mapping) else ():
        if isinstance(name, str) and name not in names and name.casefold() in folded:
            return f"{advice}; {name!r} differs in case only"
    return advice


def _key_types(spec: TableSpec) -> list[Atomic]:
    return [field.type for field in spec.keys if isinstance(field.type, Atomic)]


def _is_as_stored(given: Mapping[str, pa.Array], field: Field, spec: TableSpec) -> bool:
    """Whether it is a column of the key of whose values a hash tells that they are the stored ones, so that these need not be read."""
    return field.physical in given and given[field.physical].type == physical_type(
        field.type, spec.file_format
    )


def _distinct(hashes: Hashes) -> Hashes:
    return hashes[np.sort(np.unique(hashes, axis=0, return_index=True)[1])]


def key_of_texts(texts: Sequence[str], spec: TableSpec) -> dict[str, Any]:
    """A key as a command line has it; bytes are hexadecimal."""
    names = [field.name for field in spec.keys]
    if len(texts) != len(names):
        raise InvalidInputError(
            f"the key is {', '.join(names)}; give {count_text(len(names), 'value')}, in this order"
        )
    return {
        field.name: _key_value(text, field) for text, field in zip(texts, spec.keys, strict=True)
    }


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
            f"key column {field.name} is {type_name(field.type)}, and {text!r} is not; write {form}"
        ) from error
    return text


def by_keys(entries: Entries, hashes: Hashes) -> npt.NDArray[np.intp]:
    """Positions of entries in the order of their keys; those of one key as they come."""
    return np.argsort(_ranks(entries, hashes), kind="stable")


def _ranks(entries: Entries, hashes: Hashes) -> npt.NDArray[np.intp]:
    """Of each entry the place of its key, the first one of a key that comes again."""
    rank = {key: number for number, key in reversed([*enumerate(map(tuple, hashes.tolist()))])}
    return np.array(
        [rank[key] for key in zip(entries.high.tolist(), entries.low.tolist(), strict=True)],
        np.intp,
    )


def rows_of_entries(snapshot: Snapshot, entries: Entries, fields: Sequence[Field]) -> pa.Table:
    """The physical columns of the rows that entries stand for, in their order; without those that are younger than the snapshot."""
    physical = [*dict.fromkeys(field.physical for field in fields)]
    marks: Bitmaps = {}
    add_rows(marks, entries.segment, entries.offset)
    files = [
        file
        for file in (snapshot.files.values() if marks else ())
        if not marks.keys().isdisjoint(file.segments)
    ]
    with ThreadPoolExecutor(readers(snapshot.storage, snapshot.spec)) as pool:
        parts = [*pool.map(partial(read_marked, snapshot, marks, physical), files)]
    empty = physical_schema(snapshot.spec).empty_table()
    known = empty.select([*held_names(physical, empty.schema), SEGMENT])
    rows = pa.concat_tables(
        [known, *map(_with_segments, parts)], promote_options="default"
    )  # which tell how many, without any other
    ids = concat_ids([part.ids for part in parts])
    if rows.num_rows != len(entries):
        raise FormatError(
            f"{snapshot.storage.uri}: the key store names rows that no data file holds; run `opal check`"
        )
    at = {
        row: position
        for position, row in enumerate(zip(ids.segment.tolist(), ids.offset.tolist(), strict=True))
    }
    order = np.array(
        [at[row] for row in zip(entries.segment.tolist(), entries.offset.tolist(), strict=True)],
        np.intp,
    )
    return rows.take(pa.array(order))


def _with_segments(marked: MarkedRows) -> pa.Table:
    return pa.table(
        [*marked.rows.columns, pa.array(marked.ids.segment)],
        names=[*marked.rows.column_names, SEGMENT],
    )


def _newest(snapshot: Snapshot, cache: RunCache, hashes: Hashes, as_of: int | None) -> Entries:
    """Of each key the last entry up to the event time, unless it is a delete."""
    ties = len(snapshot.spec.tie_break)
    probes = _probes(hashes[np.argsort(hashes[:, 0])], _LAST if as_of is None else as_of, ties)
    stored = sorted_entries(
        concat_entries([no_entries(ties), *cache.neighbours([*snapshot.runs.values()], probes)])
    )
    known = stored.take(stored.delta <= probes.delta[0]) if len(probes) else stored
    return known.take(~same_as_next(known, 2) & ~known.deleted)


def _probes(hashes: Hashes, delta: int, ties: int) -> Entries:
    """Entries beyond all of their keys up to the delta."""
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
