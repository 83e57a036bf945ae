"""Values that a row lacks because its source did not change them: they stay those of the row's predecessor in the rule's order.

The predecessor is among the rows of the same task, which has all new rows of a key, in the key store, or among rows that are pending. A
row of which that cannot be told is a bad one. What was found stored before each row is kept: if others commit first, it is looked up again.
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
from opal_lake.data.rejects import BAD, NOTES, ROW, UNCHANGED, row_text
from opal_lake.data.shown_values import values_of
from opal_lake.data.spool import room_errors, spool
from opal_lake.definition.key_hash import hash_keys, hashes_from_bytes
from opal_lake.definition.schema import OFFSET, RESERVED_PREFIX, SEGMENT, Atomic, Field
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
# Each layer is a pass over the rows of the task, and a file in each partition that it has. Rows of
# one transaction without a tie-break make a few layers; hundreds show that a tie-break is missing
MAX_LAYERS = 256
_REMEDY = (
    "let the source send whole rows (PostgreSQL: ALTER TABLE ... REPLICA IDENTITY FULL), and snapshot "
    "this row again"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownTable:
    """The version that a task looks into. On its way to another process the lists that were read of it stay behind."""

    snapshot: Snapshot

    def __reduce__(self) -> tuple[Any, ...]:
        known = self.snapshot
        return _known_table, (known.storage, known.root, known.sections, known.commits)


def _known_table(*state: Any) -> KnownTable:
    return KnownTable(snapshot=Snapshot(*state))


@dataclass(frozen=True, slots=True, kw_only=True)
class LookUps:
    """Rows that lack values, and which stored row was found before each; None where none was."""

    sought: Sought
    before: tuple[RowId | None, ...]


def check_look_ups(head: Snapshot, cache: RunCache, base: int, found: Iterable[LookUps]) -> None:
    """ConflictError if a winner brought a row between a row that lacks values and the one that has them."""
    if head.version == base:
        return
    for look_ups in found:
        sought = look_ups.sought
        if _before(sought.rows, _stored(head, cache, sought)) != look_ups.before:
            raise ConflictError(
                f"versions {base + 1} to {head.version} brought rows before those whose unchanged values were looked up; run it again"
            )


def filled(
    batches: Batches, base: Snapshot, cache: RunCache, number: int
) -> tuple[Sequence[Batches], LookUps | None]:
    """Return the rows of a task with the values that they lack, in layers to be written in order.

    Rows for which these cannot be known are marked as bad.
    """
    rows = _held(batches)
    if not isinstance(rows, pa.Table):
        return [rows], None
    if rows[UNCHANGED].null_count == rows.num_rows:
        return [rows.to_batches()], None
    return _fill(rows, base, cache, number)


def _held(batches: Batches) -> pa.Table | Batches:
    """All rows of the task, any of which may have the values of another one; as they come where none can lack any.

    Rows that come from another process go to disk: they may be too many for memory.
    """
    if isinstance(batches, list):
        has_marks = bool(batches) and UNCHANGED in batches[0].schema.names
        return pa.Table.from_batches(batches) if has_marks else batches
    rest = iter(batches)
    first = next(rest, None)
    if first is None:
        return []
    if UNCHANGED not in first.schema.names:
        return chain([first], rest)
    sink = spool()
    with room_errors(), pa.ipc.new_stream(sink, first.schema) as stream:
        for batch in chain([first], rest):
            stream.write_batch(batch)
    with pa.ipc.open_stream(sink.getvalue()) as stream:
        return stream.read_all()


def _fill(
    rows: pa.Table, base: Snapshot, cache: RunCache, number: int
) -> tuple[Sequence[Batches], LookUps]:
    """The rows, of which at least one lacks values."""
    spec = base.spec
    near = _near(rows, spec)
    physical = _own_rows(rows.take(pa.array(near.places)), spec, number)
    own = entries_of_rows(physical, spec, near.hashes)
    texts = rows[UNCHANGED].take(pa.array(near.places)).to_pylist()
    lacking = {row: json.loads(text) for row, text in enumerate(texts) if text is not None}
    chosen = np.array(sorted(lacking), np.intp)
    sought = Sought.of(own.take(chosen), physical.take(pa.array(chosen)), spec)
    stored = _stored(base, cache, sought)
    before = _before(sought.rows, stored)
    fields = _fields(spec, lacking.values())
    known = _read(base, {row for row in before if row is not None}, stored, fields)
    plan = _Plan(own=own, stored=stored, lacking=lacking, known=known, floor=base.root.floor)
    plan.run()
    for column in fields:
        rows = _with_values(rows, column.name, near.places, plan, known)
    layers = _layers(_settled(rows, near.places, plan), near.places, own, spec)
    return layers, LookUps(sought=sought, before=before)


def _layers(
    rows: pa.Table, places: npt.NDArray[np.intp], own: Entries, spec: TableSpec
) -> Sequence[Batches]:
    """Part the rows so that row ids keep the order in which values were looked for.

    A row takes values from one before it in the task. Where both are equal in key, delta and
    tie-break, their row ids decide which is the first one, and those follow the partitions: so such
    rows of different partitions are written one layer after the other.
    """
    order = sort_order(own)
    ordered = own.take(order)
    codes = partition_codes(rows.take(pa.array(places[order])), spec)
    is_equal = np.append(False, same_as_next(ordered, 3 + len(own.ties))[:-1])[: len(own)]
    is_moved = is_equal & np.append(False, np.diff(codes) != 0)[: len(own)]
    if not is_moved.any():
        return [rows.to_batches()]
    moves = np.cumsum(is_moved)
    first_of_equals = np.maximum.accumulate(np.where(is_equal, 0, np.arange(len(own))))
    layer_of_row = np.zeros(rows.num_rows, np.int64)
    layers = moves - moves[first_of_equals]
    layer_of_row[places[order]] = layers
    last = int(layers.max())
    if last >= MAX_LAYERS:
        raise _too_many_layers(rows, int(places[order[layers.argmax()]]), last + 1, spec)
    return [_of_layer(rows, layer_of_row == number) for number in range(last + 1)]


def _too_many_layers(rows: pa.Table, place: int, layers: int, spec: TableSpec) -> Exception:
    """Return the error for equal rows that change their partition too often; `place` is one's."""
    names = [column.name for column in (*spec.keys, spec.delta, *spec.tie_break)]
    row = rows.slice(place, 1)
    values = row_text({name: values_of(row[name])[0] for name in names})
    partitions = [column.name for column in spec.partition_by]
    equal = "delta and tie-break" if spec.tie_break else "delta"
    return InvalidInputError(
        f"rows of one key are equal in their {equal} ({values}) and change between partitions of "
        f"{partitions} {layers - 1:,} times in one task, where a row lacks values that did not "
        f"change; at most are {MAX_LAYERS - 1:,}, since each change is a file of its own: create "
        "the table with a tie-break column that tells such rows apart, as the position in the "
        "source's log"
    )


