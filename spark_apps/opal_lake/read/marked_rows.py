"""Reads of marked rows of a data file, by the pages that hold them."""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from opal_lake.data.column_read import read_near_places, read_places
from opal_lake.data.pages.page_index import Numbers
from opal_lake.data.segment import DataFile, is_ingested
from opal_lake.definition.schema import OFFSET, SEGMENT
from opal_lake.events.bitmap import Bitmaps, Marks, offsets_of
from opal_lake.events.segment_log import RowIds
from opal_lake.log.snapshot import Snapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkedRows:
    """The physical columns of rows, and the ids of the rows."""

    rows: pa.Table
    ids: RowIds


def read_marked(
    snapshot: Snapshot, marks: Bitmaps, physical: list[str], file: DataFile
) -> MarkedRows:
    """Read the marked rows that a file holds, in the order of the file."""
    marks_of_file = {segment: marks[segment] for segment in file.segments if segment in marks}
    positions, ids = _positions(snapshot, marks_of_file, file)
    rows = read_places(snapshot.storage, file, snapshot.spec, physical, positions)
    return MarkedRows(rows=rows, ids=ids)


def _positions(snapshot: Snapshot, marks: Bitmaps, file: DataFile) -> tuple[Numbers, RowIds]:
    """Return the positions of the marked rows in a file, and their ids."""
    if is_ingested(file):
        # A row's position in an ingested file is its offset
        (number,) = file.segments
        offset = offsets_of(marks[number]).astype(np.int32)
        ids = RowIds(segment=np.full(len(offset), number, np.int64), offset=offset)
        return offset.astype(np.int64), ids
    columns, positions = read_near_places(
        snapshot.storage, file, snapshot.spec, [SEGMENT, OFFSET], marks
    )
    ids = RowIds(segment=columns[SEGMENT].to_numpy(), offset=columns[OFFSET].to_numpy())
    is_marked = Marks.of(marks).at(ids.segment, ids.offset)
    return positions[is_marked], ids.take(is_marked)
