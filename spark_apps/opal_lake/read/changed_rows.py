"""The rows of a change feed, read in this process, and the labels of rows in any feed.

The columns of a feed have the names and meanings of Spark's `Changelog`. `opal_spark.read.changes`
does the same for large feeds: change both together.
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
    """Return the table's columns in a feed: the named ones, or all.

    Raises InvalidInputError if a column has the name of a column of the feed.
    """
    return fields_beside(FEED_COLUMNS, spec, columns, "a change feed")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Changes:
    """Changed rows as they are stored. Each field has an element for each row.

    - `version` is the version that changed the row.
    - `after` is true if the row began in that version, false if it ended.
    - `is_replaced` is true if another row replaced it.
    - `pair` is the id of the row that replaced it, or its own id: the two rows of an update have
      the same `pair`.
    """

    rows: pa.Table
    version: Int64Array
    after: BoolArray
    pair: RowIds
    is_replaced: BoolArray


def read_changes(
    plan: ChangePlan, feed: "Changes", chosen: Sequence[Field] | None = None
) -> pa.Table:
    """Read the changes into memory, in the order of their versions.

    The two rows of an update follow each other. `chosen` are the fields to read, under any name;
    without them, the columns of the feed are read.
    """
    spec = plan.spec
    fields = feed_fields(spec, feed.columns) if chosen is None else chosen
    # Without pairs, equal keys show which two rows are an update
    needed = fields if plan.has_pairs else (*fields, *spec.keys)
    physical = list(dict.fromkeys(field.physical for field in needed))
    shared = set[str]()
    if plan.has_pairs and not plan.is_filtered:
        # Both rows of an update have the same key: it is read only from the second row
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
    """Read the changed rows of all files; replaced rows may lack the shared columns."""
    empty = physical_schema(plan.spec).empty_table().select([*physical, SEGMENT])
    if not plan.spans:
        return _joined([], empty)
    workers = max(readers(span.snapshot.storage, plan.spec) for span in plan.spans)
    with ThreadPoolExecutor(workers) as pool:
        parts: list[_Changes] = []
        for span in plan.spans:
            parts += pool.map(partial(_changed_rows, span, physical, shared), span.files)
        return _joined(parts, empty)


def _times_of(plan: ChangePlan, version_of_row: Int64Array) -> pa.Array:
    """Return the commit time of each row's version."""
    versions, number = np.unique(version_of_row, return_inverse=True)
    times_us = [plan.times_us[version] for version in versions.tolist()]
    return pa.array(times_us, pa.timestamp("us", "UTC")).take(pa.array(number))


def in_shown_order(rows: pa.Table, spec: TableSpec) -> pa.Table:
    """Sort the rows of a feed by version, key, and before or after the change.

    Key columns that the feed does not have are left out of the order.
    """
    keys = [field.name for field in spec.keys if field.name in rows.column_names]
    is_after = pc.is_in(rows[CHANGE_TYPE], pa.array([INSERT, POSTIMAGE]))
    columns = [rows[COMMIT_VERSION]]
    columns += [rows[name] for name in keys]
    columns.append(is_after.cast(pa.int8()))
    # Numbers as names, so that they differ
    names = [str(number) for number in range(len(columns))]
    ascending = [(name, "ascending") for name in names]
    order = pc.sort_indices(pa.table(columns, names=names), sort_keys=ascending)
    return rows.take(order)


def _joined(parts: Sequence[_Changes], empty: pa.Table) -> _Changes:
    """Return the changes of all parts; `empty` has all columns, which files may lack."""
    tables = [empty]
    versions = [np.empty(0, np.int64)]
    after = [np.empty(0, np.bool_)]
    is_replaced = [np.empty(0, np.bool_)]
    for part in parts:
        tables.append(part.rows)
        versions.append(part.version)
        after.append(part.after)
        is_replaced.append(part.is_replaced)
    return _Changes(
        rows=pa.concat_tables(tables, promote_options="default"),
        version=np.concatenate(versions),
        after=np.concatenate(after),
        pair=concat_ids([part.pair for part in parts]),
        is_replaced=np.concatenate(is_replaced),
    )


