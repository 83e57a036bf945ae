"""The rows of a change feed, read in this process, and what a feed says of each, also a net one. Names and meaning are those of Spark's
`Changelog`. `opal_spark.read.changes` does the same for large feeds: who changes one changes both.
"""

from collections.abc import Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap

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

CHANGE_TYPE, COMMIT_VERSION, COMMIT_TIMESTAMP = (
    "_change_type",
    "_commit_version",
    "_commit_timestamp",
)
FEED_TYPES: Mapping[str, DataType] = {
    CHANGE_TYPE: Atomic(name="string"),
    COMMIT_VERSION: Atomic(name="long"),
    COMMIT_TIMESTAMP: Atomic(name="timestamp"),
}
FEED_COLUMNS = frozenset(FEED_TYPES)
INSERT, PREIMAGE, POSTIMAGE, DELETE = "insert", "update_preimage", "update_postimage", "delete"

Flags = npt.NDArray[np.bool_]


def feed_fields(spec: TableSpec, columns: Sequence[str] | None) -> tuple[Field, ...]:
    """Return the table's columns in a feed; an error if one has a name of the feed's own."""
    return fields_beside(FEED_COLUMNS, spec, columns, "a change feed")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Changes:
    """Rows as they are stored, and of each: the version that changed it, whether it is how the change left it, and whether another row took
    its place. `told` is that row then, else the row itself.
    """

    rows: pa.Table
    version: npt.NDArray[np.int64]
    after: Flags
    told: RowIds
    is_replaced: Flags


def read_changes(
    plan: ChangePlan, feed: "Changes", chosen: Sequence[Field] | None = None
) -> pa.Table:
    """Into memory, in the order of versions; the two rows of an update come one after the other.

    `chosen` are fields of the table under any name, in the place of those that the feed names.
    """
    spec, fields = plan.spec, feed_fields(plan.spec, feed.columns) if chosen is None else chosen
    physical = list(
        dict.fromkeys(field.physical for field in (*fields, *(() if plan.has_pairs else spec.keys)))
    )
    in_pairs = (
        {field.physical for field in spec.keys}
        if plan.has_pairs and not plan.is_filtered
        else set[str]()
    )
    with ThreadPoolExecutor(
        max(readers(span.snapshot.storage, spec) for span in plan.spans) if plan.spans else 1
    ) as pool:
        read = (
            pool.map(partial(_changed_rows, span, physical, in_pairs), span.files)
            for span in plan.spans
        )
        changes = _joined(
            [part for parts in read for part in parts],
            physical_schema(spec).empty_table().select([*physical, SEGMENT]),
        )
    if plan.has_pairs:
        order, is_second = _in_pairs(plan, changes)
        kinds = _kinds(
            changes.after[order], (changes.is_replaced[order] | is_second) & feed.compute_updates
        )
        rows = (
            _with_keys(changes, order, is_second, in_pairs)
            if in_pairs
            else changes.rows.take(pa.array(order))
        )
    else:
        numbers = _key_numbers([changes.rows[field.physical] for field in spec.keys])
        order, kinds = labelled(numbers, changes.version, changes.after, feed)
        rows = changes.rows.take(pa.array(order))
    version = changes.version[order]
    versions, number = np.unique(version, return_inverse=True)
    times = pa.array(
        [plan.times_us[version] for version in versions.tolist()], pa.timestamp("us", "UTC")
    ).take(pa.array(number))
    marks = [kind_names(kinds), pa.array(version), times]
    shown = to_fields(rows, spec, fields)
    return pa.table(
        [*shown.columns, *marks],
        names=[*shown.column_names, CHANGE_TYPE, COMMIT_VERSION, COMMIT_TIMESTAMP],
    )


