"""Rows by partition: a file holds the rows of one combination of partition values."""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from opal_lake.data.columns import value_codes
from opal_lake.data.shown_values import values_of
from opal_lake.definition.table_spec import TableSpec


def split_by_partition(rows: pa.Table, spec: TableSpec) -> Iterator[pa.Table]:
    """Yield the rows of each partition, in the order of their first rows."""
    if not rows.num_rows:
        return
    if not spec.partition_by:
        yield rows
        return
    codes = partition_codes(rows, spec)
    for positions in _positions_by_code(codes):
        yield rows.take(pa.array(positions))


def partition_codes(rows: pa.Table, spec: TableSpec) -> npt.NDArray[np.int64]:
    """Return a number for each row; rows of one partition have the same number."""
    columns = [rows[column.name] for column in spec.partition_by]
    return value_codes(columns) if columns else np.zeros(rows.num_rows, np.int64)


def partition_text(column: pa.ChunkedArray) -> str | None:
    """Return the text of the value that all rows of a partition share; None for null."""
    [value] = values_of(column.slice(0, 1))
    if value is None:
        return None
    if isinstance(value, bytes):
        return value.hex()
    return str(value)


def _positions_by_code(codes: npt.NDArray[np.int64]) -> list[npt.NDArray[np.intp]]:
    """Return the positions of each code, in the order of their first positions."""
    order = np.argsort(codes, kind="stable")
    ends = np.flatnonzero(np.diff(codes[order])) + 1
    positions_of_codes = np.split(order, ends)
    return sorted(positions_of_codes, key=lambda positions: int(positions[0]))
