"""Rows of business days, for tests of business snapshots."""

from collections.abc import Sequence

import pyarrow as pa

SCHEMA = pa.schema(
    [("user", pa.string()), ("at", pa.int64()), ("city", pa.string()), ("day", pa.string())]
)
Row = tuple[str, int, str, str]
FRIDAY, SATURDAY, SUNDAY = "2022-07-15", "2022-07-16", "2022-07-17"


def arrow(rows: Sequence[Row]) -> pa.Table:
    names = SCHEMA.names
    return pa.Table.from_pylist([dict(zip(names, row, strict=True)) for row in rows], SCHEMA)


STREAM: list[list[Row]] = [
    [("A", 1, "Beijing", FRIDAY), ("B", 1, "Xian", FRIDAY)],
    [("A", 2, "Wuhan", FRIDAY), ("A", 4, "Hangzhou", SATURDAY)],
    [("B", 3, "Wuhan", FRIDAY), ("B", 5, "Hangzhou", SATURDAY)],
]
