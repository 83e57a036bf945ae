"""The rows of a change feed, read in this process, and how a feed, also a net one, labels them.

Names and meaning are those of Spark's `Changelog`. `opal_spark.read.changes` does the same for
large feeds: change both together.
"""

from collections.abc import Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap

from opal_lake.arrays import BoolArray, IndexArray, Int32Array, Int64Array, UInt64Array
from opal_lake.data.column_read import read_near, readers
from opal_lake.data.columns import physical_schema, to_fields
from opal_lake.data.segment import DataFile
from opal_lake.definition.schema import OFFSET, SEGMENT, Atomic, DataType, Field
from opal_lake.definition.table_spec import TableSpec
from opal_lake.errors import FormatError
from opal_lake.events.bitmap import Bitmaps, Marks
from opal_lake.events.segment_log import RowIds, concat_ids, row_words
from opal_lake.read.changes import ChangePlan, ChangeSpan, versions_of
from opal_lake.read.marked_rows import read_marked
from opal_lake.read.result_columns import fields_beside

if TYPE_CHECKING:
    from opal_lake.operations.read import Changes

CHANGE_TYPE = "_change_type"
COMMIT_VERSION = "_commit_version"
COMMIT_TIMESTAMP = "_commit_timestamp"
FEED_TYPES: Mapping[str, DataType] = {
    CHANGE_TYPE: Atomic(name="string"),
    COMMIT_VERSION: Atomic(name="long"),
    COMMIT_TIMESTAMP: Atomic(name="timestamp"),
}
FEED_COLUMNS = frozenset(FEED_TYPES)
INSERT, PREIMAGE, POSTIMAGE, DELETE = "insert", "update_preimage", "update_postimage", "delete"


def feed_fields(spec: TableSpec, columns: Sequence[str] | None) -> tuple[Field, ...]:
    """Return the table's columns in a feed.

    Raises InvalidInputError if one has the name of a column of the feed.
    """
    return fields_beside(FEED_COLUMNS, spec, columns, "a change feed")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Changes:
    """Changed rows as they are stored.

    Of each row: the version that changed it, whether it is how the change left it (`after`), and
    whether another row replaced it. `pair` is the id of the row that replaced it, otherwise its
    own: the two rows of an update have one.
    """

    rows: pa.Table
    version: Int64Array
    after: BoolArray
    pair: RowIds
    is_replaced: BoolArray


def read_changes(
    plan: ChangePlan, feed: "Changes", chosen: Sequence[Field] | None = None
) -> pa.Table:
    """Read the changes into memory, by version.

    The two rows of an update follow each other. `chosen` are fields of the table under any name,
    instead of those that the feed names.
    """
    spec = plan.spec
    fields = feed_fields(spec, feed.columns) if chosen is None else chosen
    # Without pairs, the keys show which rows are those of an update
    needed = fields if plan.has_pairs else (*fields, *spec.keys)
    physical = list(dict.fromkeys(field.physical for field in needed))
    shared = set[str]()
    if plan.has_pairs and not plan.is_filtered:
        # Both rows of an update have the same key: it is read from the second one alone
        shared = {field.physical for field in spec.keys}
    changes = _read_files(plan, physical, shared)
    if plan.has_pairs:
        order, is_second = _in_pairs(plan, changes)
        is_update = (changes.is_replaced[order] | is_second) & feed.compute_updates
        kinds = _kinds(changes.after[order], is_update)
        rows = _ordered(changes, order, is_second, shared)
    else:
        numbers = _key_numbers([changes.rows[field.physical] for field in spec.keys])
        order, kinds = labelled(numbers, changes.version, changes.after, feed)
        rows = changes.rows.take(pa.array(order))
    version = changes.version[order]
    shown = to_fields(rows, spec, fields)
    marks = [kind_names(kinds), pa.array(version), _times_of(plan, version)]
    return pa.table(
        [*shown.columns, *marks],
        names=[*shown.column_names, CHANGE_TYPE, COMMIT_VERSION, COMMIT_TIMESTAMP],
    )


def _read_files(plan: ChangePlan, physical: list[str], shared: Set[str]) -> _Changes:
    empty = physical_schema(plan.spec).empty_table().select([*physical, SEGMENT])
    if not plan.spans:
        return _joined([], empty)
    workers = max(readers(span.snapshot.storage, plan.spec) for span in plan.spans)
    with ThreadPoolExecutor(workers) as pool:
        parts: list[_Changes] = []
        for span in plan.spans:
            parts += pool.map(partial(_changed_rows, span, physical, shared), span.files)
        return _joined(parts, empty)


