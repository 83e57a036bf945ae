import gc
import io
import subprocess
import sys
import tempfile
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings

from opal_lake.data.columns import to_logical, to_physical
from opal_lake.data.data_file import (
    GROUP_ROWS,
    EncodedFile,
    FileEncoder,
    decode_file,
    encode_file,
    verify_footer,
)
from opal_lake.data.encodings import plan_encodings
from opal_lake.data.spool import room_errors, spool
from opal_lake.definition.schema import OFFSET, SEGMENT
from opal_lake.errors import FormatError, InvalidInputError, StorageError
from tests.opal_lake.shapes import every_type, spec_of, tables, with_row_ids

FORMATS = pytest.mark.parametrize("file_format", ["parquet", "orc"])


def encoded(table: pa.Table, file_format: str, **layout: Any) -> EncodedFile:
    spec = spec_of(table, file_format, **layout)
    return encode_file(to_physical(with_row_ids(table), spec), spec)


def plain_rows(rows: int) -> pa.Table:
    numbers = np.random.default_rng(0).integers(0, 1 << 60, rows)
    text = pa.array([f"user-{number:020d}" for number in numbers])
    few = pa.array(numbers % 100).cast(pa.string())
    return pa.table(
        {
            "k": text,
            "d": np.arange(rows) + 1_700_000_000_000,
            "wide": numbers,
            "few": few,
            "real": numbers / 7,
        }
    )


@FORMATS
@given(table=tables())
@settings(max_examples=150, deadline=None)
def test_decoded_rows_equal_the_encoded_ones(file_format: str, table: pa.Table) -> None:
    spec = spec_of(table, file_format)
    file = encoded(table, file_format)
    back = to_logical(decode_file(file.data, spec, None, "f", rows=file.rows), spec)
    assert back.to_pylist() == table.to_pylist()


@FORMATS
def test_every_type_is_stored_in_slices_and_chunks(file_format: str) -> None:
    table = every_type()
    spec = spec_of(table, file_format)
    for part in (
        table,
        table.slice(7, 20),
        pa.concat_tables([table.slice(20), table.slice(4, 9)]),
        table.slice(36),
    ):
        back = decode_file(encoded(part, file_format).data, spec, None, "f", rows=part.num_rows)
        assert to_logical(back, spec).to_pylist() == part.to_pylist()
        assert back[SEGMENT].to_pylist() == [7 << 32] * part.num_rows
        assert back[OFFSET].to_pylist() == list(range(part.num_rows))


@FORMATS
def test_same_rows_give_the_same_bytes(file_format: str) -> None:
    assert encoded(every_type(), file_format).data == encoded(every_type(), file_format).data


@FORMATS
def test_bytes_of_a_spool_equal_those_in_memory_and_outlive_the_encoder(file_format: str) -> None:
    table = plain_rows(GROUP_ROWS + 7)
    spec = spec_of(table, file_format)
    parts = [
        to_physical(with_row_ids(table), spec).slice(start, 100_000)
        for start in range(0, table.num_rows, 100_000)
    ]

    def finished(sink: pa.NativeFile) -> EncodedFile:
        encoder = FileEncoder(spec=spec, sink=sink)
        for part in parts:
            encoder.add(part)
        assert encoder.size > 1 << 20 or file_format == "orc"  # whose stripes are larger
        return encoder.finish()

    first, second = finished(spool()), finished(pa.BufferOutputStream())
    gc.collect()
    assert bytes(first.data) == bytes(second.data)
    assert replace(first, data=b"") == replace(second, data=b"")
    assert bytes(spool().getvalue()) == b""


