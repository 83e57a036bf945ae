"""Data files against what the metadata says of them (I10 to I12, I14, I33)."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from opal_lake.data.bounds import Bounds
from opal_lake.data.columns import field_ids, physical_schema, with_field_ids
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


@dataclass(slots=True)
class Extremes:
    """Least and greatest value, nulls and NaNs of a column, part by part."""

    nulls: int = 0
    has_nan: bool = False
    lows: list[Any] = field(default_factory=list)
    highs: list[Any] = field(default_factory=list)
    kind: pa.DataType | None = None

    def add(self, part: pa.Table, name: str) -> None:
        """A column that is younger than the file is null."""
        if not part.schema.get_all_field_indices(name):
            self.nulls += part.num_rows
            return
        column = part[name]
        self.nulls, self.kind = self.nulls + column.null_count, column.type
        if column.null_count == len(column):
            return
        self.has_nan |= pa.types.is_floating(column.type) and bool(
            pc.any(pc.is_nan(column)).as_py()
        )
        pair = pc.min_max(_comparable(column))
        self.lows = [_least([*self.lows, pair["min"].as_py()], min)]
        self.highs = [_least([*self.highs, pair["max"].as_py()], max)]

    def within(self, bounds: Bounds, rows: int) -> bool:
        if bounds.nulls != self.nulls:
            return False
        if not self.lows or self.nulls == rows:
            return True
        if self.has_nan and bounds.high is not None:
            return False
        comparable = _BOUND_AS.get(_kind_name(self.kind), lambda bound: bound)
        below = bounds.low is not None and self.lows[0] < comparable(
            bounds.low
        )  # a NaN is neither below nor above
        above = bounds.high is not None and self.highs[0] > comparable(bounds.high)
        return not (below or above)


def _least(values: list[Any], choose: Callable[..., Any]) -> Any:
    """Of the values that are numbers, if any is: a part may hold nothing but NaN."""
    return choose([value for value in values if value == value] or values)  # a NaN is not itself


@dataclass(slots=True, kw_only=True)
class FileCheck:
    """A data file as its parts pass by; `finish` says what is wrong with it.

    `segments` are those that the file should have rows of, as far as the table knows them. Of the columns, those that are there are looked
    at, and `bounded` says whose bounds should be.
    """

    file: DataFile
    segments: Mapping[int, Segment]
    spec: TableSpec
    bounded: tuple[Field, ...]
    rows: int = 0
    _schema: Findings | None = None
    _held: set[int | None] = field(default_factory=set)
    _ids: Bitmaps = field(default_factory=dict)
    _in_order: bool = True
    _beyond: int = 0
    _wrong_outside_ids: int = 0
    _nulls: Counter[str] = field(default_factory=Counter)
    _extremes: dict[int, Extremes] = field(default_factory=dict)

    def add(self, part: pa.Table) -> bool:
        """Whether the rows are fit to be put to the rule, as far as they and those before can tell."""
        if self._schema is None:
            self._schema = Findings()
            _check_schema(part, self.file, self.spec, self._schema)
        start, self.rows = self.rows, self.rows + part.num_rows
        if self._schema.unique:
            return False
        self._nulls.update({name: part[name].null_count for name in self._whole_columns(part)})
        self._held.update(part[SEGMENT].unique().to_pylist())
        for column in self.bounded:
            self._extremes.setdefault(column.id, Extremes()).add(part, column.physical)
        if not self._nulls[SEGMENT] + self._nulls[OFFSET]:
            self._look_at_ids(part[SEGMENT].to_numpy(), part[OFFSET].to_numpy(), start)
            self._look_at_outside_ids(part)
        return not self._nulls.total()

    def _whole_columns(self, part: pa.Table) -> list[str]:
        """Those in which there is no null."""
        names = [
            SEGMENT,
            OFFSET,
            *(column.physical for _, column in self.spec.required),
        ]
        return [*names, DELETED] if DELETED in part.column_names else names

    def _look_at_ids(
        self, segment: npt.NDArray[np.int64], offset: npt.NDArray[np.int32], start: int
    ) -> None:
        if is_ingested(self.file):
            self._in_order &= np.array_equal(offset, np.arange(start, start + len(offset)))
            return
        numbers, position = np.unique(segment, return_inverse=True)
        limits = np.array(
            [
                self.segments[number].rows if number in self.segments else 0
                for number in numbers.tolist()
            ],
            np.int64,
        )
        self._beyond += int(((offset < 0) | (offset >= limits[position])).sum())
        add_events(self._ids, Events(segment=segment, offset=offset, until=segment))

    def _look_at_outside_ids(self, part: pa.Table) -> None:
        """Count the rows that are said to be known otherwise than by their segment and offset."""
        if OUTSIDE_ID not in part.column_names or not self.segments.keys() >= self._held:
            return  # of segments that the table does not have others tell
        if self._beyond:
            return  # and of rows that their segments do not have
        segment, offset = part[SEGMENT].to_numpy(), part[OFFSET].to_numpy()
        is_wrong = np.zeros(part.num_rows, np.bool_)
        bases = RowBases.of(self.segments)
        for name, expected in zip(
            (OUTSIDE_ID, UPDATED_AT), bases.columns(segment, offset), strict=True
        ):
            is_equal = pc.equal(part[name], pa.array(expected))
            is_wrong |= ~pc.fill_null(is_equal, False).to_numpy()
        self._wrong_outside_ids += int(is_wrong.sum())

    def finish(self, findings: Findings) -> bool:
        """Whether all rows were fit."""
        path = self.file.path
        message = f"it holds {self.rows} rows, its commit says {self.file.rows}; restore the file from a backup"
        sound = findings.expect(self.rows == self.file.rows, "I11", path, message)
        for finding in self._schema.unique if self._schema else ():
            findings.add(finding.invariant, finding.path, finding.message)
            sound = False
        if not sound:
            return False
        sound = self._check_row_ids(findings)
        for role, column in self.spec.required:
            nulls = self._nulls[column.physical]
            sound &= findings.expect(
                not nulls,
                "I14",
                path,
                f"{role} column {column.name!r} is null in {nulls} rows; ingest them anew",
            )
        nulls = self._nulls[DELETED]
        sound &= findings.expect(
            not nulls, "I14", path, f"{DELETED} is null in {nulls} rows; ingest them anew"
        )
        for column in self.bounded:
            if column.id in self.file.bounds and column.id in self._extremes:
                self._check_bounds(column, findings)
        return sound

    def _check_row_ids(self, findings: Findings) -> bool:
        """Rows of the segments that the commit says, each within its segment; an ingested file holds its one segment whole, in order."""
        file = self.file
        nulls = self._nulls[SEGMENT] + self._nulls[OFFSET]
        if not findings.expect(
            not nulls,
            "I11",
            file.path,
            f"{nulls} of its row ids are null; restore the file from a backup",
        ):
            return False
        held = sorted(number for number in self._held if number is not None)
        names = [segment_name(number) for number in file.segments]
        message = f"its rows are of segments {sorted(map(segment_name, held))}, its commit says {names}; restore the file from a backup"
        known = [self.segments[number] for number in file.segments if number in self.segments]
        sound = findings.expect(
            held == sorted(file.segments) and len(known) == len(held), "I11", file.path, message
        )
        for segment in known:
            text = f"it is in group {file.group}, its segment {segment_name(segment.id)} in {segment.group}; restore the log from a backup"
            sound &= findings.expect(segment.group == file.group, "I11", file.path, text)
        if not is_ingested(file):
            return sound and self._check_offsets(findings)
        message = (
            f"its offsets do not count from 0 to {self.rows - 1}; restore the file from a backup"
        )
        sound &= findings.expect(self._in_order, "I11", file.path, message)
        for segment in known:
            text = f"segment {segment_name(segment.id)} has {segment.rows} rows, the file {file.rows}; restore the log from a backup"
            sound &= findings.expect(segment.rows == file.rows, "I11", file.path, text)
        return sound

    def _check_offsets(self, findings: Findings) -> bool:
        message = f"{self._beyond} of its rows are beyond the end of their segments; restore the file from a backup"
        sound = findings.expect(not self._beyond, "I11", self.file.path, message)
        wrong = self._wrong_outside_ids
        message = f"{OUTSIDE_ID} or {UPDATED_AT} of {wrong} of its rows is not what the table says of them; restore the file from a backup"
        sound &= findings.expect(not wrong, "I33", self.file.path, message)
        twice = self.rows - sum(map(len, self._ids.values()))
        message = f"{twice} of its rows are there twice; restore the file from a backup"
        return findings.expect(not twice, "I11", self.file.path, message) and sound

    def _check_bounds(self, column: Field, findings: Findings) -> None:
        bounds = self.file.bounds[column.id]
        message = f"bounds [{bounds.low!r}, {bounds.high!r}] with {bounds.nulls} nulls do not hold for column {column.name!r}"
        holds = self._extremes[column.id].within(bounds, self.rows)
        findings.expect(
            holds,
            "I12",
            self.file.path,
            f"{message}; a read with a filter may miss rows: ingest them anew",
        )


def _check_schema(rows: pa.Table, file: DataFile, spec: TableSpec, findings: Findings) -> None:
    """Report columns that are missing, or that are not of the table's types and field ids.

    Ids of rows, keys, delta and ties must be there. Others may be younger than the file.
    """
    expected = with_field_ids(pa.schema([*physical_schema(spec), *OUTSIDE_FIELDS]), spec)
    outside = {OUTSIDE_ID, UPDATED_AT} if has_outside_ids(file, spec) else set()
    needed = {
        SEGMENT,
        OFFSET,
        *(column.physical for _, column in spec.required),
        *(column.physical for column in spec.tie_break),
    } | ({DELETED} if spec.deletes else set())
    needed |= outside
    strange = sorted({OUTSIDE_ID, UPDATED_AT} & {*rows.column_names} - outside)
    findings.expect(
        not strange,
        "I10",
        file.path,
        f"only rewritten files have a column {', '.join(strange)}; restore the file from a backup",
    )
    missing = sorted(needed - set(rows.column_names))
    findings.expect(
        not missing,
        "I10",
        file.path,
        f"it has no column {', '.join(missing)}; restore the file from a backup",
    )
    for name in rows.column_names:
        stored, known = rows.schema.field(name), expected.field(name)
        is_of_type = findings.expect(
            stored.type == known.type,
            "I10",
            file.path,
            f"column {name} is {stored.type}, should be {known.type}; restore the file from a backup",
        )
        if is_of_type:
            _check_field_ids(stored, known, file, spec, findings)


def _check_field_ids(
    stored: pa.Field, known: pa.Field, file: DataFile, spec: TableSpec, findings: Findings
) -> None:
    ids, expected = (field_ids(column, spec.file_format) for column in (stored, known))
    message = (
        f"column {stored.name} has the field ids {', '.join(map(str, ids))}, should have "
        f"{', '.join(map(str, expected))}; restore the file from a backup"
    )
    findings.expect(ids == expected, "I10", file.path, message)


def has_outside_ids(file: DataFile, spec: TableSpec) -> bool:
    """Whether the rows of a file say how the outside knows them."""
    return spec.file_format == "parquet" and not is_ingested(file)


def bounded_columns(spec: TableSpec) -> tuple[Field, ...]:
    """Those that may have bounds."""
    return tuple(column for column in spec.schema.fields if isinstance(column.type, Atomic))


def _comparable(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Days, microseconds and bytes as they are compared."""
    if pa.types.is_timestamp(column.type):
        return column.cast(pa.int64())
    if pa.types.is_date(column.type):
        return column.cast(pa.int32())
    return column.cast(pa.binary()) if pa.types.is_string(column.type) else column


def _kind_name(kind: pa.DataType) -> str:
    return "decimal" if pa.types.is_decimal(kind) else str(kind)


_BOUND_AS: dict[str, Callable[[Any], Any]] = {
    "decimal": Decimal,
    "binary": bytes.fromhex,
    "string": str.encode,
}