def _of_layer(rows: pa.Table, is_chosen: npt.NDArray[np.bool_]) -> Batches:
    start = 0
    for batch in rows.to_batches():
        end = start + batch.num_rows
        yield batch.filter(pa.array(is_chosen[start:end]))
        start = end


@dataclass(frozen=True, slots=True, kw_only=True)
class _Near:
    """Places of the rows of those keys of which a row lacks values, and the hashes of their keys."""

    places: npt.NDArray[np.intp]
    hashes: npt.NDArray[np.uint64]


def _near(rows: pa.Table, spec: TableSpec) -> _Near:
    """Without rows that are bad already."""
    is_row = _mask(pc.is_null(rows[BAD])) if BAD in rows.column_names else np.ones(len(rows), bool)
    for column in (*spec.keys, spec.delta):
        is_row &= _mask(pc.is_valid(rows[column.name]))
    places = np.flatnonzero(is_row)
    hashes = _hashes(rows.take(pa.array(places)), spec)
    lacks = _mask(pc.is_valid(rows[UNCHANGED]))[places]
    is_near = np.isin(hashes[:, 0], hashes[lacks, 0])
    return _Near(places=places[is_near], hashes=hashes[is_near])


def _hashes(rows: pa.Table, spec: TableSpec) -> npt.NDArray[np.uint64]:
    if HASH in rows.column_names:
        return hashes_from_bytes(rows[HASH])
    types = [key.type for key in spec.keys if isinstance(key.type, Atomic)]
    return hash_keys([rows[key.name] for key in spec.keys], types)


