"""Row ids and versions of rows for the outside (FORMAT, row ids for the outside).

Rewritten Parquet files hold them in two columns, since their rows are no longer where their segment
put them. ORC files do not: only Parquet tables are published.
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

_RUN_ROWS = 64  # consecutive ones of a segment, on average: fewer are looked up one by one
_NO_SEGMENT = -1
OUTSIDE_FIELDS = (pa.field(OUTSIDE_ID, pa.int64()), pa.field(UPDATED_AT, pa.int64()))


@dataclass(frozen=True, slots=True, kw_only=True)
class RowBases:
    """Rows, row bases and versions of some visible segments, by ascending id."""

    segments: npt.NDArray[np.int64]
    rows: npt.NDArray[np.int64]
    bases: npt.NDArray[np.int64]
    versions: npt.NDArray[np.int64]

    @classmethod
    def of(cls, segments: Mapping[int, Segment]) -> "RowBases":
        """Return the bases of those segments that are visible."""
        visible = []
        for number, segment in sorted(segments.items()):
            if segment.row_base is not None:
                visible.append((number, segment.rows, segment.row_base, segment.visible_since))
        columns = np.array(visible, np.int64).reshape(-1, 4).T  # (0, 4) if none is visible
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

        Raises FormatError for a row whose segment is unknown, not visible, or has fewer rows.
        """
        if not len(segment):
            return np.empty(0, np.int64), np.empty(0, np.int64)
        begins = np.concatenate([[0], 1 + np.flatnonzero(segment[1:] != segment[:-1])])
        if len(begins) * _RUN_ROWS > len(segment):
            positions = self._positions(segment)
            self._check_reach(positions, offset.view(np.uint32))
            # I32, I33: row N of a visible segment has the id row base + N.
            return self.bases[positions] + offset, self.versions[positions]
        # Rows that were ingested together: to look up each of them takes five times as long.
        positions = self._positions(segment[begins])
        self._check_reach(positions, np.maximum.reduceat(offset.view(np.uint32), begins))
        ids = offset.astype(np.int64)
        versions = np.empty(len(segment), np.int64)
        ends = [*begins[1:].tolist(), len(segment)]
        for begin, end, position in zip(begins.tolist(), ends, positions.tolist(), strict=True):
            ids[begin:end] += self.bases[position]
            versions[begin:end] = self.versions[position]
        return ids, versions

    def _check_reach(self, positions: npt.NDArray[np.intp], offset: npt.NDArray[np.uint32]) -> None:
        """Raise FormatError unless offsets are within their segments.

        Ids beyond a segment belong to other rows. As unsigned numbers, offsets below 0 are greater
        than the rows of any segment.
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
        positions = np.searchsorted(self.segments, segment)
        is_known = np.append(self.segments, _NO_SEGMENT)[positions] == segment
        if not is_known.all():
            raise FormatError(
                f"a data file holds rows of segment {segment[~is_known][0]}, which is not visible; "
                "run `opal check`"
            )
        return positions
