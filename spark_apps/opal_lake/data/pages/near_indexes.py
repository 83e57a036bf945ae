"""Indexes of pages of the files that were read last: to take a footer apart takes longer than to read a few pages.

A commit vouches for a footer by its checksum, so that an index is right for every file of its description.
"""

from collections.abc import Callable

from opal_lake.data.pages.page_index import PageIndex, decode_page_index
from opal_lake.data.recent import Recent
from opal_lake.data.segment import DataFile

MAX_BYTES = 16 << 20  # of footers; with what is made of them they take six times as much

_Key = tuple[str, int, int, int]
_Indexes = Recent[_Key, PageIndex]


def indexes_up_to(max_bytes: int) -> _Indexes:
    """Return an empty memory of indexes."""
    # Look-ups in one file with a large footer would otherwise take it apart each time
    return Recent(max_size=max_bytes, size_of=lambda index: len(index.tail), keeps_newest=True)


_near = indexes_up_to(MAX_BYTES)


def near_index(
    file: DataFile, read_footer: Callable[[], bytes], indexes: _Indexes | None = None
) -> PageIndex:
    """Of a Parquet file; what `read_footer` gives is verified. By default the process remembers it."""
    known = _near if indexes is None else indexes
    key = (file.path, file.size, file.footer_bytes, file.footer_crc32)
    return known.get(key, lambda: decode_page_index(read_footer(), file.size))
