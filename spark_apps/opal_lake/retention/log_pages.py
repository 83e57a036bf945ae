"""Pages of the log at a retention (FORMAT, retention).

Copies of expired commits go, and so do pages that cannot be used or that a longer one replaces.
"""

from collections.abc import Iterable, Iterator

from opal_lake.log.pages import Page, PageRef, list_pages, read_pages, store_page, trimmed
from opal_lake.retention.garbage import Garbage
from opal_lake.storage.protocol import READERS, Storage

PAGES = "log_pages"
_REPLACED = "another page holds its versions"


def trim_pages(storage: Storage, table_id: str, oldest: int) -> None:
    """Store pages without copies of expired commits, for those that begin up to the oldest version.

    The pages that hold such copies are garbage then (`page_garbage`).
    """
    refs = [ref for ref in list_pages(storage, oldest + 1) if ref.first <= oldest]
    kept: list[Page] = []
    for _, page in _read(storage, table_id, refs):
        if page is None:
            continue
        fresh = trimmed(page, oldest)
        if not any(other.holds(fresh) for other in kept):
            kept.append(fresh)
    for page in kept:
        store_page(storage, page)


def page_garbage(storage: Storage, table_id: str, oldest: int) -> list[Garbage]:
    """Return the pages that no reader needs: expired, unusable and replaced ones.

    A page that shares no version with another is not read: nothing replaces it, and if it cannot
    be used, readers do without it and `opal check` names it.
    """
    pages = list_pages(storage)
    expired = f"it holds copies of versions up to {oldest}, which have expired"
    garbage = [_garbage(ref, expired) for ref in pages if ref.first <= oldest]
    overlapping: list[Page] = []  # sound ones that may hold all of the next one
    for ref, page in _read(
        storage, table_id, _overlapping([ref for ref in pages if ref.first > oldest])
    ):
        if page is None:
            garbage.append(_garbage(ref, "it is damaged, or of another table"))
            continue
        overlapping = [other for other in overlapping if other.last >= page.first]
        if any(other.holds(page) for other in overlapping):
            garbage.append(_garbage(ref, _REPLACED))
        else:
            overlapping.append(page)
    return garbage


def _overlapping(refs: Iterable[PageRef]) -> Iterator[PageRef]:
    """Return the pages that share a version with another one."""
    ordered = sorted(refs, key=lambda ref: ref.first)
    reached = 0  # the last version of the pages before
    for place, ref in enumerate(ordered):
        follower = ordered[place + 1] if place + 1 < len(ordered) else None
        if ref.first <= reached or (follower is not None and follower.first <= ref.last):
            yield ref
        reached = max(reached, ref.last)


def _read(
    storage: Storage, table_id: str, refs: Iterable[PageRef]
) -> Iterator[tuple[PageRef, Page | None]]:
    """Read pages, each before those that it may hold; None for those that cannot be used."""
    ordered = sorted(refs, key=lambda ref: (ref.first, -ref.last, -ref.size, ref.path))
    for begin in range(0, len(ordered), READERS):
        portion = ordered[begin : begin + READERS]
        yield from zip(portion, read_pages(storage, table_id, portion), strict=True)


def _garbage(ref: PageRef, why: str) -> Garbage:
    return Garbage(path=ref.path, size=ref.size, kind=PAGES, why=why)
