"""Bitmaps for Spark: packed words, a list a segment, and the test of a row's bit.

They come to the rows by a broadcast join on the segment. Expressions use `get`, because checked
array access costs more. A shift takes the low six bits of its distance, so `~offset` brings the
row's bit to the sign.
"""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from opal_lake.definition.schema import OFFSET
from opal_lake.events.bitmap import Bitmaps, words_of
from opal_lake.log.snapshot import Snapshot

_NO_WORDS = np.zeros(0, np.int64)


def word_lists(bitmaps: Bitmaps, segments: Sequence[int], snapshot: Snapshot) -> pa.ListArray:
    """Return the words of each segment, an empty list if none of its rows is marked."""
    words = [_NO_WORDS]
    lengths = [0]
    for segment in segments:
        of_segment = _NO_WORDS
        if segment in bitmaps:
            of_segment = words_of(bitmaps[segment], snapshot.segments[segment].rows)
        words.append(of_segment)
        lengths.append(len(of_segment))
    ends = np.cumsum(lengths).astype(np.int32)
    return pa.ListArray.from_arrays(ends, np.concatenate(words))


def rank_lists(bitmaps: Bitmaps, segments: Sequence[int], snapshot: Snapshot) -> pa.ListArray:
    """Return for each word how many rows of its segment are marked in words before."""
    words = word_lists(bitmaps, segments, snapshot)
    bits = np.bitwise_count(words.values.to_numpy().view(np.uint64))
    ends = words.offsets.to_numpy()
    # Marked rows before each word, of all segments
    before = np.cumsum(bits, dtype=np.int64) - bits
    # The same before the first word of its segment. An empty segment has no word to look at
    starts = np.repeat(ends[:-1], np.diff(ends))
    ranks = (before - before[starts]).astype(np.int32)
    return pa.ListArray.from_arrays(words.offsets, pa.array(ranks))


def rank_of(words: str, ranks: str) -> str:
    """Return the number of rows of a segment that are marked before a marked row."""
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
