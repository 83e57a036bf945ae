"""Small files that stand for gigabytes of values.

Each is decoded in a process of its own whose peak of memory is measured.
"""

import pickle
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.orc as orc
import pyarrow.parquet as pq
import pytest

from opal_lake.data.data_file import FileEncoder, decode_file
from opal_lake.data.decoded_size import BOUND, LEAST_LIMIT_BYTES
from opal_lake.definition.schema import OFFSET, SEGMENT
from opal_lake.definition.table_spec import TableLayout, TableSpec, plan_spec
from opal_lake.errors import FormatError
from opal_lake.events.segment_log import Events, decode_events, encode_events

_CHILD = """
import pickle, sys
from opal_lake.data.data_file import decode_file, decode_parts
from opal_lake.errors import FormatError
path, spec, rows, as_parts = pickle.load(open(sys.argv[1], "rb"))
data = open(path, "rb").read()
try:
    if as_parts:
        for _ in decode_parts(data, spec, "x.bomb", rows=rows):
            pass
    else:
        decode_file(data, spec, None, "x.bomb", rows=rows)
    print("read")
except FormatError as error:
    print(error)
status = open("/proc/self/status").read()
print(int(status.partition("VmHWM:")[2].split()[0]) >> 10)
"""


def spec_of(values: pa.DataType, file_format: str = "parquet") -> TableSpec:
    schema = pa.schema([("k", pa.int64()), ("at", pa.int64()), ("v", values)])
    spec = plan_spec(schema, TableLayout(keys=["k"], delta="at"))
    return replace(spec, file_format=file_format)


def rows_of(values: pa.Array) -> pa.Table:
    count = np.arange(len(values))
    columns = {"k": count, "at": count * 0, "v": values, SEGMENT: count * 0}
    return pa.table(columns | {OFFSET: pa.array(count, pa.int32())})


def parquet(rows: pa.Table, **settings: Any) -> bytes:
    sink = pa.BufferOutputStream()
    steps = dict.fromkeys(("k", "at", SEGMENT, OFFSET), "DELTA_BINARY_PACKED")
    known: dict[str, Any] = {
        "compression": "zstd",
        "use_dictionary": ["v", "v.list.element"],
        "column_encoding": steps,
        "store_schema": False,
        "row_group_size": rows.num_rows,
        "max_rows_per_page": rows.num_rows,
        "write_statistics": False,
    }
    pq.write_table(rows, sink, **(known | settings))
    return bytes(sink.getvalue())


def one_text(count: int, length: int) -> pa.Array:
    places = pa.array(np.zeros(count, np.int32))
    return pa.DictionaryArray.from_arrays(places, pa.array(["x" * length]))


def long_list(count: int) -> pa.Array:
    return pa.ListArray.from_arrays(pa.array([0, count], pa.int32()), np.zeros(count, np.int64))


def decoded(data: bytes, spec: TableSpec, rows: int, folder: Path, *, parts: bool) -> list[str]:
    """Return a process's answer about a file, and its peak of memory in MB."""
    (folder / "bomb").write_bytes(data)
    (folder / "work").write_bytes(pickle.dumps((str(folder / "bomb"), spec, rows, parts)))
    words = [sys.executable, "-c", _CHILD, str(folder / "work")]
    child = subprocess.run(words, capture_output=True, text=True, check=True)
    return child.stdout.splitlines()


def text_bomb() -> tuple[bytes, TableSpec, int]:
    return parquet(rows_of(one_text(1_000_000, 2400))), spec_of(pa.string()), 1_000_000


def list_bomb() -> tuple[bytes, TableSpec, int]:
    return parquet(rows_of(long_list(40_000_000))), spec_of(pa.list_(pa.int64())), 1


def page_bomb() -> tuple[bytes, TableSpec, int]:
    text = pa.array(["\0" * 400_000_000])
    return parquet(rows_of(text), use_dictionary=False), spec_of(pa.string()), 1


# What it says, and the most MB that it may take, with some 150 for Python and its libraries
BOMBS: dict[str, tuple[Callable[[], tuple[bytes, TableSpec, int]], str, int]] = {
    "a text of many rows": (text_bomb, "take more than 268,435,456 bytes", 700),
    "a list of one value": (list_bomb, "takes 320,000,", 300),
    "a page of zeros": (page_bomb, "takes 400,000,", 300),
}


