"""The size of an ORC file in memory, from its lengths, before anything is decoded."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.orc as orc
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from opal_lake.data.data_file import decode_file, decode_parts, encode_file
from opal_lake.data.decoded_size import SizeBound
from opal_lake.data.orc_runs import bound_of_lengths, runs_of
from opal_lake.data.orc_size import orc_size
from opal_lake.errors import FormatError
from tests.opal_lake.data.build import KINDS, spec_of

GENEROUS = 1 << 50


def written(rows: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with orc.ORCWriter(
        sink, compression="zstd", batch_size=8192, dictionary_key_size_threshold=0.5
    ) as writer:
        writer.write(rows)
    return bytes(sink.getvalue())


def rows_of(values: pa.Array) -> pa.Table:
    count = np.arange(len(values))
    return pa.table(
        {
            "k": count,
            "at": count,
            "v": values,
            "_opal_segment": np.ones(len(values), np.int64),
            "_opal_offset": count.astype(np.int32),
        }
    )


def test_run_that_ends_beyond_its_stream_is_refused() -> None:
    ten_values_of_8_bits = bytes([0x4E, 9, *range(10)])
    [values] = runs_of(ten_values_of_8_bits)
    assert values.tolist() == [*range(10)]
    with pytest.raises(ValueError, match="ends beyond its stream"):
        list(runs_of(ten_values_of_8_bits[:-5]))


@given(
    runs=st.lists(
        st.tuples(
            st.sampled_from(["equal", "random", "outlier", "rising", "falling"]),
            st.integers(0, 300),
            st.integers(1, 700),
        ),
        min_size=1,
        max_size=5,
    ),
    seed=st.integers(0, 1000),
)
@example(runs=[("outlier", 5, 600), ("rising", 0, 600), ("falling", 300, 600)], seed=1)
@settings(max_examples=25, deadline=None)
def test_lengths_are_counted_as_the_decoder_reads_them(
    runs: list[tuple[str, int, int]], seed: int
) -> None:
    chance = np.random.default_rng(seed)
    lengths: list[int] = []
    for kind, size, count in runs:
        if kind == "equal":
            lengths += [size] * count
        elif kind == "random":
            lengths += chance.integers(0, size + 1, count).tolist()
        elif kind == "outlier":
            lengths += np.where(chance.random(count) < 0.02, 5_000, size).tolist()
        else:
            rising = sorted(chance.integers(0, size + 1, count).tolist())
            lengths += rising if kind == "rising" else rising[::-1]
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    lists = pa.ListArray.from_arrays(offsets, np.zeros(sum(lengths), np.int64))
    file = pa.BufferReader(written(pa.table({"v": lists})))
    at_most = orc_size(file, None, GENEROUS).decoded_bytes
    exact = orc_size(file, None, at_most - 1).decoded_bytes
    assert exact == 8 * (len(lengths) + sum(lengths))
    assert at_most >= exact


RUNS = st.one_of(
    st.builds(  # a value that is repeated
        lambda size, count, value: bytes([(size - 1) << 3 | count - 3, *value[:size]]),
        st.integers(1, 8),
        st.integers(3, 10),
        st.binary(min_size=8, max_size=8),
    ),
    st.builds(  # packed by four bits
        lambda count: bytes([0x46 | (count - 1) >> 8, (count - 1) & 255]) + bytes((count + 1) // 2),
        st.integers(1, 512),
    ),
    st.builds(  # rising by equal steps
        lambda count, step: bytes([0xC0 | (count - 1) >> 8, (count - 1) & 255, 9, 2 * step]),
        st.integers(2, 512),
        st.integers(0, 60),
    ),
)


@given(st.lists(RUNS, max_size=30))
@settings(max_examples=100, deadline=None)
def test_many_lengths_are_bounded_as_few_are(runs: list[bytes]) -> None:
    data = b"".join(runs)
    many, few = (bound_of_lengths(data, few_bytes) for few_bytes in (-1, 1 << 30))
    assert many.total == pytest.approx(few.total)
    assert many.longest == pytest.approx(few.longest)


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_size_of_a_nested_value_includes_its_members(kind: str) -> None:
    values: dict[str, list[Any]] = {
        "text": ["a", None, "bcd", ""],
        "numbers": [[1, None], None, [], [2]],
        "texts": [["ab", None], None, [], ["c"]],
        "tree": [{"a": [("k", ["x", "yz"])], "b": 1}, None, {"a": None, "b": None}],
    }
    numbers, texts, octets = {
        "text": (0, 4, 4),
        "numbers": (4 + 3, 0, 0),
        "texts": (4, 3, 3),
        "tree": (3 + 3 + 1, 1 + 2, 4),
    }[kind]
    file = pa.BufferReader(written(pa.table({"v": pa.array(values[kind], KINDS[kind])})))
    at_most = orc_size(file, None, GENEROUS).decoded_bytes
    exact = orc_size(file, None, at_most - 1).decoded_bytes
    assert exact == 8 * numbers + 16 * texts + octets
    assert orc_size(file, ["another"], GENEROUS).decoded_bytes == 0


def test_a_dictionary_is_counted_by_the_words_that_rows_choose() -> None:
    words = ["x" * 10_000, *"abc"]
    rows = pa.table({"v": [words[number % 4 if number < 8 else 1] for number in range(5000)]})
    file = pa.BufferReader(written(rows))
    at_most = orc_size(file, None, GENEROUS).decoded_bytes
    exact = orc_size(file, None, 1 << 20).decoded_bytes
    assert at_most > 5000 * 10_000
    assert 0 <= exact - (16 * 5000 + 2 * 10_000 + 4998) <= 10_003 + 8 * 4


BOMBS = """
import resource, sys
import pyarrow as pa
from opal_lake.data.data_file import decode_file, decode_parts
from opal_lake.errors import FormatError
from tests.opal_lake.data.build import bomb, spec_of
data, kind, rows = bomb(sys.argv[1])
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for decode in (lambda: decode_file(data, spec_of(kind), ["v"], "x.orc", rows=rows),
               lambda: [*decode_parts(data, spec_of(kind), "x.orc", rows=rows)]):
    try:
        decode()
    except FormatError as error:
        print(error)
grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
print(f"{len(data)} bytes, grown by {grown >> 10} MB")
"""


@pytest.mark.parametrize("name", ["lists", "words"])
def test_a_small_file_with_large_rows_is_refused_before_it_is_decoded(name: str) -> None:
    root = Path(__file__).parents[3]
    child = subprocess.run(
        [sys.executable, "-c", BOMBS, name],
        env={**os.environ, "PYTHONPATH": f"{root}:{root}/spark_apps"},
        capture_output=True,
        text=True,
        check=True,
    )
    *messages, last = child.stdout.splitlines()
    assert len(messages) == 2
    for message in messages:
        assert message.startswith("x.orc cannot be read as orc: its rows take ")
        assert "may take at most 268,435,456; restore the file from a backup" in message
    size, grown = int(last.split()[0]), int(last.split()[-2])
    assert size < 100_000
    assert grown < 32


@pytest.mark.parametrize("name", ["numbers", "text", "texts"])
def test_a_padded_file_has_the_same_rows(name: str) -> None:
    bound = SizeBound(least_bytes=1000, inflated=8)
    value: Any = "x" * 5000 if name == "text" else [7] * 5000
    value = ["x" * 100] * 500 if name == "texts" else value
    rows = rows_of(pa.array([value] * 20, KINDS[name]))
    spec = spec_of(KINDS[name])
    plain, padded = (encode_file(rows, spec, bound, may_pad=may_pad) for may_pad in (False, True))
    with pytest.raises(
        FormatError,
        match=r"its rows take .* bytes in memory, but those of a file of .* may take at most",
    ):
        decode_file(plain.data, spec, None, "the file", rows=20, bound=bound)
    assert len(plain.data) < len(padded.data) <= len(plain.data) + 20 * 60_000 // 8
    read = decode_file(padded.data, spec, None, "the file", rows=20, bound=bound)
    assert read["v"].to_pylist() == [value] * 20
    parts = pa.concat_tables(decode_parts(padded.data, spec, "the file", rows=20, bound=bound))
    assert parts["v"].to_pylist() == [value] * 20


def test_a_length_beyond_all_memory_is_refused() -> None:
    for run, message in (
        (bytes([0x38 | 0]) + (1 << 50).to_bytes(8, "big"), "length 1,125,899,906,842,624"),
        (bytes([0xC0, 9, 5, 1]), "length -"),  # falls from 5 by one, ten times
    ):
        with pytest.raises(ValueError, match=message):
            [*runs_of(run)]
    assert bound_of_lengths(bytes([0x38 | 0]) + (1 << 50).to_bytes(8, "big")).total == 3 << 50


def test_damaged_bytes_end_in_an_error_or_the_same_rows() -> None:
    spec = spec_of(KINDS["tree"])
    values = pa.array([{"a": [("k", ["x", "yz"])], "b": 1}, None] * 40, KINDS["tree"])
    data = bytes(encode_file(rows_of(values), spec).data)
    chance = np.random.default_rng(7)
    for _ in range(400):
        forged = bytearray(data)
        for position in chance.integers(0, len(data), chance.integers(1, 4)):
            forged[position] = chance.integers(0, 256)
        try:
            orc_size(pa.BufferReader(bytes(forged)), None, 1 << 20)
        except (ValueError, IndexError, OSError, KeyError, OverflowError, TypeError):
            continue
