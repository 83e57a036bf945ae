"""Bitmaps for Spark: a list of 64-bit words for each segment, and the test of a row's bit.

A broadcast join on the segment adds the list to each row. Expressions use `get`, because checked
array access costs more. Spark shifts a word by the low six bits of the distance, so a shift by
`~offset` moves the row's bit to the sign.
"""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from opal_lake.definition.schema import OFFSET
from opal_lake.events.bitmap import Bitmaps, words_of
from opal_lake.log.snapshot import Snapshot

_NO_WORDS = np.zeros(0, np.int64)


def word_lists(bitmaps: Bitmaps, segments: Sequence[int], snapshot: Snapshot) -> pa.ListArray:
    """Return each segment's words; an empty list if none of its rows is marked."""
    words = [_NO_WORDS]
    lengths = [0]
    for segment in segments:
        segment_words = _NO_WORDS
        if segment in bitmaps:
            segment_words = words_of(bitmaps[segment], snapshot.segments[segment].rows)
        words.append(segment_words)
        lengths.append(len(segment_words))
    ends = np.cumsum(lengths).astype(np.int32)
    return pa.ListArray.from_arrays(ends, np.concatenate(words))


def rank_lists(bitmaps: Bitmaps, segments: Sequence[int], snapshot: Snapshot) -> pa.ListArray:
    """Return for each word how many rows are marked in its segment's earlier words."""
    words = word_lists(bitmaps, segments, snapshot)
    # The number of marked rows in each word; the words of all segments follow each other
    bits = np.bitwise_count(words.values.to_numpy().view(np.uint64))
    # The words of segment n are words.values[ends[n]:ends[n + 1]]
    ends = words.offsets.to_numpy()
    # The number of marked rows before each word, in all segments
    before = np.cumsum(bits, dtype=np.int64) - bits
    # For each word, the index of the first word of its segment
    starts = np.repeat(ends[:-1], np.diff(ends))
    ranks = (before - before[starts]).astype(np.int32)
    return pa.ListArray.from_arrays(words.offsets, pa.array(ranks))


def rank_of(words: str, ranks: str) -> str:
    """Return the SQL for how many rows of a segment are marked before a marked row.

    `words` and `ranks` are columns with the lists of `word_lists` and `rank_lists`.
    """
    word = f"shiftright({OFFSET}, 6)"
    return f"get({ranks}, {word}) + bit_count(shiftleft(get({words}, {word}), ~{OFFSET})) - 1"


def is_marked(words: str) -> str:
    """Return the condition that a row's bit is set in a column of words."""
    return f"{_bit_at_sign(words)} < 0L"


def is_not_marked(words: str) -> str:
    """Return the condition that a row's bit is not set in a column of words."""
    return f"{_bit_at_sign(words)} >= 0L"


def _bit_at_sign(words: str) -> str:
    return f"coalesce(shiftleft(get({words}, shiftright({OFFSET}, 6)), ~{OFFSET}), 0L)"