def _changed_rows(
    span: ChangeSpan, physical: list[str], shared: Set[str], file: DataFile
) -> _Changes:
    """Return the rows of a file that ended, then the rows that began.

    A row that began and ended is in both. If all rows of the file were replaced, the shared columns
    are left out. The column of the segment is always read, so that rows are counted even if the
    file has no other column.
    """
    # `span.deleted` is built when it is first asked for, so it is the last condition
    if shared and span.is_old(file) and span.deleted.keys().isdisjoint(file.segments):
        physical = [name for name in physical if name not in shared]
    columns, segment, offset = _rows_near(span, physical, file)
    rows = pa.table([*columns.columns, pa.array(segment)], names=[*columns.column_names, SEGMENT])
    has_ended = _are_among(span.marks, file, segment, offset)
    is_hidden = _are_among(span.never_visible, file, segment, offset)
    begin_version = versions_of(span.begun, segment)
    has_begun = (begin_version > 0) & ~is_hidden
    ended = RowIds(segment=segment[has_ended], offset=offset[has_ended])
    begun = RowIds(segment=segment[has_begun], offset=offset[has_begun])
    ends = span.ended.at_rows(ended.segment, ended.offset)
    if ends.next_rows is None:
        is_replaced = np.zeros(len(ends), np.bool_)
        pair = ended
    else:
        is_replaced = ends.next_rows.is_row
        pair = ends.next_rows.where(is_replaced, ended)
    ended_rows, begun_rows = rows.filter(pa.array(has_ended)), rows.filter(pa.array(has_begun))
    not_replaced = np.zeros(len(begun.segment), np.bool_)
    return _Changes(
        rows=pa.concat_tables([ended_rows, begun_rows]),
        version=np.concatenate([ends.version, begin_version[has_begun]]),
        after=np.repeat([False, True], [len(ended.segment), len(begun.segment)]),
        pair=concat_ids([pair, begun]),
        is_replaced=np.concatenate([is_replaced, not_replaced]),
    )


def _in_pairs(plan: ChangePlan, changes: _Changes) -> tuple[IndexArray, BoolArray]:
    """Return the order of rows in the feed, and a mask of second rows of updates.

    The order has the position of each row of the feed among `changes`, the mask is in the order of
    the feed. A second row that is in no file is not in the feed: a compaction dropped it.
    """
    begun: dict[int, int] = {}
    for span in plan.spans:
        begun |= span.begun
    pair = changes.pair
    # An ended row goes next to the row that replaced it, which may have begun in another version
    version = np.where(changes.is_replaced, versions_of(begun, pair.segment), changes.version)
    words = row_words(np.unique(pair.segment), pair.segment, pair.offset)
    # By pair, and the ended row of a pair before the begun one
    pair_order = words << 1 | changes.after
    if len(plan.times_us) == 1:
        order = np.argsort(pair_order)  # cheaper; all rows have the same version
    else:
        order = np.lexsort((pair_order, version))
    pair_words, is_replaced = words[order], changes.is_replaced[order]
    is_second = changes.after[order]
    is_second[:1] = False
    is_second[1:] &= is_replaced[:-1] & (pair_words[1:] == pair_words[:-1])
    return order, is_second


def _ordered(
    changes: _Changes, order: IndexArray, is_second: BoolArray, shared: Set[str]
) -> pa.Table:
    """Return the rows in order; replaced rows get the shared columns of the next row."""
    if not shared:
        return changes.rows.take(pa.array(order))
    replaced = np.flatnonzero(changes.is_replaced[order])
    is_followed = np.append(is_second, False)[replaced + 1]
    missing = np.count_nonzero(~is_followed)
    if missing:
        raise FormatError(
            f"{missing:,} changed rows were replaced by rows that no data file holds; "
            "run `opal check`"
        )
    order_of_shared = order.copy()
    order_of_shared[replaced] = order[replaced + 1]
    own_positions, shared_positions = pa.array(order), pa.array(order_of_shared)
    columns: dict[str, pa.ChunkedArray] = {}
    for name in changes.rows.column_names:
        positions = shared_positions if name in shared else own_positions
        columns[name] = changes.rows[name].take(positions)
    return pa.table(columns)


