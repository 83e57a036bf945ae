"""Rows around the bound of memory.

What can be written can be read, and what cannot is refused by name.
"""

import io
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from opal_lake.data.data_file import decode_file, decode_parts, encode_file, verify_footer
from opal_lake.data.decoded_size import SizeBound, decoded_bytes, footer_bytes_of_groups
from opal_lake.data.outside_ids import RowBases
from opal_lake.data.pages.page_index import decode_page_index
from opal_lake.data.segment import DataFile, Segment
from opal_lake.definition.table_spec import TableLayout, TableSpec, plan_spec
from opal_lake.errors import FormatError, InvalidInputError
from opal_lake.maintenance.rewrite_task import RewriteTask, Target, write_files
from opal_lake.storage.memory import MemoryStorage
from opal_lake.table import create_on
from opal_lake.write.ingest_task import IngestOutput, IngestTask, ingest_rows

BOUND = SizeBound(least_bytes=1 << 16, inflated=8)
KINDS = {
    "text": pa.string(),
    "bytes": pa.binary(),
    "numbers": pa.list_(pa.int64()),
    "texts": pa.list_(pa.string()),
    "flags": pa.list_(pa.bool_()),
    "octets": pa.list_(pa.int8()),
    "lists": pa.list_(pa.list_(pa.int64())),
    "structs": pa.list_(pa.struct([(f"f{number}", pa.int64()) for number in range(150)])),
}


def spec_of(kind: str, file_format: str = "parquet") -> TableSpec:
    schema = pa.schema([("k", pa.int64()), ("at", pa.int64()), ("v", KINDS[kind])])
    return plan_spec(schema, TableLayout(keys=["k"], delta="at", file_format=file_format))


