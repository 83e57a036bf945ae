"""Rows by the folders of their files.

A file holds the rows of one combination of partition values.
"""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from opal_lake.data.shown_values import values_of
from opal_lake.definition.table_spec import TableSpec


def split_by_partition(rows: pa.Table, spec: TableSpec) -> Iterator[pa.Table]:
    """Yield a table for each combination of partition values, as they first appear.

    No rows yield nothing.
    """
    if not rows.num_rows:
        return
    if not spec.partition_by:
        yield rows
        return
    for places in _places_by_code(partition_codes(rows, spec)):
        yield rows.take(pa.array(places))


def partition_codes(rows: pa.Table, spec: TableSpec) -> npt.NDArray[np.int64]:
    """Return a number for each row; rows of one partition have the same number."""
    codes = np.zeros(rows.num_rows, np.int64)
    for column in spec.partition_by:
        values = rows[column.name].combine_chunks()
        # A null is a partition value like any other
        coded = values.dictionary_encode(null_encoding="encode")
        value_codes = np.asarray(coded.indices.to_numpy(), np.int64)
        codes = codes * (len(coded.dictionary) + 1) + value_codes
        # Dense again: the product of many columns must not overflow
        codes = np.unique(codes, return_inverse=True)[1]
    return codes


def partition_text(column: pa.ChunkedArray) -> str | None:
    """Return the value that all rows of a partition share, as in its folder's name."""
    [value] = values_of(column.slice(0, 1))
    if value is None:
        return None
    if isinstance(value, bytes):
        return value.hex()
    return str(value)


def _places_by_code(codes: npt.NDArray[np.int64]) -> list[npt.NDArray[np.intp]]:
    order = np.argsort(codes, kind="stable")
    ends = np.flatnonzero(np.diff(codes[order])) + 1
    return sorted(np.split(order, ends), key=lambda places: int(places[0]))
