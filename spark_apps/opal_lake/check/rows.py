"""Data files against what the metadata says of them (I10 to I12, I14)."""

from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from opal_lake.bounds import Bounds
from opal_lake.check.finding import Findings
from opal_lake.columns import physical_schema
from opal_lake.ids import segment_name, segment_part
from opal_lake.schema import DELETED, OFFSET, SEGMENT, Atomic
from opal_lake.segment import DataFile, Segment
from opal_lake.table_spec import TableSpec


def check_rows(rows: pa.Table, file: DataFile, segments: Mapping[int, Segment], spec: TableSpec, findings: Findings) -> bool:
    """Whether the rows are fit to be put to the rule."""
    message = f"it holds {rows.num_rows} rows, its commit says {file.rows}; restore the file from a backup"
    sound = findings.expect(rows.num_rows == file.rows, "I11", file.path, message)
    sound &= _check_schema(rows, file, spec, findings)
    if not sound:
        return False
    sound = _check_row_ids(rows, file, segments, findings)
    for role, column in [*(("key", key) for key in spec.keys), ("delta", spec.delta)]:
        nulls = rows[column.physical].null_count
        sound &= findings.expect(not nulls, "I14", file.path, f"{role} column {column.name!r} is null in {nulls} rows; ingest them anew")
    if DELETED in rows.column_names:
        nulls = rows[DELETED].null_count
        findings.expect(not nulls, "I14", file.path, f"{DELETED} is null in {nulls} rows; ingest them anew")
    _check_bounds(rows, file, spec, findings)
    return sound


def _check_schema(rows: pa.Table, file: DataFile, spec: TableSpec, findings: Findings) -> bool:
    """Every column is the table's, of its physical type; ids, keys, delta and ties are there. Others may be younger than the file."""
    wanted = physical_schema(spec)
    needed = {SEGMENT, OFFSET, *(field.physical for field in (*spec.keys, spec.delta, *spec.tie_break))} | (
        {DELETED} if spec.deletes else set()
    )
    missing = sorted(needed - set(rows.column_names))
    sound = findings.expect(not missing, "I10", file.path, f"it has no column {', '.join(missing)}; restore the file from a backup")
    for name in rows.column_names:
        here, there = rows.schema.field(name).type, wanted.field(name).type
        sound &= findings.expect(
            here == there, "I10", file.path, f"column {name} is {here}, should be {there}; restore the file from a backup"
        )
    return sound


def _check_row_ids(rows: pa.Table, file: DataFile, segments: Mapping[int, Segment], findings: Findings) -> bool:
    """Rows of the segments that the commit says, each within its segment; an ingested file holds its one segment whole, in order."""
    known = [segments[number] for number in file.segments if number in segments]
    held, names = rows[SEGMENT].unique().to_pylist(), [segment_name(number) for number in file.segments]
    message = f"its rows are of segments {sorted(map(segment_name, held))}, its commit says {names}; restore the file from a backup"
    sound = findings.expect(sorted(held) == sorted(file.segments) and len(known) == len(held), "I11", file.path, message)
    for segment in known:
        message = f"it is in group {file.group}, its segment {segment_name(segment.id)} in {segment.group}; restore the log from a backup"
        sound &= findings.expect(segment.group == file.group, "I11", file.path, message)
    if not is_ingested(file):
        return sound and _check_offsets(rows, file, segments, findings)
    in_order = np.array_equal(rows[OFFSET].to_numpy(), np.arange(rows.num_rows))
    sound &= findings.expect(
        in_order, "I11", file.path, f"its offsets do not count from 0 to {rows.num_rows - 1}; restore the file from a backup"
    )
    for segment in known:
        message = f"segment {segment_name(segment.id)} has {segment.rows} rows, the file {file.rows}; restore the log from a backup"
        sound &= findings.expect(segment.rows == file.rows, "I11", file.path, message)
    return sound


def is_ingested(file: DataFile) -> bool:
    """As it was ingested: its name begins with the number of its one segment."""
    number = int(file.path.rpartition("/")[2].partition("-")[0])
    return len(file.segments) == 1 and segment_part(file.segments[0]) == number


def _check_offsets(rows: pa.Table, file: DataFile, segments: Mapping[int, Segment], findings: Findings) -> bool:
    numbers, place = np.unique(rows[SEGMENT].to_numpy(), return_inverse=True)
    limits = np.array([segments[int(number)].rows for number in numbers], np.int64)
    offsets = rows[OFFSET].to_numpy().astype(np.int64)
    outside = int(((offsets < 0) | (offsets >= limits[place])).sum())
    sound = findings.expect(not outside, "I11", file.path, f"{outside} of its rows are beyond the end of their segments; restore the file")
    twice = len(offsets) - len(np.unique(place.astype(np.int64) << 32 | offsets))
    return findings.expect(not twice, "I11", file.path, f"{twice} of its rows are there twice; restore the file from a backup") and sound


def _check_bounds(rows: pa.Table, file: DataFile, spec: TableSpec, findings: Findings) -> None:
    for field in spec.schema.fields:
        if field.id not in file.bounds or not isinstance(field.type, Atomic):
            continue
        bounds = file.bounds[field.id]
        column = rows[field.physical] if field.physical in rows.column_names else pa.chunked_array([pa.nulls(rows.num_rows)])
        message = f"bounds [{bounds.low!r}, {bounds.high!r}] with {bounds.nulls} nulls do not hold for column {field.name!r}"
        findings.expect(_holds(bounds, column), "I12", file.path, f"{message}; a read with a filter may miss rows: ingest them anew")


def _holds(bounds: Bounds, column: pa.ChunkedArray) -> bool:
    if bounds.nulls != column.null_count:
        return False
    if column.null_count == len(column):
        return True
    kind = column.type
    if pa.types.is_floating(kind) and pc.any(pc.is_nan(column)).as_py() and bounds.high is not None:
        return False
    pair = pc.min_max(_comparable(column))
    comparable = _BOUND_AS.get(_kind_name(kind), lambda bound: bound)
    low, high = pair["min"].as_py(), pair["max"].as_py()
    below = bounds.low is not None and low < comparable(bounds.low)  # a NaN is neither below nor above
    above = bounds.high is not None and high > comparable(bounds.high)
    return not (below or above)


def _comparable(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Days, microseconds and bytes as they are compared."""
    if pa.types.is_timestamp(column.type):
        return column.cast(pa.int64())
    if pa.types.is_date(column.type):
        return column.cast(pa.int32())
    return column.cast(pa.binary()) if pa.types.is_string(column.type) else column


def _kind_name(kind: pa.DataType) -> str:
    return "decimal" if pa.types.is_decimal(kind) else str(kind)


_BOUND_AS: dict[str, Callable[[Any], Any]] = {"decimal": Decimal, "binary": bytes.fromhex, "string": str.encode}
