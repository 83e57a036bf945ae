"""The tables and folders below a folder, found by few listings."""

from collections.abc import Iterator

from opal_lake import layout
from opal_lake.storage.protocol import Storage

# After every character that a name can have: a listing from here on skips a folder
_LAST = chr(0x10FFFF)


def folders_of(storage: Storage, folder: str = "") -> Iterator[str]:
    """Yield the names of the folders in a folder, which is '' or ends with a slash.

    Each costs one listing of one object, however many files it has.
    """
    start_after = ""
    while True:
        entry = next(iter(storage.list(folder, start_after)), None)
        if entry is None:
            return
        name, slash, _ = entry.path[len(folder) :].partition("/")
        start_after = f"{folder}{name}"
        if slash:
            yield name
            start_after += f"/{_LAST}"


def is_table(storage: Storage, folder: str) -> bool:
    """Return whether a folder of a store, which ends with '/', has a table.

    One that is not finished yet, or is being dropped, counts: `head` of its log says so.
    """
    prefixes = (layout.LOG, layout.CHECKPOINTS)
    return any(any(storage.list(folder + prefix)) for prefix in prefixes)
