"""Data files against their metadata (I10 to I12, I14, I33)."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from opal_lake.arrays import Int32Array, Int64Array
from opal_lake.data.bounds import Bounds, bounds_now
from opal_lake.data.columns import (
    conformed,
    fault_of_stored,
    field_ids,
    physical_schema,
    with_field_ids,
)
from opal_lake.data.outside_ids import OUTSIDE_FIELDS, RowBases
from opal_lake.data.segment import DataFile, Segment, is_ingested
from opal_lake.definition.schema import (
    DELETED,
    OFFSET,
    OUTSIDE_ID,
    SEGMENT,
    UPDATED_AT,
    Atomic,
    Field,
)
from opal_lake.definition.table_spec import TableSpec
from opal_lake.events.bitmap import Bitmaps, add_events
from opal_lake.events.segment_log import Events
from opal_lake.ids import segment_name
from opal_lake.inspect.check.finding import Findings

_RESTORE = "restore the file from a backup"


@dataclass(slots=True)
class Extremes:
    """The least and greatest value of a column, its nulls and NaNs, by parts.

    `lows` and `highs` are empty, or hold one value.
    """

    nulls: int = 0
    has_nan: bool = False
    lows: list[Any] = field(default_factory=list)
    highs: list[Any] = field(default_factory=list)
    kind: pa.DataType | None = None

    def add(self, part: pa.Table, name: str) -> None:
        """Add a part of the rows; a column that is younger than the file is null."""
        if not part.schema.get_all_field_indices(name):
            self.nulls += part.num_rows
            return
        column = part[name]
        self.nulls += column.null_count
        self.kind = column.type
        if column.null_count == len(column):
            return
        if pa.types.is_floating(column.type):
            self.has_nan |= bool(pc.any(pc.is_nan(column)).as_py())
        pair = pc.min_max(_comparable(column))
        self.lows = [_extreme([*self.lows, pair["min"].as_py()], min)]
        self.highs = [_extreme([*self.highs, pair["max"].as_py()], max)]

    def within(self, bounds: Bounds) -> bool:
        """Return whether the values are within the bounds that a file gives their column."""
        if bounds.nulls != self.nulls:
            return False
        if not self.lows:
            return True  # all values are null
        # A column with a NaN has no upper bound, since Spark orders NaN after all other values
        if self.has_nan and bounds.high is not None:
            return False
        decode_bound = _BOUND_AS.get(_kind_name(self.kind), lambda bound: bound)
        # A NaN is neither below nor above a bound
        is_below = bounds.low is not None and self.lows[0] < decode_bound(bounds.low)
        is_above = bounds.high is not None and self.highs[0] > decode_bound(bounds.high)
        return not is_below and not is_above


def _extreme(values: list[Any], choose: Callable[..., Any]) -> Any:
    """Return the least or greatest value, a NaN only if all values are NaN."""
    # A NaN does not equal itself
    numbers = [value for value in values if value == value]
    return choose(numbers) if numbers else choose(values)


@dataclass(slots=True, kw_only=True)
class FileCheck:
    """The check of a data file, part by part; `finish` reports its faults.

    `segments` are the segments of the file by id, as far as the table has them. The columns
    `bounded` are also checked against their bounds.
    """

    file: DataFile
    segments: Mapping[int, Segment]
    spec: TableSpec
    bounded: tuple[Field, ...]
    rows: int = 0
    _schema: Findings | None = None
    _segments_seen: set[int | None] = field(default_factory=set)
    _ids: Bitmaps = field(default_factory=dict)
    _in_order: bool = True
    _beyond: int = 0
    _wrong_outside_ids: int = 0
    _nulls: Counter[str] = field(default_factory=Counter)
    _extremes: dict[int, Extremes] = field(default_factory=dict)

    def add(self, part: pa.Table) -> bool:
        """Add a part as it is stored; return whether the rule can be applied to its rows."""
        if self._schema is None:
            self._schema = Findings()
            _check_schema(part, self.file, self.spec, self._schema)
        start = self.rows
        self.rows += part.num_rows
        if self._schema.unique:
            return False
        part = conformed(part, self.spec)
        # A column may have two roles, and is counted once
        for name in dict.fromkeys(self._columns_without_nulls(part)):
            self._nulls[name] += part[name].null_count
        self._segments_seen.update(part[SEGMENT].unique().to_pylist())
        for column in self.bounded:
            self._extremes.setdefault(column.id, Extremes()).add(part, column.physical)
        has_ids = self._nulls[SEGMENT] + self._nulls[OFFSET] == 0
        if has_ids:
            self._check_ids(part[SEGMENT].to_numpy(), part[OFFSET].to_numpy(), start)
            self._check_outside_ids(part)
        return not self._nulls.total()

    def _columns_without_nulls(self, part: pa.Table) -> list[str]:
        """Return the names of the columns that may not be null."""
        names = [SEGMENT, OFFSET, *(column.physical for _, column in self.spec.required)]
        if DELETED in part.column_names:
            names.append(DELETED)
        return names

    def _check_ids(self, segment: Int64Array, offset: Int32Array, start: int) -> None:
        if is_ingested(self.file):
            # An ingested file has one segment, whole and in order
            expected = np.arange(start, start + len(offset))
            self._in_order &= np.array_equal(offset, expected)
            return
        numbers, position = np.unique(segment, return_inverse=True)
        limits = np.array([self._rows_of(number) for number in numbers.tolist()], np.int64)
        self._beyond += int(((offset < 0) | (offset >= limits[position])).sum())
        add_events(self._ids, Events(segment=segment, offset=offset, until=segment))

    def _rows_of(self, number: int) -> int:
        segment = self.segments.get(number)
        return 0 if segment is None else segment.rows

    def _check_outside_ids(self, part: pa.Table) -> None:
        """Count the rows whose outside id does not follow from segment and offset."""
        if OUTSIDE_ID not in part.column_names:
            return
        if self._beyond or not self.segments.keys() >= self._segments_seen:
            return  # rows and segments that do not exist are reported as such
        segment, offset = part[SEGMENT].to_numpy(), part[OFFSET].to_numpy()
        is_wrong = np.zeros(part.num_rows, np.bool_)
        expected_columns = RowBases.of(self.segments).columns(segment, offset)
        for name, expected in zip((OUTSIDE_ID, UPDATED_AT), expected_columns, strict=True):
            is_equal = pc.equal(part[name], pa.array(expected))
            is_wrong |= ~pc.fill_null(is_equal, False).to_numpy()
        self._wrong_outside_ids += int(is_wrong.sum())

    def finish(self, findings: Findings) -> bool:
        """Report all faults; return whether the rule can be applied to all rows."""
        path = self.file.path
        message = f"it holds {self.rows} rows, its commit says {self.file.rows}; {_RESTORE}"
        is_sound = findings.expect(self.rows == self.file.rows, "I11", path, message)
        if self._schema is not None:
            for finding in self._schema.unique:
                findings.add(finding.invariant, finding.path, finding.message)
                is_sound = False
        if not is_sound:
            return False
        is_sound = self._check_row_ids(findings)
        for role, column in self.spec.required:
            nulls = self._nulls[column.physical]
            message = f"{role} column {column.name!r} is null in {nulls} rows; ingest them again"
            is_sound &= findings.expect(not nulls, "I14", path, message)
        nulls = self._nulls[DELETED]
        message = f"{DELETED} is null in {nulls} rows; ingest them again"
        is_sound &= findings.expect(not nulls, "I14", path, message)
        for column in self.bounded:
            if column.id in self.file.bounds and column.id in self._extremes:
                self._check_bounds(column, findings)
        return is_sound

    def _check_row_ids(self, findings: Findings) -> bool:
        """Check that the rows are of the commit's segments, and within these segments.

        An ingested file holds one segment, whole and in order.
        """
        file = self.file
        nulls = self._nulls[SEGMENT] + self._nulls[OFFSET]
        message = f"{nulls} of its row ids are null; {_RESTORE}"
        if not findings.expect(not nulls, "I11", file.path, message):
            return False
        seen = sorted(number for number in self._segments_seen if number is not None)
        known = [self.segments[number] for number in file.segments if number in self.segments]
        recorded = [segment_name(number) for number in file.segments]
        message = (
            f"its rows are of segments {sorted(map(segment_name, seen))}, its commit says "
            f"{recorded}; {_RESTORE}"
        )
        has_right_segments = seen == sorted(file.segments) and len(known) == len(seen)
        is_sound = findings.expect(has_right_segments, "I11", file.path, message)
        for segment in known:
            message = (
                f"it is in group {file.group}, its segment {segment_name(segment.id)} in "
                f"{segment.group}; restore the log from a backup"
            )
            is_sound &= findings.expect(segment.group == file.group, "I11", file.path, message)
        if not is_ingested(file):
            return is_sound and self._check_offsets(findings)
        message = f"its offsets do not count from 0 to {self.rows - 1}; {_RESTORE}"
        is_sound &= findings.expect(self._in_order, "I11", file.path, message)
        for segment in known:
            message = (
                f"segment {segment_name(segment.id)} has {segment.rows} rows, the file "
                f"{file.rows}; restore the log from a backup"
            )
            is_sound &= findings.expect(segment.rows == file.rows, "I11", file.path, message)
        return is_sound

    def _check_offsets(self, findings: Findings) -> bool:
        path = self.file.path
        message = f"{self._beyond} of its rows are beyond the end of their segments; {_RESTORE}"
        is_sound = findings.expect(not self._beyond, "I11", path, message)
        wrong = self._wrong_outside_ids
        message = (
            f"{OUTSIDE_ID} or {UPDATED_AT} of {wrong} of its rows is not the value that the table "
            f"gives these rows; {_RESTORE}"
        )
        is_sound &= findings.expect(not wrong, "I33", path, message)
        repeated = self.rows - sum(map(len, self._ids.values()))
        message = f"{repeated} of its rows repeat another row; {_RESTORE}"
        return findings.expect(not repeated, "I11", path, message) and is_sound

    def _check_bounds(self, column: Field, findings: Findings) -> None:
        bounds = bounds_now(self.file.bounds[column.id], column)
        message = (
            f"bounds [{bounds.low!r}, {bounds.high!r}] with {bounds.nulls} nulls do not hold for "
            f"column {column.name!r}; a read with a filter may miss rows: ingest them again"
        )
        is_within = self._extremes[column.id].within(bounds)
        findings.expect(is_within, "I12", self.file.path, message)


def _check_schema(rows: pa.Table, file: DataFile, spec: TableSpec, findings: Findings) -> None:
    """Report columns that are missing, or have another type or field id.

    Row ids, keys, delta and tie-breaks must exist. Other columns may be younger than the file, the
    mark of deletes among them: a statement gives it to a table without a delete condition.
    """
    expected = with_field_ids(pa.schema([*physical_schema(spec), *OUTSIDE_FIELDS]), spec)
    outside = {OUTSIDE_ID, UPDATED_AT} if has_outside_ids(file, spec) else set()
    needed = {
        SEGMENT,
        OFFSET,
        *(column.physical for _, column in spec.required),
        *(column.physical for column in spec.tie_break),
        *outside,
    }
    not_allowed = {OUTSIDE_ID, UPDATED_AT} - outside
    strange = sorted(not_allowed & {*rows.column_names})
    message = f"only rewritten files have a column {', '.join(strange)}; {_RESTORE}"
    findings.expect(not strange, "I10", file.path, message)
    missing = sorted(needed - set(rows.column_names))
    message = f"it has no column {', '.join(missing)}; {_RESTORE}"
    findings.expect(not missing, "I10", file.path, message)
    fields = {field.physical: field for field in spec.schema.fields}
    for name in rows.column_names:
        stored = rows.schema.field(name)
        if spec.schema.created_id is not None and name in fields:
            fault = fault_of_stored(stored, fields[name], spec.file_format)
        else:
            fault = _fault_of(stored, expected.field(name), spec)
        findings.expect(fault is None, "I10", file.path, f"column {name} {fault}; {_RESTORE}")


def _fault_of(stored: pa.Field, known: pa.Field, spec: TableSpec) -> str | None:
    """Return how a column differs from the one that a file should have, or None."""
    if stored.type != known.type:
        return f"is {stored.type}, should be {known.type}"
    ids = field_ids(stored, spec.file_format)
    expected = field_ids(known, spec.file_format)
    if ids == expected:
        return None
    return (
        f"has the field ids {', '.join(map(str, ids))}, should have {', '.join(map(str, expected))}"
    )


def has_outside_ids(file: DataFile, spec: TableSpec) -> bool:
    """Return whether the rows of a file have outside ids."""
    return spec.file_format == "parquet" and not is_ingested(file)


def bounded_columns(spec: TableSpec) -> tuple[Field, ...]:
    """Return the columns that may have bounds."""
    return tuple(column for column in spec.schema.fields if isinstance(column.type, Atomic))


def _comparable(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return a column as bounds are compared: days, microseconds, bytes."""
    if pa.types.is_timestamp(column.type):
        return column.cast(pa.int64())
    if pa.types.is_date(column.type):
        return column.cast(pa.int32())
    if pa.types.is_string(column.type):
        return column.cast(pa.binary())
    return column


def _kind_name(kind: pa.DataType) -> str:
    return "decimal" if pa.types.is_decimal(kind) else str(kind)


_BOUND_AS: dict[str, Callable[[Any], Any]] = {
    "decimal": Decimal,
    "binary": bytes.fromhex,
    "string": str.encode,
}
