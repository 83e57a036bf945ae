"""A read of some rows opens as few files as have them."""

from pathlib import Path

import pyarrow as pa
import pytest

from opal_lake import Table
from opal_lake.engine.in_process import InProcess
from opal_lake.errors import OpalError
from opal_lake.operations.read import Read

ROWS, ROWS_A_FILE = 3_000, 10
SCHEMA = pa.schema([("id", pa.int64()), ("at", pa.int64())])


@pytest.fixture
def table(tmp_path: Path) -> "Table[pa.Table]":
    table = Table.create(
        str(tmp_path / "t"),
        SCHEMA,
        keys=["id"],
        delta="at",
        properties={"segment_rows": ROWS_A_FILE},
    )
    rows = pa.table([[*range(ROWS)], [1] * ROWS], schema=SCHEMA)
    table.ingest(rows, metadata="inline")
    return table


def test_a_limited_read_leaves_later_files_alone(table: "Table[pa.Table]", tmp_path: Path) -> None:
    expected = table.read(columns=["id"])
    files = sorted(file["path"] for file in table.files())
    assert len(files) == ROWS // ROWS_A_FILE
    (tmp_path / "t" / files[-1]).unlink()
    rows = InProcess().rows(Read(columns=["id"]).view(table), limit=25)
    assert rows.equals(expected.slice(0, 25))
    with pytest.raises(OpalError):
        table.read()


@pytest.mark.parametrize("limit, expected", [(0, 0), (7, 7), (ROWS, ROWS), (ROWS + 1, ROWS)])
def test_a_limit_is_kept(table: "Table[pa.Table]", limit: int, expected: int) -> None:
    assert InProcess().rows(Read().view(table), limit=limit).num_rows == expected
    visible = InProcess().rows(Read(where="id >= 2990").view(table), limit=limit)
    assert visible.num_rows == min(limit, 10)
