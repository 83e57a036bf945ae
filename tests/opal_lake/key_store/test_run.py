"""Runs as bytes: encoding and decoding, and the blocks that an index names."""

import random
import zlib
from dataclasses import fields
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opal_lake.errors import FormatError
from opal_lake.key_store import run as run_module
from opal_lake.key_store.columns import pack, pack_sorted, unpack, unpack_sorted
from opal_lake.key_store.entries import Entries, no_entries, sorted_entries
from opal_lake.key_store.filter import may_hold, plan_filter
from opal_lake.key_store.run import (
    RunIndex,
    blocks_to_probe,
    decode_run,
    encode_run,
    open_index,
    read_blocks,
    reader_of,
)

WORDS = st.one_of(
    st.sampled_from([0, 1, (1 << 63) - 1, 1 << 63, (1 << 64) - 1]), st.integers(0, (1 << 64) - 1)
)
SIGNED = st.one_of(
    st.sampled_from([-(1 << 63), -(1 << 63) + 1, -1, 0, 1, (1 << 63) - 1]),
    st.integers(-(1 << 63), (1 << 63) - 1),
)
OFFSETS = st.one_of(st.sampled_from([0, (1 << 31) - 1]), st.integers(0, (1 << 31) - 1))


@pytest.fixture(params=[1, 2, 3, 64])
def block(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@st.composite
def drawn_entries(draw: st.DrawFn) -> Entries:
    count, ties = draw(st.integers(0, 40)), draw(st.integers(0, 3))

    def column(values: st.SearchStrategy[int], dtype: type[np.generic]) -> Any:
        same = draw(st.booleans())
        return np.array(
            [draw(values)] * count if same else [draw(values) for _ in range(count)], dtype
        )

    return sorted_entries(
        Entries(
            high=column(WORDS, np.uint64),
            low=column(WORDS, np.uint64),
            delta=column(SIGNED, np.int64),
            ties=tuple(column(SIGNED, np.int64) for _ in range(2 * ties)),
            segment=column(SIGNED, np.int64),
            offset=column(OFFSETS, np.int32),
            deleted=column(st.integers(0, 1), np.bool_),
        )
    )


def assert_same(actual: Entries, expected: Entries) -> None:
    assert len(actual.ties) == len(expected.ties)
    names = [part.name for part in fields(Entries) if part.name != "ties"]
    pairs = [(getattr(actual, name), getattr(expected, name)) for name in names]
    pairs += zip(actual.ties, expected.ties, strict=True)
    for actual_column, expected_column in pairs:
        assert actual_column.dtype == expected_column.dtype
        np.testing.assert_array_equal(actual_column, expected_column)


def random_entries(seed: int, count: int, words: int = 1 << 63) -> Entries:
    rng = np.random.default_rng(seed)
    return sorted_entries(
        Entries(
            high=rng.integers(0, words, count, np.uint64),
            low=rng.integers(0, 1 << 63, count, np.uint64),
            delta=rng.integers(-(1 << 40), 1 << 40, count),
            ties=(),
            segment=rng.integers(0, 9, count),
            offset=np.arange(count, dtype=np.int32),
            deleted=rng.random(count) < 0.1,
        )
    )


@pytest.mark.slow_but_one
@pytest.mark.parametrize("examples", [100, 300])
def test_decoded_entries_equal_the_encoded_ones(examples: int) -> None:
    """The fast tests have fewer examples than the slow ones."""
    drawn = given(
        entries=drawn_entries(),
        block=st.sampled_from([1, 2, 7, 64]),
        filter_from=st.sampled_from([1, 1 << 19]),
    )
    settings(max_examples=examples, deadline=None)(drawn(assert_decoded))()


def assert_decoded(entries: Entries, block: int, filter_from: int) -> None:
    data = encode_run(entries, block_entries=block, filter_from=filter_from)
    assert_same(decode_run(data, "a run"), entries)
    assert open_index(reader_of(data), "a run").size == len(data)
    decoded = decode_run(data, "a run")
    assert data == encode_run(decoded, block_entries=block, filter_from=filter_from)


@settings(max_examples=300, deadline=None)
@given(values=st.lists(SIGNED, min_size=1, max_size=20))
def test_columns_are_packed_whatever_their_distances(values: list[int]) -> None:
    """The distance of the least and the greatest 64-bit integer takes 64 bits."""
    column = np.array(values, np.int64)
    assert unpack(pack(column), len(values)).tolist() == values


@settings(max_examples=300, deadline=None)
@given(values=st.lists(WORDS, min_size=1, max_size=20).map(sorted))
def test_words_are_packed_whatever_their_steps(values: list[int]) -> None:
    assert unpack_sorted(pack_sorted(np.array(values, np.uint64)), len(values)).tolist() == values


def test_run_of_one_segment_takes_about_twenty_bytes_an_entry() -> None:
    entries = random_entries(1, 50_000)
    entries = Entries(
        high=entries.high,
        low=entries.low,
        delta=entries.delta % (1 << 30),
        ties=(),
        segment=np.full(50_000, 7),
        offset=np.random.default_rng(1).permutation(50_000).astype(np.int32),
        deleted=np.zeros(50_000, np.bool_),
    )
    assert len(encode_run(entries)) < 23 * 50_000


# Which blocks


def needed(index: RunIndex, entries: Entries, wanted: set[int]) -> set[int]:
    """Return the blocks that hold one of these first words."""
    blocks = range(len(index.directory))
    return {
        number
        for number in blocks
        if wanted & set(entries.high[number * index.block : (number + 1) * index.block].tolist())
    }


@pytest.mark.parametrize("seed", range(30))
def test_blocks_of_a_word_are_those_that_hold_it_and_at_most_one_more(
    seed: int, block: int
) -> None:
    """Words are equal to fences, before the first, after the last, and between."""
    entries = random_entries(seed, random.Random(seed).randint(1, 60), words=12)
    data = encode_run(entries, block_entries=block)
    index = open_index(reader_of(data), "a run")
    for word in range(14):
        blocks = index.blocks_of(np.array([word], np.uint64)).tolist()
        holding = needed(index, entries, {word})
        assert holding <= set(blocks)
        assert blocks == list(range(blocks[0], blocks[-1] + 1)) if blocks else not holding
        assert len(blocks) <= len(holding) + 1
        if word < entries.high[0]:
            assert blocks == []
        for high in range(word, 14):
            between = set(index.blocks_between(word, high))
            assert (
                needed(index, entries, set(range(word, high + 1)))
                <= between
                <= set(range(len(index.directory)))
            )
    assert index.block == block


def test_empty_run_has_no_blocks() -> None:
    data = encode_run(no_entries(2))
    index = open_index(reader_of(data), "a run")
    assert_same(decode_run(data, "a run"), no_entries(2))
    assert index.blocks_of(np.array([0, 5], np.uint64)).tolist() == []
    assert list(index.blocks_between(0, (1 << 64) - 1)) == []


def test_adjacent_blocks_are_read_with_one_request(block: int) -> None:
    entries = random_entries(3, 10 * block)
    data = encode_run(entries, block_entries=block)
    reads: list[int] = []

    def read(start: int, length: int) -> bytes:
        reads.append(start)
        return data[start : start + length]

    index = open_index(read, "a run")
    reads.clear()
    parts = list(read_blocks(index, read, np.array([1, 2, 3, 5, 8, 9])))
    assert len(reads) == 3
    for number, part in zip((1, 2, 3, 5, 8, 9), parts, strict=True):
        assert_same(part, entries.take(slice(number * block, (number + 1) * block)))


def test_directory_longer_than_the_first_read_is_read_completely() -> None:
    entries = random_entries(3, 3_000)
    assert_same(decode_run(encode_run(entries, block_entries=2), "a run"), entries)


def test_filter_leaves_out_blocks_but_never_a_needed_one(block: int) -> None:
    entries = random_entries(3, 2_000)
    data = encode_run(entries, block_entries=block, filter_from=1)
    reader = reader_of(data)
    index = open_index(reader, "a run")
    present = entries.take(np.arange(0, 2_000, 100))
    assert set((np.arange(0, 2_000, 100) // index.block).tolist()) <= set(
        blocks_to_probe(index, reader, present).tolist()
    )
    absent = random_entries(4, 2_000)
    assert len(blocks_to_probe(index, reader, absent)) <= len(index.blocks_of(absent.high))
    assert may_hold(plan_filter(entries.high, entries.low), entries.high, entries.low).all()
    assert may_hold(plan_filter(entries.high, entries.low), absent.high, absent.low).mean() < 0.05


# Damage


def test_change_of_any_byte_is_detected() -> None:
    """A reader of the whole run names it, whichever byte is changed."""
    data = encode_run(random_entries(3, 30), block_entries=8, filter_from=8)
    for at in range(len(data)):
        broken = bytearray(data)
        broken[at] ^= 1 << (at % 8)
        with pytest.raises(FormatError, match="a run is damaged"):
            decode_run(bytes(broken), "a run")
    for size in range(0, len(data), 5):
        with pytest.raises(FormatError, match="a run is damaged"):
            decode_run(data[:size], "a run")


def test_header_of_other_contents_with_a_valid_checksum_is_refused() -> None:
    for head in (b"{}", b"[]", b"null", b"not json", b'{"blocks": "x"}', b'{"blocks": -1}'):
        data = run_module._HEAD.pack(run_module.MAGIC, len(head), zlib.crc32(head)) + head
        with pytest.raises(FormatError, match="a run is damaged"):
            decode_run(data, "a run")
