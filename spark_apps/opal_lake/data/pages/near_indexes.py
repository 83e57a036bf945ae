"""A cache of page indexes: to decode a footer takes longer than to decode a few pages.

A commit holds the checksum of a file's footer. So a cached index is right for every file with the
same path, size and checksum.
"""

from collections.abc import Callable

from opal_lake.data.pages.page_index import MAX_FOOTER, PageIndex, decode_page_index
from opal_lake.data.recent import Recent
from opal_lake.data.segment import DataFile

MAX_BYTES = 16 << 20  # of footers; with their decoded forms they take six times as much memory

_Key = tuple[str, int, int, int]
_Indexes = Recent[_Key, PageIndex]


def indexes_up_to(max_bytes: int) -> _Indexes:
    """Return an empty cache of page indexes."""
    # Without `keeps_newest`, each look-up in a file with a large footer would decode it again.
    return Recent(max_size=max_bytes, size_of=lambda index: len(index.tail), keeps_newest=True)


_near = indexes_up_to(MAX_BYTES)


def near_index(
    file: DataFile,
    read_footer: Callable[[], bytes],
    indexes: _Indexes | None = None,
    *,
    max_footer: int = MAX_FOOTER,
) -> PageIndex:
    """Return the page index of a file from a cache, by default that of this process.

    If the cache lacks it, the index is decoded from the verified footer of `read_footer`.
    """
    remembered = _near if indexes is None else indexes
    key = (file.path, file.size, file.footer_bytes, file.footer_crc32)
    return remembered.get(
        key, lambda: decode_page_index(read_footer(), file.size, max_footer=max_footer)
    )