def _times_of(plan: ChangePlan, version: Int64Array) -> pa.Array:
    """Return the commit time of each version; each time is looked up once."""
    versions, number = np.unique(version, return_inverse=True)
    times_us = [plan.times_us[each] for each in versions.tolist()]
    return pa.array(times_us, pa.timestamp("us", "UTC")).take(pa.array(number))


def in_shown_order(rows: pa.Table, spec: TableSpec) -> pa.Table:
    """Return the rows of a feed by version and key.

    The row before a change comes first. Keys count as far as the feed has their columns.
    """
    is_after = pc.is_in(rows[CHANGE_TYPE], pa.array([INSERT, POSTIMAGE]))
    keys = [field.name for field in spec.keys if field.name in rows.column_names]
    columns = [rows[COMMIT_VERSION], *(rows[name] for name in keys), is_after.cast(pa.int8())]
    names = [str(number) for number in range(len(columns))]
    ascending = [(name, "ascending") for name in names]
    order = pc.sort_indices(pa.table(columns, names=names), sort_keys=ascending)
    return rows.take(order)


def _joined(parts: Sequence[_Changes], empty: pa.Table) -> _Changes:
    no_versions, no_flags = np.empty(0, np.int64), np.empty(0, np.bool_)
    tables = [empty, *(part.rows for part in parts)]
    return _Changes(
        # Files may be older than a column
        rows=pa.concat_tables(tables, promote_options="default"),
        version=np.concatenate([no_versions, *(part.version for part in parts)]),
        after=np.concatenate([no_flags, *(part.after for part in parts)]),
        pair=concat_ids([part.pair for part in parts]),
        is_replaced=np.concatenate([no_flags, *(part.is_replaced for part in parts)]),
    )


def _changed_rows(
    span: ChangeSpan, physical: list[str], shared: Set[str], file: DataFile
) -> _Changes:
    """Return the rows of a file that ended, then those that began.

    A row may have done both. The shared columns of a pair are left out of replaced rows. The column
    of the segment is always read, so that rows are counted even if the file has no other column.
    """
    # In this order: `span.deleted` is built when it is first asked for
    if shared and span.is_old(file) and span.deleted.keys().isdisjoint(file.segments):
        physical = [name for name in physical if name not in shared]
    read, segment, offset = _rows_near(span, physical, file)
    rows = pa.table([*read.columns, pa.array(segment)], names=[*read.column_names, SEGMENT])
    ended = _are_among(span.marks, file, segment, offset)
    hidden = _are_among(span.never_visible, file, segment, offset)
    began = versions_of(span.begun, segment)
    begun = (began > 0) & ~hidden
    before = RowIds(segment=segment[ended], offset=offset[ended])
    after = RowIds(segment=segment[begun], offset=offset[begun])
    ends = span.ended.at_rows(before.segment, before.offset)
    if ends.next_rows is None:
        is_replaced = np.zeros(len(ends), np.bool_)
        pair = before
    else:
        is_replaced = ends.next_rows.is_row
        pair = ends.next_rows.where(is_replaced, before)
    return _Changes(
        rows=pa.concat_tables([rows.filter(pa.array(ended)), rows.filter(pa.array(begun))]),
        version=np.concatenate([ends.version, began[begun]]),
        after=np.repeat([False, True], [len(ends), len(after.segment)]),
        pair=concat_ids([pair, after]),
        is_replaced=np.concatenate([is_replaced, np.zeros(len(after.segment), np.bool_)]),
    )


def _in_pairs(plan: ChangePlan, changes: _Changes) -> tuple[IndexArray, BoolArray]:
    """Return the rows' positions in the feed, and which replaced the row before.

    A replacing row that is in no file did not change: it was dropped before its end was known.
    """
    begun: dict[int, int] = {}
    for span in plan.spans:
        begun |= span.begun
    pair = changes.pair
    # An ended row goes next to the row that replaced it, which may have come in another version
    version = np.where(changes.is_replaced, versions_of(begun, pair.segment), changes.version)
    words = row_words(np.unique(pair.segment), pair.segment, pair.offset)
    by_row = words << 1 | changes.after
    if len(plan.times_us) == 1:
        order = np.argsort(by_row)  # cheaper, and with one version the same
    else:
        order = np.lexsort((by_row, version))
    pair_words, is_replaced = words[order], changes.is_replaced[order]
    is_second = changes.after[order]
    is_second[:1] = False
    is_second[1:] &= is_replaced[:-1] & (pair_words[1:] == pair_words[:-1])
    return order, is_second


