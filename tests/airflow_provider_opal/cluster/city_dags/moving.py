"""Batches of changes of `user_city`.

Users are added, move, move back in time, are repeated, lose their city and are deleted.
"""

import random
from collections import Counter
from typing import Any

import pyarrow as pa

from opal_lake.result import JobResult
from opal_lake.table import Table

SCHEMA = pa.schema(
    [("user_id", pa.int64()), ("moved_at", pa.int64()), ("city", pa.string()), ("op", pa.string())]
)
CITIES = ("Beijing", "Hangzhou", "Wuhan", "Xi'an", "Łódź", "", None)
USERS, BATCH = 60, 25


def batch(number: int, seed: int = 0) -> list[dict[str, Any]]:
    """Rows of one batch; every fifth one comes late."""
    drawn = random.Random(f"{seed}/{number}")
    return [
        {
            "user_id": drawn.randrange(USERS),
            "moved_at": 10 * number + drawn.choice([0, 1, 1, 2, -50]),
            "city": drawn.choice(CITIES),
            "op": drawn.choice("UUUD"),
        }
        for _ in range(drawn.randrange(1, BATCH))
    ]


def write(table: Table, rows: list[dict[str, Any]]) -> JobResult:
    """Write as a pipeline's ingest and MetaGen do."""
    table.ingest(pa.Table.from_pylist(rows, schema=SCHEMA), [row["op"] == "D" for row in rows])
    return table.metagen()


def counted(user_city: Table, version: int | None = None) -> dict[str, int]:
    """Return how many live in each city, from all rows."""
    return dict(
        Counter(
            row["city"] for row in user_city.read(version).to_pylist() if row["city"] is not None
        )
    )


def totals_of(city_population: Table, **view: Any) -> dict[str, int]:
    """Return how many live in each city, as the consumer says."""
    return {row["city"]: row["total"] for row in city_population.read(**view).to_pylist()}