def in_shown_order(rows: pa.Table, spec: TableSpec) -> pa.Table:
    """Return the rows of a feed by version and key; the row before a change comes before the other.

    Keys count as far as the feed has their columns.
    """
    is_after = pc.is_in(rows[CHANGE_TYPE], pa.array([INSERT, POSTIMAGE]))
    keys = [field.name for field in spec.keys if field.name in rows.column_names]
    columns = [rows[COMMIT_VERSION], *(rows[name] for name in keys), is_after.cast(pa.int8())]
    names = [str(number) for number in range(len(columns))]
    order = pc.sort_indices(
        pa.table(columns, names=names), sort_keys=[(name, "ascending") for name in names]
    )
    return rows.take(order)


def _joined(parts: Sequence[_Changes], empty: pa.Table) -> _Changes:
    return _Changes(
        rows=pa.concat_tables(
            [empty, *(part.rows for part in parts)], promote_options="default"
        ),  # files may be older than a column
        version=np.concatenate([np.empty(0, np.int64), *(part.version for part in parts)]),
        after=np.concatenate([np.empty(0, np.bool_), *(part.after for part in parts)]),
        told=concat_ids([part.told for part in parts]),
        is_replaced=np.concatenate([np.empty(0, np.bool_), *(part.is_replaced for part in parts)]),
    )


def _changed_rows(
    span: ChangeSpan, physical: list[str], in_pairs: Set[str], file: DataFile
) -> _Changes:
    """Of one file, the rows that ended and those that began; a row may have done both. Of rows that others took the place of, columns that
    a pair has in common are left out. There is the segment's column at least, so that rows are counted of which the file has no other.
    """
    if in_pairs and span.is_old(file) and span.deleted.keys().isdisjoint(file.segments):
        physical = [name for name in physical if name not in in_pairs]
    read, segment, offset = _rows_near(span, physical, file)
    rows = pa.table([*read.columns, pa.array(segment)], names=[*read.column_names, SEGMENT])
    ended, hidden = (
        _are_among(marks, file, segment, offset) for marks in (span.marks, span.never_visible)
    )
    began = versions_of(span.begun, segment)
    begun = (began > 0) & ~hidden
    before, after = (
        RowIds(segment=segment[chosen], offset=offset[chosen]) for chosen in (ended, begun)
    )
    ends = span.ended.at_rows(before.segment, before.offset)
    is_replaced = np.zeros(len(ends), np.bool_) if ends.next_rows is None else ends.next_rows.is_row
    told = before if ends.next_rows is None else ends.next_rows.where(is_replaced, before)
    return _Changes(
        rows=pa.concat_tables([rows.filter(pa.array(ended)), rows.filter(pa.array(begun))]),
        version=np.concatenate([ends.version, began[begun]]),
        after=np.repeat([False, True], [len(ends), len(after.segment)]),
        told=concat_ids([told, after]),
        is_replaced=np.concatenate([is_replaced, np.zeros(len(after.segment), np.bool_)]),
    )


def _in_pairs(plan: ChangePlan, changes: _Changes) -> tuple[npt.NDArray[np.intp], Flags]:
    """Positions in the order of the feed, and which rows took the place of the one before them. A row that is in no file, since it was
    dropped when its end was not known yet, was none that changed.
    """
    begun = {segment: version for span in plan.spans for segment, version in span.begun.items()}
    version = np.where(
        changes.is_replaced, versions_of(begun, changes.told.segment), changes.version
    )
    words = row_words(np.unique(changes.told.segment), changes.told.segment, changes.told.offset)
    by_row = words << 1 | changes.after
    order = np.argsort(by_row) if len(plan.times_us) == 1 else np.lexsort((by_row, version))
    told, is_replaced = words[order], changes.is_replaced[order]
    is_second = changes.after[order]
    is_second[:1] = False
    is_second[1:] &= is_replaced[:-1] & (told[1:] == told[:-1])
    return order, is_second


