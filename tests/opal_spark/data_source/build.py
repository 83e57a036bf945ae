"""Tables of cities, whose rows streams read, and the changes that they must return."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow as pa

from opal_lake.definition.table_spec import TableLayout
from opal_lake.table import Table

Row = tuple[int, int, str | None]  # id, at, city; without a city the row deletes
SCHEMA = pa.schema([("id", pa.int64()), ("at", pa.int64()), ("city", pa.string())])


def new_table(path: Path, file_format: str = "parquet", **properties: int) -> Table:
    layout = TableLayout(
        keys=["id"],
        delta="at",
        deletes="city IS NULL",
        file_format=file_format,
        properties=properties,
    )
    return Table.create(str(path), SCHEMA, **asdict(layout))


def upsert(table: Table, *rows: Row, metadata: str = "inline") -> None:
    table.ingest(
        pa.table([*map(list, zip(*rows, strict=True))], schema=SCHEMA),
        [city is None for _, _, city in rows],
        metadata=metadata,
    )


def plain_rows(rows: Sequence[dict[str, Any]]) -> list[tuple[object, ...]]:
    return sorted(
        (row["_commit_version"], row["id"], row["_change_type"], row["city"]) for row in rows
    )


def expected(table: Table, start: int, **options: Any) -> list[tuple[object, ...]]:
    return plain_rows(table.changes(start, **options).to_pylist())