def value_of(kind: str, size: int, *, is_constant: bool) -> Any:
    """Return a value of about so many bytes.

    zstd makes it a thousand times smaller, or hardly smaller.
    """
    noise = np.random.default_rng(size).integers(33, 126, size).astype(np.uint8)
    octets = b"x" * size if is_constant else bytes(noise)
    if kind == "bytes":
        return octets
    if kind == "text":
        return octets.decode()
    if kind == "texts":
        return [octets[at : at + 100].decode() for at in range(0, size, 100)]
    if kind == "flags":
        return [bool(octet & 1) for octet in octets]
    if kind == "octets":
        return [int(octet) for octet in octets]
    if kind == "lists":
        return [[] if octet & 1 else None for octet in octets[: size // 4]]
    if kind == "structs":
        members = KINDS[kind].value_type
        return [{member.name: None for member in members}] * (size // 1200)
    return [int(octet) for octet in octets[: size // 8]]


def ingested(
    kind: str,
    values: list[Any],
    storage: MemoryStorage,
    *,
    quarantine: bool = True,
    file_format: str = "parquet",
) -> IngestOutput:
    count = np.arange(len(values))
    array = pa.array(values, KINDS[kind])
    rows = pa.table({"k": count, "at": count, "v": array})
    task = IngestTask(
        storage=storage,
        spec=spec_of(kind, file_format),
        number=1,
        task=0,
        attempt="a",
        quarantine=quarantine,
        bound=BOUND,
    )
    return ingest_rows(rows.to_batches(), task)


def target_of(files: Sequence[DataFile], codec: str = "") -> Target:
    """Return the target of a rewrite of files, with outside row ids."""
    segments = {
        number: Segment(id=number, rows=file.rows, group=0, row_base=0, visible_since=1)
        for file in files
        for number in file.segments
    }
    return Target(
        neighbour=files[0],
        sequence=0,
        attempt="a",
        row_bases=RowBases.of(segments),
        codec=codec,
    )


def values_in(storage: MemoryStorage, file: DataFile, spec: TableSpec) -> dict[int, Any]:
    """Return the rows of a file, the same by each way to read it."""
    data = storage.get(file.path)
    whole = decode_file(data, spec, None, file.path, rows=file.rows, bound=BOUND)
    parts = decode_parts(data, spec, file.path, rows=file.rows, bound=BOUND)
    fetched = decode_file(
        pa.PythonFile(io.BytesIO(data), mode="r"),
        spec,
        None,
        file.path,
        rows=file.rows,
        bound=BOUND,
    )
    assert pa.concat_tables(parts).equals(whole)
    assert fetched.equals(whole)
    return dict(zip(whole["k"].to_pylist(), whole["v"].to_pylist(), strict=True))


SIZES = st.one_of(
    st.integers(1, 1000),
    st.integers(BOUND.cut_bytes - 200, BOUND.least_bytes + 200),
    st.integers(1, 10 * BOUND.least_bytes),
)


@given(
    kind=st.sampled_from(sorted(KINDS)),
    cells=st.lists(st.tuples(SIZES, st.booleans()), min_size=1, max_size=8),
    level=st.sampled_from(["", "zstd:19"]),
)
@example(
    kind="text",
    cells=[(BOUND.least_bytes - 100, True), (5 * BOUND.least_bytes, False)],
    level="zstd:19",
)
@settings(max_examples=60, deadline=None)
def test_every_written_file_can_be_read(
    kind: str, cells: list[tuple[int, bool]], level: str
) -> None:
    spec, storage = spec_of(kind), MemoryStorage()
    values = [value_of(kind, size, is_constant=constant) for size, constant in cells]
    output = ingested(kind, values, storage)
    stored: dict[int, Any] = {}
    for file in output.files:
        stored |= values_in(storage, file, spec)
    assert len(stored) + sum(output.rejected.values()) == len(values)
    assert stored == {number: values[number] for number in stored}
    for number, value in enumerate(values):
        cell = pa.table({"v": pa.array([value], KINDS[kind])})
        if decoded_bytes(cell) < BOUND.cut_bytes - 100:
            assert number in stored
    if not output.files:
        return
    # Each row in a file of its own, the smallest that a rewrite can make
    task = RewriteTask(storage=storage, spec=spec, number=2, target_bytes=1, bound=BOUND)
    target = target_of(output.files, codec=level)
    rows = pa.concat_tables(
        decode_file(storage.get(file.path), spec, None, file.path, rows=file.rows, bound=BOUND)
        for file in output.files
    )
    parts = (rows.slice(at, 1) for at in range(rows.num_rows))
    rewritten: dict[int, Any] = {}
    for file in write_files(parts, task, target):
        rewritten |= values_in(storage, file, spec)
    assert rewritten == stored


@given(
    kind=st.sampled_from(["octets", "lists", "structs"]),
    runs=st.lists(
        st.tuples(st.sampled_from(["null", "empty", "null member", "value"]), st.integers(1, 300)),
        min_size=1,
        max_size=4,
    ),
)
@example(kind="structs", runs=[("null", 300)])
@example(kind="structs", runs=[("empty", 100), ("null", 100), ("value", 2)])
@example(kind="lists", runs=[("empty", 300), ("null member", 300)])
@settings(max_examples=12, deadline=None)
def test_rows_of_nulls_and_empty_lists_can_be_read_where_they_are_and_rewritten(
    kind: str, runs: list[tuple[str, int]]
) -> None:
    spec, storage = spec_of(kind), MemoryStorage()
    cells = {
        "null": None,
        "empty": [],
        "null member": [None],
        "value": value_of(kind, 2400, is_constant=False),
    }
    values = [cells[name] for name, count in runs for _ in range(count)]
    output = ingested(kind, values, storage)
    assert not output.rejected
    [file] = output.files
    assert values_in(storage, file, spec) == dict(enumerate(values))
    task = RewriteTask(storage=storage, spec=spec, number=2, target_bytes=1 << 30, bound=BOUND)
    target = target_of([file])
    rows = decode_file(storage.get(file.path), spec, None, file.path, rows=file.rows, bound=BOUND)
    pieces = [rows.slice(at, 50) for at in range(0, rows.num_rows, 50)]
    [rewritten] = write_files(pieces, task, target)
    assert values_in(storage, rewritten, spec) == dict(enumerate(values))
    footer = pq.read_metadata(pa.BufferReader(storage.get(rewritten.path)))
    size = len(storage.get(rewritten.path))
    assert sum(footer_bytes_of_groups(footer)) <= BOUND.limit_bytes(size)


def test_a_padded_file_keeps_its_page_index() -> None:
    bound = SizeBound(least_bytes=100, inflated=1)
    spec, value = spec_of("octets"), [0] * 1_200_000
    rows = pa.table({"k": [1], "at": [1], "v": [value], "_opal_segment": [1], "_opal_offset": [0]})
    plain, padded = (encode_file(rows, spec, bound, may_pad=may_pad) for may_pad in (False, True))
    with pytest.raises(FormatError, match="it may take at most"):
        decode_file(plain.data, spec, None, "the file", rows=1, bound=bound)
    read = decode_file(padded.data, spec, None, "the file", rows=1, bound=bound)
    assert read["k"].to_pylist() == [1]
    footer = pq.read_metadata(pa.BufferReader(padded.data))
    assert len(plain.data) < sum(footer_bytes_of_groups(footer)) <= len(padded.data)
    starts = []
    for encoded in (plain, padded):
        tail = bytes(encoded.data[-encoded.footer_bytes :])
        verify_footer(tail, encoded.footer_bytes, encoded.footer_crc32, "the file")
        index = decode_page_index(tail, len(encoded.data))
        columns = range(len(index.groups[0]))
        starts.append([index.pages(0, column).starts.tolist() for column in columns])
    assert starts[0] == starts[1]


def small_numbers(count: int) -> pa.Table:
    column = pa.array([1] * count, pa.int8())
    return pa.table({f"v{number}": column for number in range(10)})


def test_rows_take_at_least_what_a_reader_counts() -> None:
    members = pa.struct([("a", pa.int8()), ("b", pa.map_(pa.string(), pa.list_(pa.bool_())))])
    cells = [None, [], [None], [{"a": 1, "b": []}], [{"a": None, "b": [("x", None), ("y", [])]}]]
    nested = pa.table({"v": pa.array(cells * 2000, pa.list_(members))})
    for table in (nested, nested.slice(1001, 4321), small_numbers(10_000), nested.slice(3, 0)):
        sink = pa.BufferOutputStream()
        pq.write_table(table, sink, use_dictionary=False, row_group_size=1 << 20)
        footer = pq.read_metadata(pa.BufferReader(sink.getvalue()))
        headers = 1000 * footer.num_columns
        assert decoded_bytes(table) + headers >= max(footer_bytes_of_groups(footer))


@pytest.mark.slow
@pytest.mark.parametrize("rows_each", [140_000, 15_000])
def test_compaction_and_inline_folds_of_null_lists_stay_readable(rows_each: int) -> None:
    schema = pa.schema([("k", pa.int64()), ("at", pa.int64()), ("v", KINDS["structs"])])
    table = create_on(MemoryStorage(), plan_spec(schema, TableLayout(keys=["k"], delta="at")))
    count = 280_000 // rows_each
    for number in range(count):
        keys = np.arange(rows_each) + number * rows_each
        nulls = pa.nulls(rows_each, KINDS["structs"])
        rows = pa.table({"k": keys, "at": np.ones(rows_each, np.int64), "v": nulls}, schema=schema)
        table.ingest(rows, metadata="inline")
    table.compact()
    assert table.read(columns=["k", "v"]).num_rows == count * rows_each


@pytest.mark.parametrize("file_format", ["parquet", "orc"])
@pytest.mark.parametrize("quarantine", [False, True])
def test_a_row_that_no_reader_accepts_is_refused_by_name(
    quarantine: bool, file_format: str
) -> None:
    values, storage = ["a", "x" * 200_000, "b"], MemoryStorage()
    output = ingested("text", values, storage, quarantine=quarantine, file_format=file_format)
    [(reason, count)] = output.rejected.items()
    assert count == 1
    assert reason.startswith("column 'v' holds 200,0")
    assert "in the row of k=1. The row takes 200,0" in reason
    assert "readers accept 65,536 bytes in memory. Split the value" in reason
    assert [file.rows for file in output.files] == ([2] if quarantine else [])


def test_a_row_that_takes_memory_in_proportion_to_its_file_is_accepted() -> None:
    spec, storage = spec_of("text"), MemoryStorage()
    values = [value_of("text", 4 * BOUND.least_bytes, is_constant=False), "a"]
    output = ingested("text", values, storage)
    assert not output.rejected
    [file] = output.files
    assert values_in(storage, file, spec) == dict(enumerate(values))


@pytest.mark.slow
@pytest.mark.parametrize("metadata", ["batch", "inline"])
def test_a_value_of_300_mb_that_compresses_well_is_refused(metadata: str) -> None:
    table = create_on(MemoryStorage(), spec_of("text"))
    rows = pa.table({"k": [1], "at": [1], "v": ["x" * 300_000_000]})
    with pytest.raises(InvalidInputError, match=r"column 'v' holds 300,000,0.* the row of k=1"):
        table.ingest(rows, metadata=metadata)
    assert table.read().num_rows == 0