_WIDE_FILES = """
import sys
import pyarrow as pa
from opal_lake.data.columns import to_physical
from opal_lake.data.data_file import encode_file
from tests.opal_lake.shapes import spec_of, with_row_ids

def status_mb(name):
    status = open("/proc/self/status").read()
    return int(status.partition(name)[2].split()[0]) >> 10

columns = {f"v{number}": [f"{number}"] for number in range(200)}
table = pa.table({"k": ["a"], "d": [1]} | columns)
spec = spec_of(table, sys.argv[1])
rows = to_physical(with_row_ids(table), spec)
before = status_mb("VmRSS:")
for _ in range(8):
    encode_file(rows, spec)
print(status_mb("VmHWM:") - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@FORMATS
def test_many_wide_files_take_no_more_memory_than_one(file_format: str) -> None:
    child = subprocess.run(
        [sys.executable, "-c", _WIDE_FILES, file_format], check=True, capture_output=True, text=True
    )
    assert int(child.stdout) < 400  # MB; without trimming, ORC takes 700


@FORMATS
@pytest.mark.parametrize("rows", [100, 200_000])  # written by the end, and before
def test_error_names_the_full_disk(
    file_format: str, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        tempfile,
        "TemporaryFile",
        lambda **_: Path("/dev/full").open("r+b", buffering=0),  # noqa: SIM115
    )
    table = plain_rows(rows)
    encoder = FileEncoder(spec=spec_of(table, file_format), sink=spool())

    def write() -> None:
        with room_errors():
            encoder.add(to_physical(with_row_ids(table), encoder.spec))
            encoder.finish()

    with pytest.raises(StorageError, match=r"no room in .*TMPDIR"):
        write()


def test_spool_is_on_a_disk_of_spark(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: list[str | None] = []
    real = tempfile.TemporaryFile
    monkeypatch.setattr(
        tempfile, "TemporaryFile", lambda **given: asked.append(given["dir"]) or real(**given)
    )
    for disks in (f"{tmp_path},/elsewhere", f"{tmp_path}/gone", ""):
        monkeypatch.setenv("SPARK_LOCAL_DIRS", disks)
        spool()
    assert asked == [str(tmp_path), tempfile.gettempdir(), tempfile.gettempdir()]


@FORMATS
def test_members_of_a_null_struct_do_not_shift_later_values(file_format: str) -> None:
    """The member of a null struct need not be null itself."""
    member = pa.StructArray.from_arrays(
        [pa.array([7, 1], pa.int64())], ["n"], mask=pa.array([True, False])
    )
    listed = pa.ListArray.from_arrays(pa.array([0, 1, 2], pa.int32()), pa.array([5, 6]))
    within = pa.StructArray.from_arrays([listed], ["l"], mask=pa.array([True, False]))
    outer = pa.StructArray.from_arrays([member, within], ["m", "w"])
    each, ends = ["k", "k"], pa.array([0, 1, 2], pa.int32())
    nested = {
        "s": outer,
        "l": pa.ListArray.from_arrays(ends, outer),
        "m": pa.MapArray.from_arrays(ends, pa.array(each), outer),
    }
    table = pa.table({"k": pa.array(each), "d": pa.array([1, 2]), **nested})
    rows = decode_file(
        encoded(table, file_format).data,
        spec_of(table, file_format),
        table.column_names,
        "f",
        rows=table.num_rows,
    )
    assert rows.to_pylist() == table.to_pylist()


@FORMATS
def test_columns_are_read_by_name_and_unknown_ones_are_left_out(file_format: str) -> None:
    table = plain_rows(10)
    rows = decode_file(
        encoded(table, file_format).data,
        spec_of(table, file_format),
        ["few", "younger", "k"],
        "f",
        rows=table.num_rows,
    )
    assert rows.column_names == ["few", "k"]
    assert rows["few"].to_pylist() == table["few"].to_pylist()


@FORMATS
def test_checksums_are_those_of_the_file_and_of_its_tail(file_format: str) -> None:
    file = encoded(plain_rows(1000), file_format)
    assert zlib.crc32(file.data) == file.crc32
    verify_footer(file.data[-file.footer_bytes :], file.footer_bytes, file.footer_crc32, "f")
    with pytest.raises(FormatError, match=r"the footer of data/f\.x has checksum"):
        verify_footer(bytes(file.footer_bytes), file.footer_bytes, file.footer_crc32, "data/f.x")
    with pytest.raises(FormatError, match=r"the footer of data/f\.x has \d+ bytes"):
        verify_footer(
            file.data[-file.footer_bytes + 1 :], file.footer_bytes, file.footer_crc32, "data/f.x"
        )


def test_parquet_tail_begins_where_the_last_page_ends() -> None:
    file = encoded(plain_rows(1000), "parquet")
    length = int.from_bytes(file.data[-8:-4], "little")
    assert file.footer_bytes == length + 8


def test_orc_tail_is_everything_after_the_stripes() -> None:
    pyorc = pytest.importorskip("pyorc")
    file = encoded(plain_rows(1000), "orc")
    stripe = pyorc.Reader(io.BytesIO(file.data)).read_stripe(0)
    assert len(file.data) - file.footer_bytes == stripe.bytes_offset + stripe.bytes_length


@FORMATS
def test_format_error_names_a_damaged_file(file_format: str) -> None:
    table = plain_rows(100)
    file, spec = encoded(table, file_format), spec_of(table, file_format)
    for data in (b"", b"PAR1", bytes(file.data[: len(file.data) // 2]), bytes(len(file.data))):
        with pytest.raises(FormatError, match="data/some-file"):
            decode_file(data, spec, None, "data/some-file", rows=100)


def test_flipped_byte_of_a_parquet_page_is_detected() -> None:
    """Values have a checksum; damage of page headers shows in that of the whole file.

    The file has pages of each encoding.
    """
    table = plain_rows(150)
    file, spec = encoded(table, "parquet"), spec_of(table, "parquet")
    encodings = plan_encodings(with_row_ids(table))
    assert ({*encodings.dictionary}, {*encodings.delta}) == ({"few", SEGMENT}, {"d", OFFSET})
    truth = decode_file(file.data, spec, None, "f", rows=file.rows)
    silent = []
    for position in range(4, len(file.data) - file.footer_bytes):
        damaged = bytearray(file.data)
        damaged[position] ^= 0x10
        try:
            same = decode_file(bytes(damaged), spec, None, "f", rows=file.rows).equals(truth)
        except FormatError:
            continue
        if not same:
            silent.append(position)
    assert silent == []


def test_missing_row_ids_are_refused() -> None:
    table = plain_rows(1)
    with pytest.raises(InvalidInputError, match=SEGMENT):
        encode_file(table, spec_of(table, "parquet"))


def test_encodings_depend_on_the_values() -> None:
    rows = 50_000
    encodings = plan_encodings(with_row_ids(plain_rows(rows)))
    assert set(encodings.dictionary) == {"few", SEGMENT}
    assert set(encodings.delta) == {"d", OFFSET}


def test_columns_that_hardly_shrink_are_not_compressed() -> None:
    rows, random = 200_000, np.random.default_rng(2)
    few = random.integers(0, 1000, rows)
    table = pa.table(
        {
            "k": [f"k{number:07d}" for number in range(rows)],
            "d": np.arange(rows),
            "double": random.random(rows),
            "cents": random.integers(0, 10_000_000, rows) / 100,
            "number": random.integers(0, 1 << 62, rows),
            "few": few,
            "city": [f"city{number}" for number in few.tolist()],
            "skewed": few // 10 * (few % 10 == 0),
            "repeated": np.repeat(few[: rows // 50], 50),
            "large": [f"{number:032x}" for number in random.integers(0, 3000, rows).tolist()],
            "none": pa.nulls(rows, pa.float64()),
            "point": pa.array([{"x": x} for x in random.random(rows).tolist()]),
            "list": pa.array([[x] for x in random.random(rows).tolist()]),
        }
    )
    group = pq.read_metadata(pa.BufferReader(encoded(table, "parquet").data)).row_group(0)
    columns = [group.column(position) for position in range(group.num_columns)]
    stored = {column.path_in_schema for column in columns if column.compression == "UNCOMPRESSED"}
    assert stored == {"double", "number", "few", "point.x", "list.list.element"}
    some = ["double", "few", "city"]
    assert decode_file(
        encoded(table, "parquet").data, spec_of(table, "parquet"), some, "f", rows=rows
    ) == table.select(some)
    harder = FileEncoder(spec=spec_of(table, "parquet"), level=19)
    harder.add(with_row_ids(table))
    group = pq.read_metadata(pa.BufferReader(harder.finish().data)).row_group(0)
    assert {group.column(position).compression for position in range(group.num_columns)} == {"ZSTD"}


def test_row_ids_and_rising_times_cost_next_to_nothing() -> None:
    file = encoded(plain_rows(100_000), "parquet")
    group = pq.read_metadata(pa.BufferReader(file.data)).row_group(0)
    sizes = {
        group.column(position).path_in_schema: group.column(position).total_compressed_size
        for position in range(group.num_columns)
    }
    assert max(sizes[SEGMENT], sizes[OFFSET], sizes["d"]) < 3000


def test_row_groups_are_bounded_by_rows() -> None:
    rows = (1 << 18) + 1
    table = pa.table({"k": pa.nulls(rows, pa.string()), "d": np.arange(rows)})
    assert pq.read_metadata(pa.BufferReader(encoded(table, "parquet").data)).num_row_groups == 2


def test_bounds_from_the_footer_equal_those_of_the_rows() -> None:
    table = plain_rows(5000)
    by_footer, by_rows = encoded(table, "parquet").bounds, encoded(table, "orc").bounds
    assert by_footer == by_rows
    assert by_footer[1] == replace(
        by_footer[1], low=min(table["k"].to_pylist()), high=max(table["k"].to_pylist()), nulls=0
    )


@FORMATS
def test_texts_that_are_not_utf8_are_written_with_unknown_bounds(file_format: str) -> None:
    """Spark casts any binary to a string."""
    text = pa.Array.from_buffers(pa.string(), 2, pa.array([b"\xff\xfe", b"ok"]).buffers())
    table = pa.table({"k": text, "d": [1, 2]})
    file = encoded(table, file_format)
    assert file.bounds[1].high is None
    back = decode_file(file.data, spec_of(table, file_format), ["k"], "f", rows=2)
    assert back["k"].cast(pa.binary()).to_pylist() == [b"\xff\xfe", b"ok"]


def test_row_groups_have_no_statistics_of_floats() -> None:
    """Readers that trust statistics with NaN or -0.0 skip rows that a filter matches."""
    table = pa.table(
        {"k": ["a", "b"], "d": [1, 2], "x": [1.0, float("nan")], "s": [{"y": -0.0}, {"y": 1.0}]}
    )
    encodings = plan_encodings(table)
    assert encodings.statistics == ("k", "d")
