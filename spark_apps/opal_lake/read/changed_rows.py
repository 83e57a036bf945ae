"""The rows of a change feed, read in this process, and what a feed says of each, also a net one. Names and meaning are those of Spark's
`Changelog`. `opal_spark.read.changes` does the same for large feeds: who changes one changes both.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap

from opal_lake.data.column_read import read_near, read_places
from opal_lake.data.columns import physical_schema, to_fields
from opal_lake.data.segment import DataFile, is_ingested
from opal_lake.errors import InvalidInputError
from opal_lake.events.bitmap import Bitmaps, Marks, offsets_of
from opal_lake.job.operations.values import CHANGE_AXES, CHANGE_MODES
from opal_lake.read.changes import ChangePlan, ChangeSpan, versions_of
from opal_lake.read.result_columns import fields_beside
from opal_lake.spec.schema import OFFSET, SEGMENT, Field
from opal_lake.spec.table_spec import TableSpec
from opal_lake.storage.protocol import READERS

CHANGE_TYPE, COMMIT_VERSION, COMMIT_TIMESTAMP = "_change_type", "_commit_version", "_commit_timestamp"
FEED_COLUMNS = frozenset({CHANGE_TYPE, COMMIT_VERSION, COMMIT_TIMESTAMP})
INSERT, PREIMAGE, POSTIMAGE, DELETE = "insert", "update_preimage", "update_postimage", "delete"
NET = "netChanges"
AFTER, VERSION = "_opal_after", "_opal_version"

Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedOptions:
    """How to tell what changed. No rewrite carries rows over into a feed, so that `dropCarryovers` has none to drop."""

    mode: str = "none"
    compute_updates: bool = True
    columns: Sequence[str] | None = None
    axis: str = CHANGE_AXES[0]

    def __post_init__(self) -> None:
        if self.mode not in CHANGE_MODES:
            raise InvalidInputError(f"mode={self.mode!r} is unknown; use one of {', '.join(CHANGE_MODES)}")
        if not isinstance(self.compute_updates, bool):
            raise InvalidInputError(f"compute_updates={self.compute_updates!r}; write True or False")
        if self.axis not in CHANGE_AXES:
            raise InvalidInputError(f"axis={self.axis!r} is unknown; use one of {', '.join(CHANGE_AXES)}")

    @property
    def is_of_history(self) -> bool:
        """Whether it tells of the history, and not of the current view."""
        return self.axis == CHANGE_AXES[1]

    @property
    def is_net(self) -> bool:
        return self.mode == NET

    def fields(self, spec: TableSpec) -> tuple[Field, ...]:
        """The table's columns in the feed."""
        return fields_beside(FEED_COLUMNS, spec, self.columns, "a change feed")


def read_changes(plan: ChangePlan, feed: FeedOptions, chosen: Sequence[Field] | None = None) -> pa.Table:
    """Into memory, in the order of versions; the two rows of an update come one after the other.

    `chosen` are fields of the table under any name, in the place of those that the options name.
    """
    spec, fields = plan.spec, feed.fields(plan.spec) if chosen is None else chosen
    physical = list(dict.fromkeys([field.physical for field in (*fields, *spec.keys)]))
    with ThreadPoolExecutor(READERS) as pool:
        parts = [rows for span in plan.spans for rows in pool.map(partial(_changed_rows, span, physical), span.files)]
    empty = _marked(physical_schema(spec).empty_table().select(physical), np.zeros(0, np.int64), after=False)
    rows = pa.concat_tables([empty, *parts], promote_options="default")  # files may be older than a column
    order, kinds = labelled(
        _key_numbers([rows[field.physical] for field in spec.keys]), rows[VERSION].to_numpy(), np.asarray(rows[AFTER]), feed
    )
    rows = rows.take(pa.array(order))
    times = [plan.times_us[version] for version in rows[VERSION].to_pylist()]
    marks = [pa.array(kinds, pa.string()), rows[VERSION], pa.array(times, pa.timestamp("us", "UTC"))]
    shown = to_fields(rows, spec, fields)
    return pa.table([*shown.columns, *marks], names=[*shown.column_names, CHANGE_TYPE, COMMIT_VERSION, COMMIT_TIMESTAMP])


def _changed_rows(span: ChangeSpan, physical: list[str], file: DataFile) -> pa.Table:
    """Of one file, the rows that ended and those that began; a row may have done both."""
    rows, segment, offset = _rows_near(span, physical, file)
    ended, hidden = (_are_among(marks, file, segment, offset) for marks in (span.marks, span.never_visible))
    began = versions_of(span.begun, segment)
    begun = (began > 0) & ~hidden
    before = _marked(rows.filter(pa.array(ended)), span.ended.version_of(segment[ended], offset[ended]), after=False)
    return pa.concat_tables([before, _marked(rows.filter(pa.array(begun)), began[begun], after=True)])


def _rows_near(span: ChangeSpan, physical: list[str], file: DataFile) -> tuple[pa.Table, npt.NDArray[np.int64], npt.NDArray[np.int32]]:
    """The rows of the file that may have begun or ended, and their ids."""
    state = span.snapshot
    if is_ingested(file) and file.segments[0] not in span.begun:
        offsets = offsets_of(span.marks[file.segments[0]]).astype(np.int32)
        rows = read_places(state.storage, file, state.spec, physical, offsets.astype(np.int64))
        return rows, np.full(len(offsets), file.segments[0], np.int64), offsets
    all_of = {number: BitMap(range(state.segments[number].rows)) for number in file.segments if number in span.begun}
    rows = read_near(state.storage, file, state.spec, [*physical, SEGMENT, OFFSET], {**span.marks, **all_of})
    return rows.drop_columns([SEGMENT, OFFSET]), rows[SEGMENT].to_numpy(), rows[OFFSET].to_numpy()


def _key_numbers(columns: Sequence[pa.ChunkedArray]) -> npt.NDArray[np.uint64]:
    """A number for each key, in the shape of hashes, which take longer to compute."""
    numbers = np.zeros(len(columns[0]), np.int64)
    for column in columns:
        values = pc.dictionary_encode(column.combine_chunks())
        numbers = np.unique(numbers * (len(values.dictionary) + 1) + values.indices.to_numpy(), return_inverse=True)[1]
    return np.stack([numbers, np.zeros_like(numbers)], axis=1).astype(np.uint64)


def _are_among(marks: Bitmaps, file: DataFile, segment: npt.NDArray[np.int64], offset: npt.NDArray[np.int32]) -> Flags:
    return Marks.of({number: marks[number] for number in file.segments if number in marks}).at(segment, offset)


def _marked(rows: pa.Table, versions: npt.NDArray[np.int64], *, after: bool) -> pa.Table:
    return rows.append_column(VERSION, pa.array(versions)).append_column(AFTER, pa.array(np.full(len(versions), after)))


def labelled(
    keys: npt.NDArray[np.uint64], version: npt.NDArray[np.int64], after: Flags, feed: FeedOptions
) -> tuple[npt.NDArray[np.intp], list[str]]:
    """Positions in the order of the feed, and what happened to the row at each.

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
    kinds = np.where(is_after, np.where(is_update, POSTIMAGE, INSERT), np.where(is_update, PREIMAGE, DELETE))
    return order[kept], kinds.tolist()