@pytest.mark.parametrize(
    "parts", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["whole", "in parts"]
)
@pytest.mark.parametrize("name", BOMBS)
def test_a_small_file_takes_no_gigabytes(name: str, parts: bool, tmp_path: Path) -> None:
    make, message, most_mb = BOMBS[name]
    data, spec, rows = make()
    assert len(data) < 60_000
    said, peak_mb = decoded(data, spec, rows, tmp_path, parts=parts)
    assert message in said
    assert "x.bomb cannot be read as parquet" in said
    assert int(peak_mb) < most_mb


def test_many_row_groups_of_one_text_are_bounded_together(tmp_path: Path) -> None:
    """Each of them is within the bound. They took 3,200 MB at once."""
    rows, spec = rows_of(one_text(1_600_000, 1200)), spec_of(pa.string())
    data = parquet(rows, row_group_size=200_000)
    assert len(data) < 6000
    said, peak_mb = decoded(data, spec, len(rows), tmp_path, parts=False)
    assert "take more than 268,435,456 bytes in memory" in said
    assert int(peak_mb) < 1100


def test_many_row_groups_of_zeros_are_bounded_together(tmp_path: Path) -> None:
    text = pa.array(["\0" * 100_000_000] * 6)
    data = parquet(rows_of(text), use_dictionary=False, row_group_size=1)
    assert len(data) < 120_000
    said, peak_mb = decoded(data, spec_of(pa.string()), 6, tmp_path, parts=False)
    assert "6 row groups take 600,0" in said
    assert int(peak_mb) < 300


@pytest.mark.parametrize("file_format", ["parquet", "orc"])
def test_a_file_of_other_rows_than_its_commit_says_is_not_decoded(file_format: str) -> None:
    many = 4_000_000
    rows = rows_of(pa.array(np.zeros(many, np.int64)))
    sink = pa.BufferOutputStream()
    if file_format == "orc":
        orc.write_table(rows, sink, compression="zstd")
    data = bytes(sink.getvalue()) if file_format == "orc" else parquet(rows)
    spec = spec_of(pa.int64(), file_format)
    del rows
    before = pa.total_allocated_bytes()
    for wrong in (10, many - 1, many + 1):
        with pytest.raises(FormatError, match=rf"x\.data: .*4,000,000 rows.* {wrong:,}"):
            decode_file(data, spec, ["k"], "x.data", rows=wrong)
    assert pa.total_allocated_bytes() - before < 1 << 20


def test_a_log_of_other_events_than_its_commit_says_is_not_decoded() -> None:
    offsets = np.arange(1000, dtype=np.int32)
    events = Events(segment=np.ones(1000, np.int64), offset=offsets, until=np.ones(1000, np.int64))
    data = encode_events(events)
    assert len(decode_events(data, "x.log", 1000)) == 1000
    with pytest.raises(FormatError, match=r"x\.log: .*1,000 rows, but its commit says 7"):
        decode_events(data, "x.log", 7)


@pytest.mark.parametrize(
    "settings",
    [
        {"compression": "brotli"},
        {"compression": "gzip"},
        {"data_page_version": "2.0"},
        {"use_dictionary": False, "column_encoding": {"v": "DELTA_BYTE_ARRAY"}},
    ],
    ids=str,
)
def test_a_file_is_stored_as_writers_store_it(settings: dict[str, Any]) -> None:
    data = parquet(rows_of(pa.array(["a"] * 10)), **settings)
    with pytest.raises(FormatError, match=r"x\.parquet cannot be read"):
        decode_file(data, spec_of(pa.string()), None, "x.parquet", rows=10)


def written(rows: pa.Table) -> tuple[Any, TableSpec]:
    spec = spec_of(pa.string())
    encoder = FileEncoder(spec=spec)
    encoder.add(rows)
    return encoder.finish(), spec


def test_a_file_of_equal_long_texts_can_be_read() -> None:
    """Writers cut row groups by their size in memory, so that readers trust them."""
    texts = pa.array([letter * 8000 for letter in "abc"])
    rows = rows_of(texts.take(pa.array(np.arange(20_000) % 3)))
    assert rows.nbytes > BOUND.average_bytes
    file, spec = written(rows)
    assert file.data.nbytes < 100_000
    back = decode_file(file.data, spec, ["k", "v"], "x.parquet", rows=20_000)
    assert back.equals(rows.select(["k", "v"]))


def test_no_row_group_is_larger_than_readers_believe() -> None:
    """Long values that follow each other are cut by their own length, not that of all."""
    short, long = ["a"] * 300_000, ["b" * 100_000] * 3000
    file, spec = written(rows_of(pa.array(short + long)))
    assert file.data.nbytes < 2 * LEAST_LIMIT_BYTES >> 10
    back = decode_file(file.data, spec, ["v"], "x.parquet", rows=303_000)
    assert back["v"][-1].as_py() == long[-1]
