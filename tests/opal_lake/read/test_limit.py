"""A read of some rows opens as few files as have them."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
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
def test_limited_read_has_at_most_the_limit_of_rows(
    table: "Table[pa.Table]", limit: int, expected: int
) -> None:
    assert InProcess().rows(Read().view(table), limit=limit).num_rows == expected
    visible = InProcess().rows(Read(where="id >= 2990").view(table), limit=limit)
    assert visible.num_rows == min(limit, 10)


def test_a_limited_read_of_a_large_file_decodes_no_more_of_it_than_it_takes(
    tmp_path: Path,
) -> None:
    rows = 600_000
    table = Table.create(str(tmp_path / "t"), SCHEMA, keys=["id"], delta="at")
    values = np.random.default_rng(1).permutation(rows)
    table.ingest(pa.table([values, values], schema=SCHEMA), metadata="inline")
    replaced = pa.table([values[:3], [rows] * 3], schema=SCHEMA)
    table.ingest(replaced, metadata="inline")
    everything = table.read()
    read = InProcess().rows(Read().view(table), limit=2 * rows)
    assert read.equals(everything)
    as_of = InProcess().rows(Read(event_time=100, where="id > 50").view(table), limit=rows)
    assert as_of.equals(table.read(event_time=100, where="id > 50"))
    large = max((tmp_path / "t").rglob("*.parquet"), key=lambda path: path.stat().st_size)
    data = bytearray(large.read_bytes())
    middle = len(data) // 2
    data[middle : middle + 100] = bytes(100)
    large.write_bytes(data)
    limited = InProcess().rows(Read(where="at < 600000").view(table), limit=25)
    assert limited.equals(everything.filter(pc.less(everything["at"], rows)).slice(0, 25))
    with pytest.raises(OpalError):
        table.read()
