"""Rows that are read page by page equal those of a read of the whole file."""

import zlib
from dataclasses import replace
from datetime import date
from decimal import Decimal
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from opal_lake.data import column_read, data_file
from opal_lake.data.column_read import read_columns, read_footer, read_places
from opal_lake.data.data_file import _READ_ERRORS, encode_file
from opal_lake.data.pages import chosen_rows, few_values, near_indexes, page_index
from opal_lake.data.pages.near_indexes import indexes_up_to, near_index
from opal_lake.data.pages.page_index import decode_page_index
from opal_lake.data.segment import DataFile
from opal_lake.data.thrift import encode_varint
from opal_lake.definition.schema import OFFSET, SEGMENT
from opal_lake.definition.table_spec import TableLayout, TableSpec, plan_spec
from opal_lake.errors import FormatError
from opal_lake.ids import segment_id
from opal_lake.storage import open_storage
from opal_lake.storage.protocol import Storage

ROWS = 9000
PATH = "data/0000000001-00000000-a.parquet"


def many_columns() -> pa.Table:
    """Make columns of each encoding, of nulls only, and nested ones.

    Encodings are plain, deltas, dictionaries, and a dictionary that grows too large.
    """
    random = np.random.default_rng(3)
    some = random.random(ROWS) < 0.3
    ids = np.arange(ROWS)
    words = [None if gap else f"w{number % 7}" for number, gap in zip(ids, some, strict=True)]
    numbers = ids.tolist()
    lists = [[1] * (number % 4) if number % 5 else None for number in numbers]
    points = [{"x": number, "name": f"p{number % 3}"} if number % 6 else None for number in numbers]
    return pa.table(
        {
            "id": ids,
            "at": pa.array(ids + 10**15, pa.timestamp("us", "UTC")),
            "share": pa.array(random.random(ROWS), mask=some),
            "few": pa.array(words),
            "text": [random.bytes(int(size)).hex() for size in random.integers(0, 60, ROWS)],
            "flag": pa.array(random.random(ROWS) < 0.5, mask=some),
            "day": pa.array([date(2026, 1, 1 + number % 28) for number in numbers]),
            "price": pa.array([Decimal(number) / 4 for number in numbers], pa.decimal128(12, 2)),
            "bytes": pa.array([b"\xff%d" % (number % 50) for number in numbers]),
            "none": pa.nulls(ROWS, pa.int32()),
            "list": pa.array(lists, pa.list_(pa.int32())),
            "point": pa.array(points),
        }
    )


def stored(storage: Storage, rows: pa.Table, *, with_index: bool) -> tuple[DataFile, TableSpec]:
    spec = plan_spec(rows.schema, TableLayout(keys=["id"], delta="at"))
    rows = rows.append_column(SEGMENT, pa.array(np.full(ROWS, segment_id(1, 0)))).append_column(
        OFFSET, pa.array(np.arange(ROWS), pa.int32())
    )
    if with_index:
        encoded = encode_file(rows, spec)
        data, footer_bytes = encoded.data, encoded.footer_bytes
    else:
        data = without_index(rows)
        footer_bytes = int.from_bytes(data[-8:-4], "little") + 8
    storage.put_if_absent(PATH, data)
    described = DataFile(
        path=PATH,
        size=len(data),
        crc32=zlib.crc32(data),
        footer_bytes=footer_bytes,
        footer_crc32=zlib.crc32(data[-footer_bytes:]),
        rows=ROWS,
        group=0,
        segments=(segment_id(1, 0),),
    )
    return described, spec


def without_index(rows: pa.Table) -> memoryview:
    """Encode a file without page indexes, as files were written before."""
    sink = pa.BufferOutputStream()
    pq.write_table(
        rows,
        sink,
        row_group_size=5000,
        compression="zstd",
        use_dictionary=["few", "bytes"],
        write_page_checksum=True,
        store_schema=False,
    )
    return memoryview(sink.getvalue())