def _rows_near(
    span: ChangeSpan, physical: list[str], file: DataFile
) -> tuple[pa.Table, Int64Array, Int32Array]:
    """Return rows of a file, their segments and their offsets.

    All rows of the file that began or ended are among them.
    """
    state = span.snapshot
    if span.is_old(file):
        marked = read_marked(state, span.marks, physical, file)
        return marked.rows, marked.ids.segment, marked.ids.offset
    wanted = {**span.marks}
    for number in file.segments:
        if number in span.begun:
            wanted[number] = BitMap(range(state.segments[number].rows))
    rows = read_near(state.storage, file, state.spec, [*physical, SEGMENT, OFFSET], wanted)
    return rows.drop_columns([SEGMENT, OFFSET]), rows[SEGMENT].to_numpy(), rows[OFFSET].to_numpy()


def _key_numbers(columns: Sequence[pa.ChunkedArray]) -> UInt64Array:
    """Return a number for the key of each row, in the form of key hashes.

    Rows of one key have the same number. To compute hashes would take longer.
    """
    numbers = np.zeros(len(columns[0]), np.int64)
    for column in columns:
        values = pc.dictionary_encode(column.combine_chunks())
        # Numbered again after each column, so that products stay below the square of the rows
        combined = numbers * (len(values.dictionary) + 1) + values.indices.to_numpy()
        _, numbers = np.unique(combined, return_inverse=True)
    return np.stack([numbers, np.zeros_like(numbers)], axis=1).astype(np.uint64)


def _are_among(
    marks: Bitmaps, file: DataFile, segment: Int64Array, offset: Int32Array
) -> BoolArray:
    """Return which rows of a file are marked, by the segment and offset of each row."""
    marks_of_file = {number: marks[number] for number in file.segments if number in marks}
    return Marks.of(marks_of_file).at(segment, offset)


def labelled(
    keys: UInt64Array, version: Int64Array, after: BoolArray, feed: "Changes"
) -> tuple[IndexArray, npt.NDArray[np.int8]]:
    """Return the positions of the rows that a feed shows, and the kinds of changes.

    `keys`, `version` and `after` have an element for each changed row. A change is everything that
    one version did to a key; in a net feed, everything that all versions did to it. The feed shows
    the first row of a change if it existed before, and the last row if it exists after.
    """
    high, low = keys[:, 0], keys[:, 1]
    if feed.is_net:
        order = np.lexsort((after, version, low, high))
        columns: list[npt.NDArray[Any]] = [high[order], low[order]]
    else:
        order = np.lexsort((after, low, high, version))
        columns = [version[order], high[order], low[order]]
    # A change begins where a column differs from the row before; one more marks the end
    begins = np.ones(len(order) + 1, np.bool_)
    begins[1:-1] = np.logical_or.reduce([column[1:] != column[:-1] for column in columns])
    is_first, is_last = begins[:-1], begins[1:]
    change_of_row = np.cumsum(is_first) - 1
    # Of the change of each row: whether its key had a row before, and has one after
    after_in_order = after[order]
    existed = ~after_in_order[is_first][change_of_row]
    exists = after_in_order[is_last][change_of_row]
    shown = np.flatnonzero(is_first & existed | is_last & exists)
    last_version = version[order][is_last][change_of_row]
    shown = shown[np.argsort(last_version[shown], kind="stable")]
    is_update = (existed & exists)[shown] & feed.compute_updates
    positions = order[shown]
    return positions, _kinds(after[positions], is_update)


def _kinds(after: BoolArray, is_update: BoolArray) -> npt.NDArray[np.int8]:
    """Return the number of each row's kind, which `kind_names` turns into its name."""
    return after.astype(np.int8) << 1 | is_update


def kind_names(kinds: npt.NDArray[np.int8]) -> pa.Array:
    """Return the value of the column `_change_type` for each kind."""
    return pa.array([DELETE, PREIMAGE, INSERT, POSTIMAGE]).take(pa.array(kinds))
