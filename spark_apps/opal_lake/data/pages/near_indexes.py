"""Page indexes of the files that were read last: to decode a footer takes longer than some pages.

A commit holds the checksum of a footer, so that an index is right for every file with its path,
size and checksum.
"""

from collections.abc import Callable

from opal_lake.data.pages.page_index import MAX_FOOTER, PageIndex, decode_page_index
from opal_lake.data.recent import Recent
from opal_lake.data.segment import DataFile

MAX_BYTES = 16 << 20  # of footers; with their decoded forms they take six times as much

_Key = tuple[str, int, int, int]
_Indexes = Recent[_Key, PageIndex]


def indexes_up_to(max_bytes: int) -> _Indexes:
    """Return an empty memory of indexes."""
    # Otherwise each look-up in a file with a large footer would decode it again.
    return Recent(max_size=max_bytes, size_of=lambda index: len(index.tail), keeps_newest=True)


_near = indexes_up_to(MAX_BYTES)


def near_index(
    file: DataFile,
    read_footer: Callable[[], bytes],
    indexes: _Indexes | None = None,
    *,
    max_footer: int = MAX_FOOTER,
) -> PageIndex:
    """Return the page index of a file, by default from the memory of this process.

    `read_footer` returns a verified footer.
    """
    remembered = _near if indexes is None else indexes
    key = (file.path, file.size, file.footer_bytes, file.footer_crc32)
    return remembered.get(
        key, lambda: decode_page_index(read_footer(), file.size, max_footer=max_footer)
    )