def _own_rows(rows: pa.Table, spec: TableSpec, number: int) -> pa.Table:
    """The physical columns, and row ids in the order of the task: where delta and tie-breaks are equal, rows are written in it."""
    known = rows.drop_columns([name for name in (*NOTES, HASH) if name in rows.column_names])
    ids = {
        SEGMENT: pa.array(np.full(len(rows), segment_id(number, 0), np.int64)),
        OFFSET: pa.array(np.arange(len(rows), dtype=np.int32)),
    }
    physical = to_physical(known, spec)
    for name, values in ids.items():
        physical = physical.append_column(name, values)
    return physical


def _stored(snapshot: Snapshot, cache: RunCache, sought: Sought) -> Entries:
    """The rows of the table near these, and the pending ones of their keys."""
    rows = sought.rows
    probes = rows.take(np.argsort(rows.high, kind="stable"))
    runs = [*snapshot.runs.values()]
    found = cache.neighbours(runs, probes) if len(probes) else []
    pending = pending_neighbours(snapshot, sought) if snapshot.root.pending and len(rows) else []
    return concat_entries([no_entries(len(snapshot.spec.tie_break)), *found, *pending])


def _before(rows: Entries, stored: Entries) -> tuple[RowId | None, ...]:
    """Of each row the nearest stored one before it."""
    mixed = concat_entries([rows, stored]) if len(stored) else rows
    found: list[RowId | None] = [None] * len(rows)
    last: RowId | None = None
    key: tuple[int, int] | None = None
    for place in sort_order(mixed).tolist():
        if _key(mixed, place) != key:
            key, last = _key(mixed, place), None
        if place < len(rows):
            found[place] = last
        else:
            last = _row_id(mixed, place)
    return tuple(found)


def _key(entries: Entries, place: int) -> tuple[int, int]:
    return int(entries.high[place]), int(entries.low[place])


def _row_id(entries: Entries, place: int) -> RowId:
    return int(entries.segment[place]), int(entries.offset[place])


def _fields(spec: TableSpec, lacking: Iterable[Sequence[str]]) -> list[Field]:
    names = {name for found in lacking for name in found}
    return [column for column in spec.schema.fields if column.name in names]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Known:
    """The values of stored rows, and where in them each row is; a row that could not be read is not there."""

    rows: pa.Table
    places: dict[RowId, int]


def _read(base: Snapshot, wanted: set[RowId], stored: Entries, fields: Sequence[Field]) -> _Known:
    """Values of stored rows that are no deletes. Rows that a compaction dropped and files that are damaged have none."""
    chosen = dict[RowId, int]()
    for place in range(len(stored)):
        row = _row_id(stored, place)
        if row in wanted and not stored.deleted[place]:
            chosen[row] = place
    entries = stored.take(np.array([*chosen.values()], np.intp))
    parts: list[pa.Table] = []
    places: dict[RowId, int] = {}
    for part in _readable(base, entries, fields):
        ids = [_row_id(part.entries, place) for place in range(len(part.entries))]
        start = sum(len(other) for other in parts)
        places |= {row: start + place for place, row in enumerate(ids)}
        parts.append(part.rows)
    empty = to_fields(pa.table({}), base.spec, fields)
    return _Known(rows=pa.concat_tables(parts) if parts else empty, places=places)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """Entries and their rows."""

    entries: Entries
    rows: pa.Table


