"""Bitmaps for Spark: packed words, a list a segment, and the test of a row's bit. They come to the rows by a broadcast join on the segment.

`get` because checked array access costs more. A shift takes the low six bits of its distance, so that `~offset` brings the row's bit to
the sign.
"""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from opal_lake.definition.schema import OFFSET
from opal_lake.events.bitmap import Bitmaps, words_of
from opal_lake.log.snapshot import Snapshot

_NO_WORDS = np.zeros(0, np.int64)


def word_lists(bitmaps: Bitmaps, segments: Sequence[int], snapshot: Snapshot) -> pa.ListArray:
    """The words of each segment, none where no row is marked."""
    words = [
        words_of(bitmaps[s], snapshot.segments[s].rows) if s in bitmaps else _NO_WORDS
        for s in segments
    ]
    ends = np.cumsum([0, *map(len, words)]).astype(np.int32)
    return pa.ListArray.from_arrays(ends, np.concatenate(words) if words else _NO_WORDS)


def rank_lists(bitmaps: Bitmaps, segments: Sequence[int], snapshot: Snapshot) -> pa.ListArray:
    """Of each word of `word_lists`, how many rows of the segment are marked in the words before it."""
    words = word_lists(bitmaps, segments, snapshot)
    bits, ends = (
        np.bitwise_count(words.values.to_numpy().view(np.uint64)).astype(np.int32),
        words.offsets.to_numpy(),
    )
    before = np.cumsum(np.concatenate([np.zeros(1, np.int32), bits]), dtype=np.int64)[:-1]
    first = np.repeat(
        before[np.minimum(ends[:-1], max(len(before) - 1, 0))] if len(before) else ends[:-1],
        np.diff(ends),
    )
    return pa.ListArray.from_arrays(words.offsets, pa.array((before - first).astype(np.int32)))


def rank_of(words: str, ranks: str) -> str:
    """Of a marked row: how many rows of its segment are marked before it."""
    word = f"shiftright({OFFSET}, 6)"
    return f"get({ranks}, {word}) + bit_count(shiftleft(get({words}, {word}), ~{OFFSET})) - 1"


def is_marked(words: str) -> str:
    """Whether the row's bit is set in a column of words."""
    return f"{_bit_at_sign(words)} < 0L"


def is_not_marked(words: str) -> str:
    return f"{_bit_at_sign(words)} >= 0L"


def _bit_at_sign(words: str) -> str:
    return f"coalesce(shiftleft(get({words}, shiftright({OFFSET}, 6)), ~{OFFSET}), 0L)"
