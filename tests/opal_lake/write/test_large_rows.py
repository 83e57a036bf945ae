"""Rows around the bound of memory: what can be written can be read, and what cannot is refused by name."""

import io
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from opal_lake.data.data_file import decode_file, decode_parts
from opal_lake.data.decoded_size import SizeBound
from opal_lake.data.segment import DataFile
from opal_lake.definition.table_spec import TableLayout, TableSpec, plan_spec
from opal_lake.errors import InvalidInputError
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
}


def spec_of(kind: str, file_format: str = "parquet") -> TableSpec:
    schema = pa.schema([("k", pa.int64()), ("at", pa.int64()), ("v", KINDS[kind])])
    return plan_spec(schema, TableLayout(keys=["k"], delta="at", file_format=file_format))


def value_of(kind: str, size: int, *, is_constant: bool) -> Any:
    """A value of about so many bytes, which zstd makes a thousand times smaller, or hardly."""
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
    return [int(octet) for octet in octets[: size // 8]]


def ingested(
    kind: str, values: list[Any], storage: MemoryStorage, *, quarantine: bool = True
) -> IngestOutput:
    count = np.arange(len(values))
    array = pa.array(values, KINDS[kind])
    rows = pa.table({"k": count, "at": count, "v": array})
    task = IngestTask(
        storage=storage,
        spec=spec_of(kind),
        number=1,
        task=0,
        attempt="a",
        quarantine=quarantine,
        bound=BOUND,
    )
    return ingest_rows(rows.to_batches(), task)


def values_in(storage: MemoryStorage, file: DataFile, spec: TableSpec) -> dict[int, Any]:
    """What all ways of reading say that a file holds."""
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
def test_what_can_be_written_can_be_read(
    kind: str, cells: list[tuple[int, bool]], level: str
) -> None:
    spec, storage = spec_of(kind), MemoryStorage()
    values = [value_of(kind, size, is_constant=constant) for size, constant in cells]
    output = ingested(kind, values, storage)
    held: dict[int, Any] = {}
    for file in output.files:
        held |= values_in(storage, file, spec)
    assert len(held) + sum(output.rejected.values()) == len(values)
    assert held == {number: values[number] for number in held}
    for number, value in enumerate(values):
        nbytes = pa.array([value], KINDS[kind]).nbytes
        if nbytes < BOUND.cut_bytes - 100:
            assert number in held
    if not output.files:
        return
    # Each row in a file of its own, the smallest that a rewrite can make
    task = RewriteTask(storage=storage, spec=spec, number=2, target_bytes=1, bound=BOUND)
    target = Target(beside=output.files[0], sequence=0, attempt="a", codec=level)
    rows = pa.concat_tables(
        decode_file(storage.get(file.path), spec, None, file.path, rows=file.rows, bound=BOUND)
        for file in output.files
    )
    parts = (rows.slice(at, 1) for at in range(rows.num_rows))
    rewritten: dict[int, Any] = {}
    for file in write_files(parts, task, target):
        rewritten |= values_in(storage, file, spec)
    assert rewritten == held


@pytest.mark.parametrize("quarantine", [False, True])
def test_a_row_that_no_reader_accepts_is_refused_by_name(quarantine: bool) -> None:
    storage = MemoryStorage()
    output = ingested("text", ["a", "x" * 200_000, "b"], storage, quarantine=quarantine)
    [(reason, count)] = output.rejected.items()
    assert count == 1
    assert reason.startswith("column 'v' holds 200,0")
    assert "in the row of k=1; the row takes 200,0" in reason
    assert "of which readers accept 65,536: split the value" in reason
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