def _ordered(
    changes: _Changes, order: IndexArray, is_second: BoolArray, shared: Set[str]
) -> pa.Table:
    """Return the rows in order; replaced rows share columns with the next row."""
    if not shared:
        return changes.rows.take(pa.array(order))
    replaced = np.flatnonzero(changes.is_replaced[order])
    is_followed = np.append(is_second, False)[replaced + 1]
    missing = np.count_nonzero(~is_followed)
    if missing:
        raise FormatError(
            f"rows are in no file that took the place of {missing:,} of those that changed; "
            "run `opal check`"
        )
    source = order.copy()
    source[replaced] = order[replaced + 1]
    own_positions, shared_positions = pa.array(order), pa.array(source)
    columns: dict[str, pa.ChunkedArray] = {}
    for name in changes.rows.column_names:
        positions = shared_positions if name in shared else own_positions
        columns[name] = changes.rows[name].take(positions)
    return pa.table(columns)


def _rows_near(
    span: ChangeSpan, physical: list[str], file: DataFile
) -> tuple[pa.Table, Int64Array, Int32Array]:
    """Return the rows of a file that may have begun or ended, and their ids."""
    state = span.snapshot
    if span.is_old(file):
        marked = read_marked(state, span.marks, physical, file)
        return marked.rows, marked.ids.segment, marked.ids.offset
    begun_rows = {
        number: BitMap(range(state.segments[number].rows))
        for number in file.segments
        if number in span.begun
    }
    wanted = {**span.marks, **begun_rows}
    rows = read_near(state.storage, file, state.spec, [*physical, SEGMENT, OFFSET], wanted)
    return rows.drop_columns([SEGMENT, OFFSET]), rows[SEGMENT].to_numpy(), rows[OFFSET].to_numpy()


def _key_numbers(columns: Sequence[pa.ChunkedArray]) -> UInt64Array:
    """Return a number for each key, in the form of hashes: those take longer."""
    numbers = np.zeros(len(columns[0]), np.int64)
    for column in columns:
        values = pc.dictionary_encode(column.combine_chunks())
        # Renumbered after each column, so that the product stays below the square of the rows
        combined = numbers * (len(values.dictionary) + 1) + values.indices.to_numpy()
        _, numbers = np.unique(combined, return_inverse=True)
    return np.stack([numbers, np.zeros_like(numbers)], axis=1).astype(np.uint64)


def _are_among(
    marks: Bitmaps, file: DataFile, segment: Int64Array, offset: Int32Array
) -> BoolArray:
    of_file = {number: marks[number] for number in file.segments if number in marks}
    return Marks.of(of_file).at(segment, offset)


def labelled(
    keys: UInt64Array, version: Int64Array, after: BoolArray, feed: "Changes"
) -> tuple[IndexArray, npt.NDArray[np.int8]]:
    """Return the rows' positions in the feed, and their kinds, for `kind_names`.

    A change is all that a version did to a key, or in a net feed all that all versions did to it.
    Its first row counts if it existed before, and its last row if it exists after.
    """
    high, low = keys[:, 0], keys[:, 1]
    if feed.is_net:
        order = np.lexsort((after, version, low, high))
        parts: list[npt.NDArray[Any]] = [high[order], low[order]]
    else:
        order = np.lexsort((after, low, high, version))
        parts = [version[order], high[order], low[order]]
    begins = np.ones(len(order) + 1, np.bool_)
    begins[1:-1] = np.logical_or.reduce([part[1:] != part[:-1] for part in parts])
    is_first, is_last = begins[:-1], begins[1:]
    change = np.cumsum(is_first) - 1
    # Whether the key had a row before each change, and has one after it; then by row
    existed = ~after[order][is_first][change]
    exists = after[order][is_last][change]
    shown = np.flatnonzero(is_first & existed | is_last & exists)
    last_version = version[order][is_last][change]
    shown = shown[np.argsort(last_version[shown], kind="stable")]
    is_update = (existed & exists)[shown] & feed.compute_updates
    positions = order[shown]
    return positions, _kinds(after[positions], is_update)


def _kinds(after: BoolArray, is_update: BoolArray) -> npt.NDArray[np.int8]:
    """Return positions in the list of `kind_names`."""
    return after.astype(np.int8) << 1 | is_update


def kind_names(kinds: npt.NDArray[np.int8]) -> pa.Array:
    """Return the value of the column `_change_type` for each kind."""
    return pa.array([DELETE, PREIMAGE, INSERT, POSTIMAGE]).take(pa.array(kinds))
