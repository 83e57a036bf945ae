"""The row ids and versions by which the outside knows rows (FORMAT, row ids for the outside).

Rewritten Parquet files hold them in two columns of their own, since their rows no longer lie where
their segment put them. ORC files do not: only Parquet tables are published.
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

_RUN_ROWS = 64  # of one segment behind each other, on average: fewer are looked up one by one
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
        """Return those of the visible ones."""
        known = []
        for number, segment in sorted(segments.items()):
            if segment.row_base is not None:
                known.append((number, segment.rows, segment.row_base, segment.visible_since))
        numbers, rows, bases, versions = np.array(known, np.int64).reshape(-1, 4).T.copy()
        return cls(segments=numbers, rows=rows, bases=bases, versions=versions)

    def numbered(self, rows: pa.Table) -> pa.Table:
        """Return rows with their ids and versions for the outside as further columns."""
        ids, versions = self.columns(rows[SEGMENT].to_numpy(), rows[OFFSET].to_numpy())
        for column, values in zip(OUTSIDE_FIELDS, (ids, versions), strict=True):
            rows = rows.append_column(column, pa.array(values))
        return rows

    def columns(
        self, segment: npt.NDArray[np.int64], offset: npt.NDArray[np.int32]
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return the ids of rows for the outside, and the versions that made them visible.

        FormatError for a row whose segment is unknown or not visible, or does not reach so far.
        """
        if not len(segment):
            return np.empty(0, np.int64), np.empty(0, np.int64)
        begins = np.concatenate([[0], 1 + np.flatnonzero(segment[1:] != segment[:-1])])
        if len(begins) * _RUN_ROWS > len(segment):
            positions = self._positions(segment)
            self._check_reach(positions, offset.view(np.uint32))
            return self.bases[positions] + offset, self.versions[positions]
        # Of rows that were ingested together: to look up each of them takes five times as long
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
        """Raise FormatError unless offsets are within their segments: others have the ids beyond.

        As unsigned numbers, offsets below 0 are greater than any segment has rows.
        """
        is_beyond = offset >= self.rows[positions]
        if is_beyond.any():
            first = int(np.argmax(is_beyond))
            row, position = int(offset[first].astype(np.int32)), positions[first]
            raise FormatError(
                f"a data file holds row {row:,} of segment {segment_name(self.segments[position])}, "
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
