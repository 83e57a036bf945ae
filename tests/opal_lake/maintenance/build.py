"""Tables of points, for tests of Z-order, and helpers of tests of rebuilds."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from opal_lake.data.data_file import decode_file
from opal_lake.data.segment import DataFile
from opal_lake.data.z_value import z_fields
from opal_lake.definition.table_spec import TableLayout, plan_spec
from opal_lake.key_store.entries import Entries
from opal_lake.log.snapshot import Snapshot
from opal_lake.result import JobResult
from opal_lake.rule.metagen import entries_of_rows
from opal_lake.storage import Storage, open_storage
from opal_lake.storage.verified import read_verified
from opal_lake.table import Table, create_on
from tests.kit.executors import Interrupted, nobody
from tests.opal_lake.clustering import zorder

SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("at", pa.int64()),
        ("x", pa.float64()),
        ("y", pa.float64()),
        ("day", pa.string()),
    ]
)
X, Y = 3, 4


def batch(first: int, count: int, at: int, days: int = 1) -> pa.Table:
    dice = np.random.default_rng(first + at)
    return pa.table(
        {
            "id": np.arange(first, first + count),
            "at": np.full(count, at),
            "x": dice.random(count),
            "y": dice.random(count),
            "day": [f"d{number % days}" for number in range(count)],
        },
        schema=SCHEMA,
    )


def make(
    name: str,
    *,
    file_format: str = "parquet",
    partition_by: tuple[str, ...] = (),
    **properties: int | str,
) -> Table:
    layout = TableLayout(
        keys=["id"],
        delta="at",
        file_format=file_format,
        partition_by=partition_by,
        properties=properties,
    )
    return create_on(open_storage(f"memory://{name}"), plan_spec(SCHEMA, layout))


def order(
    table: Table, *names: str, meanwhile: Callable[[], object] = nobody, **options: Any
) -> JobResult:
    fields = z_fields(table.snapshot_at().spec, names or ("x", "y"))
    interrupted = replace(table, executor=Interrupted(after=meanwhile))
    return zorder(interrupted, fields, **{"target_bytes": 20_000, **options})


def lose(storage: Storage, table: Table) -> None:
    """Delete all key-store runs of a table."""
    storage.delete([*table.snapshot_at().runs])


def entries_of(file: DataFile, base: Snapshot) -> Entries:
    return entries_of_rows(
        decode_file(read_verified(base.storage, file), base.spec, None, file.path, rows=file.rows),
        base.spec,
    )