@pytest.fixture(params=["pages", "no index"])
def file(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[Storage, DataFile, TableSpec]:
    """Store a file of two row groups, with up to five pages a column, or no index."""
    monkeypatch.setattr(column_read, "WHOLE_BYTES", 0)
    monkeypatch.setattr(data_file, "GROUP_ROWS", 5000)
    monkeypatch.setattr(data_file, "PAGE_BYTES", 600)
    monkeypatch.setattr(data_file, "INDEXED_BYTES", 0)
    storage = open_storage(str(tmp_path))
    return storage, *stored(storage, many_columns(), with_index=request.param == "pages")


@pytest.mark.parametrize("count", [0, 1, 2, 30, 1500, ROWS])
def test_chosen_rows_equal_those_of_the_whole_file(
    file: tuple[Storage, DataFile, TableSpec], count: int
) -> None:
    storage, described, spec = file
    whole = read_columns(storage, described, spec, [*many_columns().column_names, SEGMENT, OFFSET])
    random = np.random.default_rng(count)
    places = np.sort(random.choice(ROWS, count, replace=False))
    for names in (whole.column_names, ["point", "id", "younger"], ["text"]):
        rows = read_places(storage, described, spec, names, places)
        assert rows.column_names == [name for name in names if name != "younger"]
        assert rows == whole.take(pa.array(places)).select(rows.column_names)


def test_index_has_the_pages_of_every_flat_column(
    file: tuple[Storage, DataFile, TableSpec], request: pytest.FixtureRequest
) -> None:
    storage, described, _ = file
    index = decode_page_index(storage.get(PATH, -described.footer_bytes), described.size)
    assert {*index.columns} == {*many_columns().column_names, SEGMENT, OFFSET} - {"list", "point"}
    assert index.others == {"list", "point"}
    pages = [len(index.pages(0, leaf).starts) for leaf, _ in index.columns.values()]
    has_index = "no index" not in request.node.name
    assert max(pages) == (5 if has_index else 1)


def test_position_beyond_the_file_is_a_format_error(
    file: tuple[Storage, DataFile, TableSpec], monkeypatch: pytest.MonkeyPatch
) -> None:
    storage, described, spec = file
    for whole_bytes in (0, 1 << 30):
        monkeypatch.setattr(column_read, "WHOLE_BYTES", whole_bytes)
        with pytest.raises(
            FormatError,
            match=f"{PATH} has 9,000 rows, and none at position 9,000; run `opal check`",
        ):
            read_places(storage, described, spec, ["id"], np.array([3, ROWS]))
        with pytest.raises(FormatError, match="footer says 9,000 rows, but its commit says 9,001"):
            read_places(
                storage, replace(described, rows=ROWS + 1), spec, ["id"], np.array([3, ROWS])
            )


def test_chosen_rows_are_right_if_the_footer_is_too_large_to_decode(
    file: tuple[Storage, DataFile, TableSpec], monkeypatch: pytest.MonkeyPatch
) -> None:
    storage, described, spec = file
    indexes = indexes_up_to(near_indexes.MAX_BYTES)
    read = partial(read_footer, storage, described)
    assert not near_index(described, read, indexes, max_footer=100).columns
    monkeypatch.setattr(near_indexes, "_near", indexes)
    places = np.array([0, 4999, 8999])
    assert read_places(
        storage, described, spec, ["text", "point"], places
    ) == many_columns().select(["text", "point"]).take(pa.array(places))


def dense_columns(rows: int) -> pa.Table:
    """Make columns of each kind whose few values are taken out, then those to decode.

    The latter have nulls, runs, texts or deltas.
    """
    random = np.random.default_rng(4)
    numbers = random.integers(-(1 << 60), 1 << 60, rows)
    few = random.integers(0, 900, rows)
    prices = [Decimal(number) / 4 for number in (numbers >> 16).tolist()]
    endings = ("x", "xy", "x", "")
    uneven = [
        f"{number % 1000:03d}{endings[position % 4]}"
        for position, number in enumerate(numbers.tolist())
    ]
    return pa.table(
        {
            "id": numbers,
            "at": pa.array(numbers, pa.timestamp("us", "UTC")),
            "float": random.random(rows).astype(np.float32),
            "double": random.random(rows),
            "int": (numbers >> 32).astype(np.int32),
            "short": (few + 20_000).astype(np.int16),
            "day": pa.array((few * 30).astype(np.int32), pa.date32()),
            "price": pa.array(prices, pa.decimal128(18, 2)),
            "large": pa.array(
                [Decimal(number) for number in numbers.tolist()], pa.decimal128(38, 0)
            ),
            "city": [f"city{number}" for number in few.tolist()],
            "bytes": pa.array([b"\xff%d" % (number % 200) for number in few.tolist()]),
            "uuid": [f"{number % (1 << 64):016x}" for number in numbers.tolist()],
            "gaps": pa.array(random.random(rows), mask=few < 9),
            "runs": pa.array(np.repeat(few[: rows // 100], 100)),
            "flag": few < 450,
            "text": [f"{number:x}" for number in numbers.tolist()],
            "uneven": uneven,
            "rising": np.arange(rows),
        }
    )


DECODED = {"gaps", "runs", "flag", "text", "uneven", "rising"}


@pytest.mark.parametrize("codec", ["zstd", "none", "snappy"])
@pytest.mark.parametrize("version", ["1.0", "2.0"])
def test_few_values_are_taken_out_and_other_columns_are_decoded(
    codec: str, version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = dense_columns(30_000)
    index, data = laid_out(rows, codec, data_page_version=version)
    decoded: set[str] = set()
    decode = chosen_rows._decoded_together
    monkeypatch.setattr(
        chosen_rows,
        "_decoded_together",
        lambda group, fetched: (decoded.update(group), decode(group, fetched))[1],
    )
    random = np.random.default_rng(6)
    for count in (1, 3, 400, 1700, 30_000):
        places = np.sort(random.choice(rows.num_rows, count, replace=False))
        decoded.clear()
        columns = chosen_rows.read_chosen(index, from_bytes(data), rows.column_names, places)
        expected = rows.take(pa.array(places))
        assert {name: column.type for name, column in columns.items()} == {
            column.name: column.type for column in rows.schema
        }
        assert pa.table(columns) == expected
        known = codec != "snappy" and version == "1.0" and count < 1800
        assert decoded == (DECODED if known else {*rows.column_names})


def words_in_runs(random: np.random.Generator, rows: int, size: int) -> np.ndarray:
    """Stretches of random numbers, and of equal ones."""
    parts, left = [], rows
    while left > 0:
        length = int(random.choice([8, 16, 63, 64, 504, 505, 1000]))
        if random.random() < 0.7:
            parts.append(random.integers(0, size, length))
        else:
            parts.append(np.full(length, random.integers(0, size)))
        left -= length
    return np.concatenate(parts)[:rows]


@pytest.mark.parametrize("seed", range(120))
def test_nulls_and_runs_anywhere_give_the_values_of_a_whole_read(seed: int) -> None:
    """Pages have any length, and the last one may have few rows.

    They begin as pages whose values are taken out.
    """
    random = np.random.default_rng(seed)
    rows, batch = int(random.integers(3000, 9000)), int(random.choice([8, 100, 504, 1100]))
    group = batch * int(random.integers(1500 // batch + 1, 9000 // batch)) + int(
        random.integers(1, 9)
    )
    columns: dict[str, pa.Array] = {}
    for size in (2, 3, 16, 200, 900):
        numbers = words_in_runs(random, rows, size)
        gaps = np.zeros(rows, np.bool_)
        gaps[random.integers(0, rows, 2)] = True
        gaps[[*range(group - 3, rows, group), -1 - int(random.integers(0, 7))]] = True
        columns |= {
            f"runs{size}": pa.array(numbers),
            f"gaps{size}": pa.array(random.integers(0, size, rows), mask=gaps),
        }
    columns["plain"] = pa.array(random.random(rows), mask=gaps)
    required = [pa.field("needed", pa.int64(), nullable=False)]
    fields = [*(pa.field(name, column.type) for name, column in columns.items()), *required]
    table = pa.table(
        [*columns.values(), pa.array(words_in_runs(random, rows, 50))], schema=pa.schema(fields)
    )
    sink = pa.BufferOutputStream()
    pq.write_table(
        table,
        sink,
        row_group_size=group,
        compression=str(random.choice(["zstd", "none"])),
        use_dictionary=[name for name in table.column_names if name != "plain"],
        write_page_checksum=True,
        write_page_index=True,
        data_page_size=int(random.choice([1, 600, 4000])),
        write_batch_size=batch,
        store_schema=False,
    )
    data = sink.getvalue().to_pybytes()
    index = decode_page_index(
        data[
            -data_file._parquet_footer_bytes(pq.read_metadata(pa.BufferReader(data)), len(data)) :
        ],
        len(data),
    )
    for step in (17, 29, 83):
        places = np.unique(
            np.r_[
                np.arange(int(random.integers(0, step)), rows, step),
                rows - 1 - int(random.integers(0, 8)),
            ]
        )
        columns = chosen_rows.read_chosen(index, from_bytes(data), table.column_names, places)
        assert {name: column.to_pylist() for name, column in columns.items()} == table.take(
            pa.array(places)
        ).to_pydict()


def test_requests_have_a_limited_size() -> None:
    rows = dense_columns(30_000)
    index, data = laid_out(rows, "none")
    sizes: list[int] = []
    fetch = from_bytes(data)
    places = np.arange(0, 30_000, 25)
    columns = chosen_rows.read_chosen(
        index,
        lambda start, size: (sizes.append(size), fetch(start, size))[1],
        rows.column_names,
        places,
        max_bytes=50_000,
    )
    assert pa.table(columns) == rows.take(pa.array(places))
    assert max(sizes) <= 50_000 < sum(sizes)


def test_row_groups_with_few_and_many_chosen_rows_give_one_column() -> None:
    rows = dense_columns(30_000)
    index, data = laid_out(rows, "zstd")
    places = np.array([*range(3), *range(10_000, 19_000), 20_001, 29_999])
    columns = chosen_rows.read_chosen(index, from_bytes(data), rows.column_names, places)
    assert pa.table(columns) == rows.take(pa.array(places))


def from_bytes(data: bytes | bytearray, steps: list[str] | None = None) -> chosen_rows.Fetch:
    def fetch(start: int, size: int) -> bytes:
        if steps is not None:
            steps.append("fetch")
        return bytes(data[start : start + size])

    return fetch


def laid_out(rows: pa.Table, codec: str, **options: str) -> tuple[page_index.PageIndex, bytes]:
    """Encode a file of three row groups, with many pages in each."""
    sink = pa.BufferOutputStream()
    pq.write_table(
        rows,
        sink,
        row_group_size=10_000,
        compression=codec,
        use_dictionary=["short", "day", "city", "bytes", "runs"],
        column_encoding={"rising": "DELTA_BINARY_PACKED"},
        write_page_checksum=True,
        write_page_index=True,
        data_page_size=4000,
        write_batch_size=500,
        store_decimal_as_integer=True,
        store_schema=False,
        **options,
    )
    data = sink.getvalue().to_pybytes()
    end = data_file._parquet_footer_bytes(pq.read_metadata(pa.BufferReader(data)), len(data))
    return decode_page_index(data[-end:], len(data)), data


def test_row_group_is_fetched_after_the_one_before_is_decoded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Memory holds one row group; adjacent pages take one request."""
    rows = dense_columns(30_000)
    index, data = laid_out(rows, "none")
    steps: list[str] = []
    decode = chosen_rows._decoded
    monkeypatch.setattr(
        chosen_rows, "_decoded", lambda *given: (steps.append("decode"), decode(*given))[1]
    )
    places = np.array([1, 12_000, 25_000])
    read = partial(chosen_rows.read_chosen, index, from_bytes(data, steps), ["id", "at"], places)
    read(near_bytes=100_000)
    assert steps == ["fetch", "decode"] * 3
    steps.clear()
    read(near_bytes=1 << 30)
    assert steps == ["fetch", "decode", "decode", "decode"]


@pytest.mark.parametrize("codec", ["zstd", "none"])
@pytest.mark.parametrize("column", ["double", "city", "price", "short", "uuid"])
def test_no_value_is_taken_out_of_a_damaged_page(column: str, codec: str) -> None:
    rows = dense_columns(30_000)
    index, data = laid_out(rows, codec)
    pages = index.pages(1, index.columns[column][0])
    starts = [*pages.starts.tolist(), *(pages.dictionary or ())[:1]]
    for start in starts:
        at = start + 60
        damaged = data[:at] + bytes([data[at] ^ 0x10]) + data[at + 1 :]
        with pytest.raises(_READ_ERRORS):
            chosen_rows.read_chosen(index, from_bytes(damaged), [column], pages.first_rows + 10_000)


@pytest.mark.parametrize("codec", ["zstd", "none"])
def test_forged_page_gives_an_error_or_rows(codec: str) -> None:
    """A stranger's checksums may be right: they are made so."""
    rows = dense_columns(30_000)
    index, data = laid_out(rows, codec)
    random = np.random.default_rng(8)
    refused = 0
    names = ["double", "city", "short", "large"]
    for turn in range(400):
        name = names[turn % len(names)]
        pages = index.pages(0, index.columns[name][0])
        forged = bytearray(data)
        for start in {int(pages.starts[0]), *(pages.dictionary or ())[:1]}:
            forge(forged, start, random)
        try:
            with data_file.reading(
                PATH, plan_spec(rows.schema, TableLayout(keys=["id"], delta="at"))
            ):
                columns = chosen_rows.read_chosen(
                    index, from_bytes(forged), [name], np.array([0, 7, 300])
                )
            assert len(columns[name]) == 3
        except FormatError:
            refused += 1
    assert 20 < refused < 400


def forge(data: bytearray, start: int, random: np.random.Generator) -> None:
    """Change bytes of a page's header or values, and if possible its checksum.

    The checksum is changed if it takes as many bytes as before.
    """
    header = few_values._DATA_PAGE.match(data, start)
    header = header or few_values._DICTIONARY_PAGE.match(data, start)
    assert header is not None
    (_, stored, _, _, _), (low, high) = header.groups(), header.span(3)
    begin = header.end()
    end = begin + few_values._number(stored)
    if random.random() < 0.5:
        at = int(random.integers(start, begin))
    else:
        at = int(random.integers(begin, min(end, begin + 40)))
    data[at] = int(random.integers(0, 256))
    crc = zlib.crc32(data[begin:end])
    signed = crc - (1 << 32) if crc >= 1 << 31 else crc
    octets = encode_varint(signed << 1 ^ signed >> 31)
    if len(octets) == high - low:
        data[low:high] = octets


def test_damaged_page_is_detected(
    file: tuple[Storage, DataFile, TableSpec], tmp_path: Path
) -> None:
    storage, described, spec = file
    index = decode_page_index(storage.get(PATH, -described.footer_bytes), described.size)
    pages = index.pages(1, index.columns["share"][0])
    damaged = bytearray(storage.get(PATH))
    damaged[int(pages.starts[0] + pages.sizes[0]) - 3] ^= 0x10
    (tmp_path / PATH).write_bytes(damaged)
    with pytest.raises(FormatError, match=f"{PATH} cannot be read as parquet"):
        read_places(storage, described, spec, ["share"], np.array([6001]))
    assert read_places(storage, described, spec, ["share"], np.array([1])).num_rows == 1


def test_forged_index_gives_an_error_or_rows(
    file: tuple[Storage, DataFile, TableSpec],
) -> None:
    """The checksum of an index is in a commit, which may be forged, too."""
    storage, described, spec = file
    tail = storage.get(PATH, -described.footer_bytes)
    random, names = np.random.default_rng(5), ["id", "share", "few", "text"]
    before = pa.total_allocated_bytes()
    refused = 0
    for _ in range(300):
        forged = bytearray(tail)
        for at in random.integers(0, len(tail), 3):
            forged[at] = random.integers(0, 256)
        try:
            with data_file.reading(PATH, spec):
                index = decode_page_index(bytes(forged), described.size)
                rows = chosen_rows.read_chosen(
                    index,
                    lambda start, size: storage.get(PATH, start, size),
                    names,
                    np.array([5, 4000, 8999]),
                )
            assert all(len(column) == 3 for column in rows.values())
        except FormatError:
            refused += 1
    assert refused > 5
    assert pa.total_allocated_bytes() - before < 64 << 20


def test_indexes_stay_in_memory_up_to_a_size(file: tuple[Storage, DataFile, TableSpec]) -> None:
    storage, described, _ = file
    read: list[str] = []

    def footer(of: DataFile) -> bytes:
        read.append(of.path)
        return storage.get(PATH, -described.footer_bytes)

    indexes = indexes_up_to(2 * described.footer_bytes)
    other, third = (replace(described, path=f"{PATH}-{number}") for number in (2, 3))
    for each in (described, other, described, third, described, other):
        near_index(each, partial(footer, each), indexes)
    assert read == [PATH, other.path, third.path, other.path]
