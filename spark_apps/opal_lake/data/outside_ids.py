"""Row ids and versions of rows for the outside (FORMAT, row ids for the outside).

Rewritten Parquet files hold both in columns of their own, because their rows are no longer at the
positions that their segments gave them. ORC files have no such columns: only Parquet tables are
published.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from opal_lake.data.segment import Segment
from opal_lake.definition.schema import OFFSET, OUTSIDE_ID, SEGMENT, UPDATED_AT
from opal_lake.errors import FormatError
from opal_lake.ids import segment_name

# Consecutive rows of one segment, on average. With fewer, segments are looked up row by row.
_RUN_ROWS = 64
_NO_SEGMENT = -1
OUTSIDE_FIELDS = (pa.field(OUTSIDE_ID, pa.int64()), pa.field(UPDATED_AT, pa.int64()))


@dataclass(frozen=True, slots=True, kw_only=True)
class RowBases:
    """Columns of some visible segments, in the order of their ids.

    They hold the id, the number of rows, the row base, and the version that made the rows visible.
    """

    segments: npt.NDArray[np.int64]
    rows: npt.NDArray[np.int64]
    bases: npt.NDArray[np.int64]
    versions: npt.NDArray[np.int64]

    @classmethod
    def of(cls, segments: Mapping[int, Segment]) -> "RowBases":
        """Return the bases of the visible ones among some segments."""
        visible = []
        for number, segment in sorted(segments.items()):
            if segment.row_base is not None:
                visible.append((number, segment.rows, segment.row_base, segment.visible_since))
        # An array without rows would have one dimension
        columns = np.array(visible, np.int64).reshape(-1, 4).T
        # The copy makes each column contiguous
        numbers, rows, bases, versions = columns.copy()
        return cls(segments=numbers, rows=rows, bases=bases, versions=versions)

    def numbered(self, rows: pa.Table) -> pa.Table:
        """Append the ids and versions of rows for the outside as columns."""
        ids, versions = self.columns(rows[SEGMENT].to_numpy(), rows[OFFSET].to_numpy())
        for column, values in zip(OUTSIDE_FIELDS, (ids, versions), strict=True):
            rows = rows.append_column(column, pa.array(values))
        return rows

    def columns(
        self, segment: npt.NDArray[np.int64], offset: npt.NDArray[np.int32]
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return the ids of rows for the outside, and the versions that made them visible.

        `segment` and `offset` are the row ids. Raises FormatError for a row whose segment is
        unknown, not visible, or has fewer rows.
        """
        if not len(segment):
            return np.empty(0, np.int64), np.empty(0, np.int64)
        # A run is a stretch of rows of one segment
        is_new_segment = segment[1:] != segment[:-1]
        begins = np.concatenate([[0], 1 + np.flatnonzero(is_new_segment)])
        if len(begins) * _RUN_ROWS > len(segment):
            positions = self._positions(segment)
            self._check_reach(positions, offset.view(np.uint32))
            # I32, I33: row N of a visible segment has the id row base + N.
            return self.bases[positions] + offset, self.versions[positions]
        # Run by run: to look up each row takes five times as long.
        positions = self._positions(segment[begins])
        greatest_offsets = np.maximum.reduceat(offset.view(np.uint32), begins)
        self._check_reach(positions, greatest_offsets)
        ids = offset.astype(np.int64)
        versions = np.empty(len(segment), np.int64)
        ends = [*begins[1:].tolist(), len(segment)]
        for begin, end, position in zip(begins.tolist(), ends, positions.tolist(), strict=True):
            ids[begin:end] += self.bases[position]
            versions[begin:end] = self.versions[position]
        return ids, versions

    def _check_reach(self, positions: npt.NDArray[np.intp], offset: npt.NDArray[np.uint32]) -> None:
        """Raise FormatError unless offsets are within the segments at some positions.

        An id beyond a segment would be that of another row. As unsigned numbers, negative offsets
        are greater than the rows of any segment.
        """
        is_beyond = offset >= self.rows[positions]
        if is_beyond.any():
            first = int(np.argmax(is_beyond))
            row, position = int(offset[first].astype(np.int32)), positions[first]
            name = segment_name(self.segments[position])
            raise FormatError(
                f"a data file holds row {row:,} of segment {name}, "
                f"which has {self.rows[position]:,} rows; run `opal check`"
            )

    def _positions(self, segment: npt.NDArray[np.int64]) -> npt.NDArray[np.intp]:
        """Return the positions of segment ids; raise FormatError for an unknown one."""
        positions = np.searchsorted(self.segments, segment)
        # An id beyond the last one has the position after it
        known_ids = np.append(self.segments, _NO_SEGMENT)
        is_known = known_ids[positions] == segment
        if not is_known.all():
            raise FormatError(
                f"a data file holds rows of segment {segment[~is_known][0]}, which is not visible; "
                "run `opal check`"
            )
        return positions
