"""Rows by partition: a file holds the rows of one combination of partition values."""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa

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
    codes = np.zeros(rows.num_rows, np.int64)
    for column in spec.partition_by:
        values = rows[column.name].combine_chunks()
        # A null is a partition value like any other
        coded = values.dictionary_encode(null_encoding="encode")
        value_codes = np.asarray(coded.indices.to_numpy(), np.int64)
        codes = codes * (len(coded.dictionary) + 1) + value_codes
        # Numbered again from 0: the product of many columns must not overflow
        _, codes = np.unique(codes, return_inverse=True)
    return codes


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
