"""Values that a row lacks because its source did not change them.

A row takes such values from its predecessor in the rule's order. The predecessor is among the rows
of the same task (which has all new rows of a key), in the key store, or among pending rows. A row
whose predecessor is unknown is a bad row. The stored predecessor of each row is recorded: if
another job commits first, the predecessor is looked up again.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from opal_lake.data.columns import to_fields, to_physical
from opal_lake.data.rejects import BAD, NOTES, ROW, UNCHANGED, json_texts, with_generated
from opal_lake.data.spool import room_errors, spool
from opal_lake.definition.key_hash import hash_keys, hashes_from_bytes
from opal_lake.definition.schema import OFFSET, RESERVED_PREFIX, SEGMENT, Field
from opal_lake.definition.table_spec import TableSpec
from opal_lake.engine.executor import HASH, Batches
from opal_lake.errors import ConflictError, FormatError, InvalidInputError, NotFoundError
from opal_lake.ids import segment_id
from opal_lake.key_store.cache.protocol import RunCache
from opal_lake.key_store.entries import (
    Entries,
    concat_entries,
    no_entries,
    same_as_next,
    sort_order,
)
from opal_lake.log.snapshot import Snapshot
from opal_lake.read.get import rows_of_entries
from opal_lake.rule.metagen import entries_of_rows
from opal_lake.write.partitions import partition_codes
from opal_lake.write.pending_rows import Sought, pending_neighbours

RowId = tuple[int, int]
# Each layer is a pass over the rows of the task, and a file in each partition of the layer. Rows of
# one transaction without a tie-break make a few layers; hundreds show that a tie-break is missing
MAX_LAYERS = 256
_REMEDY = (
    "let the source send whole rows (PostgreSQL: ALTER TABLE ... REPLICA IDENTITY FULL), "
    "and snapshot this row again"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownTable:
    """The version in which a task looks for stored rows.

    A pickle leaves out the lists of the snapshot that were read: another process reads them again.
    """

    snapshot: Snapshot

    def __reduce__(self) -> tuple[Any, ...]:
        snapshot = self.snapshot
        state = (snapshot.storage, snapshot.root, snapshot.sections, snapshot.commits)
        return _known_table, state


def _known_table(*state: Any) -> KnownTable:
    return KnownTable(snapshot=Snapshot(*state))


@dataclass(frozen=True, slots=True, kw_only=True)
class LookUps:
    """Rows that lack values, and the id of the stored row before each, or None."""

    sought: Sought
    before: tuple[RowId | None, ...]


def check_look_ups(head: Snapshot, cache: RunCache, base: int, look_ups: Iterable[LookUps]) -> None:
    """Raise ConflictError if the predecessor of a row that lacks values has changed."""
    if head.version == base:
        return
    for known in look_ups:
        stored = _stored(head, cache, known.sought)
        if _before(known.sought.rows, stored) != known.before:
            raise ConflictError(
                f"unchanged values were looked up at version {base}, but versions {base + 1} to "
                f"{head.version} have newer values; run the ingest again"
            )


def filled(
    batches: Batches, base: Snapshot, cache: RunCache, number: int
) -> tuple[Sequence[Batches], LookUps | None]:
    """Return the rows of a task with all values, in layers to write in order.

    Rows whose values are unknown are marked as bad. Also return the look-ups of stored rows; None
    if no row lacks values.
    """
    rows = _all_rows(batches)
    if not isinstance(rows, pa.Table):
        return [rows], None
    if rows[UNCHANGED].null_count == rows.num_rows:
        return [rows.to_batches()], None
    return _fill(rows, base, cache, number)


def _all_rows(batches: Batches) -> pa.Table | Batches:
    """Return the rows of the task as a table, or as batches if no row can lack values.

    A table has all rows at once, because any row may have the values that another row lacks. Rows
    from another process are put on disk: they may be too many for memory.
    """
    if isinstance(batches, list):
        if not batches or UNCHANGED not in batches[0].schema.names:
            return batches
        return pa.Table.from_batches(batches)
    further = iter(batches)
    first = next(further, None)
    if first is None:
        return []
    if UNCHANGED not in first.schema.names:
        return chain([first], further)
    sink = spool()
    with room_errors(), pa.ipc.new_stream(sink, first.schema) as stream:
        for batch in chain([first], further):
            stream.write_batch(batch)
    with pa.ipc.open_stream(sink.getvalue()) as stream:
        return stream.read_all()


def _fill(
    rows: pa.Table, base: Snapshot, cache: RunCache, number: int
) -> tuple[Sequence[Batches], LookUps]:
    """Do as `filled` for rows of which at least one lacks values."""
    spec = base.spec
    near = _near(rows, spec)
    positions = pa.array(near.positions)
    physical = _own_rows(rows.take(positions), spec, number)
    own = entries_of_rows(physical, spec, near.hashes)
    # The names of the columns that each row lacks
    names_as_json = rows[UNCHANGED].take(positions).to_pylist()
    lacking = {row: json.loads(text) for row, text in enumerate(names_as_json) if text is not None}
    chosen = np.array(sorted(lacking), np.intp)
    sought = Sought.of(own.take(chosen), physical.take(pa.array(chosen)), spec)
    stored = _stored(base, cache, sought)
    # Of stored rows only: the commit compares these with the stored rows at the head
    before = _before(sought.rows, stored)
    fields = _fields(spec, lacking.values())
    known = _read(base, {row for row in before if row is not None}, stored, fields)
    plan = _Plan(own=own, stored=stored, lacking=lacking, known=known, floor=base.root.floor)
    plan.run()
    for column in fields:
        rows = _with_values(rows, column.name, near.positions, plan, known)
    settled = _settled(rows, near.positions, plan)
    layers = _layers(settled, near.positions, own, spec)
    return layers, LookUps(sought=sought, before=before)


def _layers(
    rows: pa.Table, positions: npt.NDArray[np.intp], own: Entries, spec: TableSpec
) -> Sequence[Batches]:
    """Divide the rows into layers: row ids then keep the order of taken values.

    A row takes values from an earlier row of the task. If both are equal in key, delta and
    tie-break, the rule orders them by row id. Within a layer, row ids follow the partitions. So
    equal rows of different partitions are put into different layers.
    """
    order = sort_order(own)
    ordered = own.take(order)
    partitioned = [column for column in spec.generated if column.field in spec.partition_by]
    near = with_generated(rows.take(pa.array(positions[order])), partitioned)
    codes = partition_codes(near, spec)
    # In the order of the rule. 3 columns are the halves of the key hash, and the delta
    equals_next = same_as_next(ordered, 3 + len(own.ties))
    equals_previous = np.append(False, equals_next[:-1])[: len(own)]
    has_other_partition = np.append(False, np.diff(codes) != 0)[: len(own)]
    is_moved = equals_previous & has_other_partition
    if not is_moved.any():
        return [rows.to_batches()]
    # The layer of a row is the number of moves since the first of its equals
    moves = np.cumsum(is_moved)
    own_position = np.where(equals_previous, 0, np.arange(len(own)))
    first_of_equals = np.maximum.accumulate(own_position)
    layers = moves - moves[first_of_equals]
    layer_of_row = np.zeros(rows.num_rows, np.int64)
    layer_of_row[positions[order]] = layers
    last = int(layers.max())
    if last >= MAX_LAYERS:
        position = int(positions[order[layers.argmax()]])
        raise _too_many_layers(rows.slice(position, 1), last + 1, spec)
    return [_of_layer(rows, layer_of_row == number) for number in range(last + 1)]


def _too_many_layers(row: pa.Table, layers: int, spec: TableSpec) -> Exception:
    """Return the error for rows equal to `row` that change partition too often."""
    names = [column.name for column in (*spec.keys, spec.delta, *spec.tie_break)]
    (values,) = json_texts(row.select(names))
    partitions = [column.name for column in spec.partition_by]
    equal = "delta and tie-break" if spec.tie_break else "delta"
    return InvalidInputError(
        f"rows of one key are equal in their {equal} ({values}), change between partitions of "
        f"{partitions} {layers - 1:,} times in one task, and lack values that did not change. At "
        f"most {MAX_LAYERS - 1:,} changes of partition are possible, because each takes a file. "
        "Create the table with a tie-break column that differs in such rows, for example the "
        "position in the source's log"
    )


def _of_layer(rows: pa.Table, is_chosen: npt.NDArray[np.bool_]) -> Batches:
    """Yield the chosen rows in batches."""
    start = 0
    for batch in rows.to_batches():
        end = start + batch.num_rows
        yield batch.filter(pa.array(is_chosen[start:end]))
        start = end


@dataclass(frozen=True, slots=True, kw_only=True)
class _Near:
    """The positions and key hashes of all rows whose key has a row that lacks values."""

    positions: npt.NDArray[np.intp]
    hashes: npt.NDArray[np.uint64]


def _near(rows: pa.Table, spec: TableSpec) -> _Near:
    """Return the rows of each key with a row that lacks values, without bad rows."""
    is_good = np.ones(len(rows), bool)
    if BAD in rows.column_names:
        is_good = _mask(pc.is_null(rows[BAD]))
    for column in (*spec.keys, spec.delta):
        is_good &= _mask(pc.is_valid(rows[column.name]))
    positions = np.flatnonzero(is_good)
    hashes = _hashes(rows.take(pa.array(positions)), spec)
    lacks_values = _mask(pc.is_valid(rows[UNCHANGED]))[positions]
    # One half of a hash is enough: rows of another key with the same half do no harm
    is_near = np.isin(hashes[:, 0], hashes[lacks_values, 0])
    return _Near(positions=positions[is_near], hashes=hashes[is_near])


def _hashes(rows: pa.Table, spec: TableSpec) -> npt.NDArray[np.uint64]:
    """Return the key hash of each row."""
    if HASH in rows.column_names:
        return hashes_from_bytes(rows[HASH])
    return hash_keys([rows[key.name] for key in spec.keys], spec.key_types)


def _own_rows(rows: pa.Table, spec: TableSpec, number: int) -> pa.Table:
    """Return the physical columns, with row ids in the order of the task.

    Rows with equal delta and tie-breaks are written in this order.
    """
    notes = [name for name in (*NOTES, HASH) if name in rows.column_names]
    known = rows.drop_columns(notes)
    ids = {
        SEGMENT: pa.array(np.full(len(rows), segment_id(number, 0), np.int64)),
        OFFSET: pa.array(np.arange(len(rows), dtype=np.int32)),
    }
    physical = to_physical(known, spec)
    for name, values in ids.items():
        physical = physical.append_column(name, values)
    return physical


def _stored(snapshot: Snapshot, cache: RunCache, sought: Sought) -> Entries:
    """Return the entries of the stored and pending neighbours of the sought rows."""
    rows = sought.rows
    parts = [no_entries(len(snapshot.spec.tie_break))]
    if len(rows):
        probes = rows.take(np.argsort(rows.high, kind="stable"))
        parts += cache.neighbours([*snapshot.runs.values()], probes)
        if snapshot.root.pending:
            parts += pending_neighbours(snapshot, sought)
    return concat_entries(parts)


def _before(rows: Entries, stored: Entries) -> tuple[RowId | None, ...]:
    """Return the id of the nearest stored row of its key before each row."""
    mixed = concat_entries([rows, stored]) if len(stored) else rows
    before: list[RowId | None] = [None] * len(rows)
    last: RowId | None = None
    key: tuple[int, int] | None = None
    for index in sort_order(mixed).tolist():
        if _key(mixed, index) != key:
            key, last = _key(mixed, index), None
        if index < len(rows):
            before[index] = last
        else:
            last = _row_id(mixed, index)
    return tuple(before)


def _key(entries: Entries, index: int) -> tuple[int, int]:
    return int(entries.high[index]), int(entries.low[index])


def _row_id(entries: Entries, index: int) -> RowId:
    return int(entries.segment[index]), int(entries.offset[index])


def _fields(spec: TableSpec, lacking: Iterable[Sequence[str]]) -> list[Field]:
    """Return the fields that some row lacks, by the names that each row lacks."""
    names = set(chain.from_iterable(lacking))
    return [column for column in spec.schema.fields if column.name in names]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Known:
    """The values of stored rows, and the index of each row in `rows` by its row id.

    Rows that could not be read are missing.
    """

    rows: pa.Table
    index_of: dict[RowId, int]


def _read(base: Snapshot, wanted: set[RowId], stored: Entries, fields: Sequence[Field]) -> _Known:
    """Return the values of the wanted stored rows that are not deletes.

    Rows that a compaction dropped, and rows of damaged files, are missing.
    """
    chosen: dict[RowId, int] = {}
    for index in range(len(stored)):
        row = _row_id(stored, index)
        if row in wanted and not stored.deleted[index]:
            chosen[row] = index
    entries = stored.take(np.array([*chosen.values()], np.intp))
    parts: list[pa.Table] = []
    index_of: dict[RowId, int] = {}
    start = 0
    for part in _readable(base, entries, fields):
        for index in range(len(part.entries)):
            index_of[_row_id(part.entries, index)] = start + index
        start += len(part.entries)
        parts.append(part.rows)
    if not parts:
        parts = [to_fields(pa.table({}), base.spec, fields)]
    return _Known(rows=pa.concat_tables(parts), index_of=index_of)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """Entries and the values of their rows."""

    entries: Entries
    rows: pa.Table


def _readable(base: Snapshot, entries: Entries, fields: Sequence[Field]) -> Iterator[_Part]:
    """Yield the rows of entries, all together if they can be read.

    Otherwise the entries are halved until only rows that cannot be read are missing.
    """
    if not len(entries):
        return
    try:
        rows = rows_of_entries(base, entries, fields)
    except (FormatError, NotFoundError):
        if len(entries) > 1:
            middle = len(entries) // 2
            yield from _readable(base, entries.take(slice(0, middle)), fields)
            yield from _readable(base, entries.take(slice(middle, None)), fields)
        return
    yield _Part(entries=entries, rows=to_fields(rows, base.spec, fields))


@dataclass(slots=True, kw_only=True)
class _Plan:
    """A plan of the rows from which other rows take the values that they lack.

    Rows of the task are numbered by their positions in `own`.

    - `lacking` has the names of the columns that a row lacks.
    - `sources` has, by row and column, the source of the value: the number of a row of the task, or
      the id of a stored row.
    - `bad` has the reason for each row whose values are unknown.
    """

    own: Entries
    stored: Entries
    lacking: dict[int, Sequence[str]]
    known: _Known
    floor: int | None
    sources: dict[int, dict[str, int | RowId]] = field(default_factory=dict)
    bad: dict[int, str] = field(default_factory=dict)

    def run(self) -> None:
        """Fill `sources` and `bad`, key by key, each from its first row to its last."""
        mixed = concat_entries([self.own, self.stored]) if len(self.stored) else self.own
        order = sort_order(mixed).tolist()
        last: int | None = None
        key: tuple[int, int] | None = None
        for position, index in enumerate(order):
            if _key(mixed, index) != key:
                key, last = _key(mixed, index), None
            if index in self.lacking and not mixed.deleted[index]:
                names = self.lacking[index]
                problem = self._why_unknown(mixed, last)
                if problem is None:
                    problem = self._why_unsure(mixed, order, position)
                if problem is not None:
                    self.bad[index] = _reason(names, problem)
                    # The row will not be stored, so it is not the predecessor of the next row
                    continue
                self.sources[index] = {name: self._source(mixed, last, name) for name in names}
            last = index

    def _why_unknown(self, mixed: Entries, last: int | None) -> str | None:
        """Return why values cannot be taken from the row before, the last one of the key."""
        if last is None:
            return "the table knows no earlier row of its key"
        if mixed.deleted[last]:
            return "the row before it deletes its key"
        if last >= len(self.own) and _row_id(mixed, last) not in self.known.index_of:
            return (
                "the row before it cannot be read: it was dropped, or its file is damaged or "
                "missing"
            )
        return None

    def _why_unsure(self, mixed: Entries, order: Sequence[int], position: int) -> str | None:
        """Return why rows between a row and the one before it may have been dropped.

        I21: of the rows of a key up to the floor, only the last one is sure to be stored.
        """
        row = order[position]
        if self.floor is None or mixed.delta[row] > self.floor:
            return None
        for index in order[position + 1 :]:
            if _key(mixed, index) != _key(mixed, row):
                return None
            if index < len(self.own):
                continue
            if mixed.delta[index] > self.floor:
                return None
            return (
                "it is older than the oldest readable event time, so that rows before it may have "
                "been dropped"
            )
        return None

    def _source(self, mixed: Entries, last: int | None, name: str) -> int | RowId:
        """Return the row that has the value of a column for the row after `last`."""
        assert last is not None
        if last >= len(self.own):
            return _row_id(mixed, last)
        return self.sources.get(last, {}).get(name, last)


def _reason(names: Sequence[str], why: str) -> str:
    noun = "column" if len(names) == 1 else "columns"
    shown = ", ".join(map(repr, names))
    return f"the row lacks the value of {noun} {shown}, which did not change, and {why}: {_REMEDY}"


def _with_values(
    rows: pa.Table, name: str, positions: npt.NDArray[np.intp], plan: _Plan, known: _Known
) -> pa.Table:
    """Return the rows with the lacking values of one column filled in."""
    # The position of each row's value among the rows of the task, followed by the stored rows
    source_of_row = np.arange(rows.num_rows)
    for row, sources in plan.sources.items():
        source = sources.get(name)
        if isinstance(source, int):
            source_of_row[positions[row]] = positions[source]
        elif source is not None:
            source_of_row[positions[row]] = rows.num_rows + known.index_of[source]
    column = rows[name]
    stored = known.rows[name].cast(column.type)
    values = pa.chunked_array([*column.chunks, *stored.chunks], type=column.type)
    position = rows.column_names.index(name)
    complete = values.take(pa.array(source_of_row))
    return rows.set_column(position, rows.schema.field(position), complete)


def _settled(rows: pa.Table, positions: npt.NDArray[np.intp], plan: _Plan) -> pa.Table:
    """Return the rows without marks of lacking values.

    Rows whose values are unknown are marked as bad, with their text.
    """
    mark_column = rows.column_names.index(UNCHANGED)
    nulls = pa.nulls(rows.num_rows, rows.schema.field(mark_column).type)
    rows = rows.set_column(mark_column, UNCHANGED, nulls)
    if not plan.bad:
        return rows
    reasons = {int(positions[row]): reason for row, reason in plan.bad.items()}
    names = [name for name in rows.column_names if not name.startswith(RESERVED_PREFIX)]
    bad = rows.take(pa.array([*reasons], pa.int64()))
    texts = dict(zip(reasons, json_texts(bad.select(names)), strict=True))
    for name, notes in ((BAD, reasons), (ROW, texts)):
        column = rows[name].to_pylist()
        for position, note in notes.items():
            column[position] = note
        index = rows.column_names.index(name)
        rows = rows.set_column(index, name, pa.array(column, rows.schema.field(index).type))
    return rows


def _mask(values: pa.ChunkedArray) -> npt.NDArray[np.bool_]:
    return np.array(values.to_numpy(), np.bool_)
