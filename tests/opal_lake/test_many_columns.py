"""The work of a table grows as the number of its columns, not as its square.

Seconds differ from machine to machine, so the time of many columns is compared with the time of
few. Where each column is looked for among all, sixteen times the columns take 50 to 250 times.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest

from opal_lake.data.prune import And, Compare
from opal_lake.read.explain import explain
from opal_lake.read.read import file_filter
from opal_lake.table import Table
from tests.cpu_time import least_cpu_s

FEW, TIMES = 100, 16
MAX_TIMES = 2.5 * TIMES


@dataclass(frozen=True, kw_only=True)
class Wide:
    """A table of many columns, and one of its rows."""

    table: Table
    uri: str
    row: pa.Table


def _wide(path: Path, columns: int) -> Wide:
    names = ["id", "updated", *(f"column_{number}" for number in range(columns - 2))]
    row = pa.table([pa.array([1])] * columns, names=names)
    uri = str(path / f"of_{columns}")
    table = Table.create(uri, row.schema, keys=["id"], delta="updated")
    table.ingest(row, metadata="inline")
    return Wide(table=table, uri=uri, row=row)


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> tuple[Wide, Wide]:
    path = tmp_path_factory.mktemp("wide")
    return _wide(path, FEW), _wide(path, FEW * TIMES)


def _explain(wide: Wide) -> None:
    snapshot = wide.table.snapshot_at()
    parts = tuple(
        Compare(field_id=field.id, op="=", value=5) for field in snapshot.spec.schema.fields
    )
    explain(file_filter(snapshot, None, And(parts=parts)))


def _upsert_without_added_columns(wide: Wide) -> None:
    wide.table.add_columns({f"added_{name}": "long" for name in wide.row.column_names})
    wide.table.ingest(wide.row, metadata="inline")
    wide.table.read()


WORK: dict[str, Callable[[Wide], object]] = {
    "upsert": lambda wide: wide.table.ingest(wide.row, metadata="inline"),
    "read": lambda wide: wide.table.read(),
    "open": lambda wide: Table.open(wide.uri),
    "read_by_name": lambda wide: wide.table.read(columns=wide.row.column_names),
    "get": lambda wide: wide.table.get([{"id": 1}]),
    "changes": lambda wide: wide.table.changes(1),
    "changes_of_the_history": lambda wide: wide.table.changes(1, axis="event_time"),
    "history_view": lambda wide: wide.table.history_view(),
    "explain": _explain,
    "added_columns": _upsert_without_added_columns,
    "compact": lambda wide: wide.table.compact(target_mb=1),
}
QUICK = ("upsert", "read")
SLOW = [name for name in WORK if name not in QUICK]


@pytest.mark.parametrize(
    "name", [*QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)]
)
def test_work_grows_no_faster_than_the_columns(name: str, tables: tuple[Wide, Wide]) -> None:
    few, many = tables
    few_s = least_cpu_s(lambda: WORK[name](few))
    assert least_cpu_s(lambda: WORK[name](many), times=2) < MAX_TIMES * few_s