def _readable(base: Snapshot, entries: Entries, fields: Sequence[Field]) -> Iterator[_Part]:
    """All at once; where that fails one by one, so that only rows that cannot be read are missing."""
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
    """Which row has the values that each row lacks. `sources` gives of a row, by column, a row of the task or a stored one."""

    own: Entries
    stored: Entries
    lacking: dict[int, Sequence[str]]
    known: _Known
    floor: int | None
    sources: dict[int, dict[str, int | RowId]] = field(default_factory=dict)
    bad: dict[int, str] = field(default_factory=dict)

    def run(self) -> None:
        """Key by key, each from its first row to its last. A row that is bad is the predecessor of none: it will not be stored."""
        mixed = concat_entries([self.own, self.stored]) if len(self.stored) else self.own
        order = sort_order(mixed).tolist()
        last: int | None = None
        key: tuple[int, int] | None = None
        for position, place in enumerate(order):
            if _key(mixed, place) != key:
                key, last = _key(mixed, place), None
            if place in self.lacking and not mixed.deleted[place]:
                why = self._why_unknown(mixed, last) or self._why_unsure(mixed, order, position)
                if why:
                    self.bad[place] = _reason(self.lacking[place], why)
                    continue
                self.sources[place] = {
                    name: self._source(mixed, last, name) for name in self.lacking[place]
                }
            last = place

    def _why_unknown(self, mixed: Entries, last: int | None) -> str | None:
        if last is None:
            return "the table knows no earlier row of its key"
        if mixed.deleted[last]:
            return "the row before it deletes its key"
        if last >= len(self.own) and _row_id(mixed, last) not in self.known.places:
            return "the row before it cannot be read: it was dropped, or its file is damaged or missing"
        return None

    def _why_unsure(self, mixed: Entries, order: Sequence[int], position: int) -> str | None:
        """Of the rows of a key that are not after the floor only the last one is sure to be kept."""
        if self.floor is None or mixed.delta[order[position]] > self.floor:
            return None
        for place in order[position + 1 :]:
            if _key(mixed, place) != _key(mixed, order[position]):
                return None
            if place >= len(self.own):
                is_up_to_floor = bool(mixed.delta[place] <= self.floor)
                return (
                    "it is older than the oldest time that can be read, where rows before it may have been dropped"
                    if is_up_to_floor
                    else None
                )
        return None

    def _source(self, mixed: Entries, last: int | None, name: str) -> int | RowId:
        assert last is not None
        if last >= len(self.own):
            return _row_id(mixed, last)
        return self.sources.get(last, {}).get(name, last)


def _reason(names: Sequence[str], why: str) -> str:
    noun = "column" if len(names) == 1 else "columns"
    shown = ", ".join(map(repr, names))
    return f"the row lacks the value of {noun} {shown}, which did not change, and {why}: {_REMEDY}"


def _with_values(
    rows: pa.Table, name: str, places: npt.NDArray[np.intp], plan: _Plan, known: _Known
) -> pa.Table:
    """The rows with one more column complete."""
    chosen = np.arange(rows.num_rows)
    for row, sources in plan.sources.items():
        source = sources.get(name)
        if isinstance(source, int):
            chosen[places[row]] = places[source]
        elif source is not None:
            chosen[places[row]] = rows.num_rows + known.places[source]
    column = rows[name]
    stored = known.rows[name].cast(column.type)
    both = pa.chunked_array([*column.chunks, *stored.chunks], type=column.type)
    position = rows.column_names.index(name)
    return rows.set_column(position, rows.schema.field(position), both.take(pa.array(chosen)))


def _settled(rows: pa.Table, places: npt.NDArray[np.intp], plan: _Plan) -> pa.Table:
    """No row lacks anything; those of which it is not known are bad, with what they hold."""
    position = rows.column_names.index(UNCHANGED)
    none = pa.nulls(rows.num_rows, rows.schema.field(position).type)
    rows = rows.set_column(position, UNCHANGED, none)
    if not plan.bad:
        return rows
    reasons = {int(places[row]): reason for row, reason in plan.bad.items()}
    names = [name for name in rows.column_names if not name.startswith(RESERVED_PREFIX)]
    bad = rows.take(pa.array([*reasons], pa.int64()))
    values = zip(*(values_of(bad[name]) for name in names), strict=True)
    texts = {
        place: row_text(dict(zip(names, row, strict=True)))
        for place, row in zip(reasons, values, strict=True)
    }
    for name, notes in ((BAD, reasons), (ROW, texts)):
        column = rows[name].to_pylist()
        for place, note in notes.items():
            column[place] = note
        position = rows.column_names.index(name)
        rows = rows.set_column(position, name, pa.array(column, rows.schema.field(position).type))
    return rows


def _mask(values: pa.ChunkedArray) -> npt.NDArray[np.bool_]:
    return np.array(values.to_numpy(), np.bool_)
