"""Indexes of pages of the files that were read last: to take a footer apart takes longer than to read a few pages.

A commit vouches for a footer by its checksum, so that an index is right for every file of its description.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable

from opal_lake.data.pages.page_index import PageIndex, decode_page_index
from opal_lake.data.segment import DataFile

MOST_BYTES = 16 << 20  # of footers; with what is made of them they take six times as much

_Key = tuple[str, int, int, int]

_lock = threading.Lock()
_near: OrderedDict[_Key, PageIndex] = OrderedDict()


def near_index(file: DataFile, read_footer: Callable[[], bytes]) -> PageIndex:
    """Of a Parquet file; what `read_footer` gives is verified."""
    key = (file.path, file.size, file.footer_bytes, file.footer_crc32)
    with _lock:
        known = _near.get(key)
        if known is not None:
            _near.move_to_end(key)
            return known
    made = decode_page_index(read_footer(), file.size)
    with _lock:
        _near[key] = made
        while len(_near) > 1 and sum(len(index.tail) for index in _near.values()) > MOST_BYTES:
            _near.popitem(last=False)
    return made