def _with_keys(
    changes: _Changes, order: npt.NDArray[np.intp], is_second: Flags, in_pairs: Set[str]
) -> pa.Table:
    """The rows in order. Replaced ones have what is the same in both from the row that took their place, which comes next."""
    replaced, source = np.flatnonzero(changes.is_replaced[order]), order.copy()
    missing = np.count_nonzero(~np.append(is_second, False)[replaced + 1])
    if missing:
        raise FormatError(
            f"rows are in no file that took the place of {missing:,} of those that changed; run `opal check`"
        )
    source[replaced] = order[replaced + 1]
    rows, places, shared = changes.rows, pa.array(order), pa.array(source)
    return pa.table(
        {
            name: rows[name].take(shared if name in in_pairs else places)
            for name in rows.column_names
        }
    )


def _rows_near(
    span: ChangeSpan, physical: list[str], file: DataFile
) -> tuple[pa.Table, npt.NDArray[np.int64], npt.NDArray[np.int32]]:
    """The rows of the file that may have begun or ended, and their ids."""
    state = span.snapshot
    if span.is_old(file):
        marked = read_marked(state, span.marks, physical, file)
        return marked.rows, marked.ids.segment, marked.ids.offset
    all_of = {
        number: BitMap(range(state.segments[number].rows))
        for number in file.segments
        if number in span.begun
    }
    rows = read_near(
        state.storage, file, state.spec, [*physical, SEGMENT, OFFSET], {**span.marks, **all_of}
    )
    return rows.drop_columns([SEGMENT, OFFSET]), rows[SEGMENT].to_numpy(), rows[OFFSET].to_numpy()


def _key_numbers(columns: Sequence[pa.ChunkedArray]) -> npt.NDArray[np.uint64]:
    """A number for each key, in the shape of hashes, which take longer to compute."""
    numbers = np.zeros(len(columns[0]), np.int64)
    for column in columns:
        values = pc.dictionary_encode(column.combine_chunks())
        numbers = np.unique(
            numbers * (len(values.dictionary) + 1) + values.indices.to_numpy(), return_inverse=True
        )[1]
    return np.stack([numbers, np.zeros_like(numbers)], axis=1).astype(np.uint64)


def _are_among(
    marks: Bitmaps, file: DataFile, segment: npt.NDArray[np.int64], offset: npt.NDArray[np.int32]
) -> Flags:
    return Marks.of({number: marks[number] for number in file.segments if number in marks}).at(
        segment, offset
    )


def labelled(
    keys: npt.NDArray[np.uint64], version: npt.NDArray[np.int64], after: Flags, feed: "Changes"
) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.int8]]:
    """Positions in the order of the feed, and what happened to the row at each, for `kind_names`.

    A change is what a version made of a key, or in a net feed what all made of it: its first row, if that was there before, and its last
    one, if that is there after.
    """
    high, low = keys[:, 0], keys[:, 1]
    order = np.lexsort((after, version, low, high) if feed.is_net else (after, low, high, version))
    parts = [column[order] for column in ((high, low) if feed.is_net else (version, high, low))]
    begins = np.ones(len(order) + 1, np.bool_)
    begins[1:-1] = np.logical_or.reduce([part[1:] != part[:-1] for part in parts])
    first, last, change = begins[:-1], begins[1:], np.cumsum(begins[:-1]) - 1
    existed, exists = ~after[order][first][change], after[order][last][change]
    kept = np.flatnonzero(first & existed | last & exists)
    kept = kept[np.argsort(version[order][last][change][kept], kind="stable")]
    is_update, is_after = (existed & exists)[kept] & feed.compute_updates, after[order][kept]
    return order[kept], _kinds(is_after, is_update)


def _kinds(after: Flags, is_update: Flags) -> npt.NDArray[np.int8]:
    return after.astype(np.int8) << 1 | is_update


def kind_names(kinds: npt.NDArray[np.int8]) -> pa.Array:
    return pa.array([DELETE, PREIMAGE, INSERT, POSTIMAGE]).take(pa.array(kinds))
