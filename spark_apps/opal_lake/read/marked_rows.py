"""Marked rows of a data file: only the pages that hold them are read."""

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
    """Physical columns of rows, and which rows they are."""

    rows: pa.Table
    ids: RowIds


def read_marked(
    snapshot: Snapshot, marks: Bitmaps, physical: list[str], file: DataFile
) -> MarkedRows:
    """Those of the marked rows that the file holds, in its order."""
    mine = {segment: marks[segment] for segment in file.segments if segment in marks}
    places, ids = _places(snapshot, mine, file)
    return MarkedRows(
        rows=read_places(snapshot.storage, file, snapshot.spec, physical, places), ids=ids
    )


def _places(snapshot: Snapshot, marks: Bitmaps, file: DataFile) -> tuple[Numbers, RowIds]:
    if is_ingested(file):
        (number,) = file.segments
        offset = offsets_of(marks[number]).astype(np.int32)
        return offset.astype(np.int64), RowIds(
            segment=np.full(len(offset), number, np.int64), offset=offset
        )
    ids, places = read_near_places(snapshot.storage, file, snapshot.spec, [SEGMENT, OFFSET], marks)
    rows = RowIds(segment=ids[SEGMENT].to_numpy(), offset=ids[OFFSET].to_numpy())
    chosen = Marks.of(marks).at(rows.segment, rows.offset)
    return places[chosen], rows.take(chosen)
