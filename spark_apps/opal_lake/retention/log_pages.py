"""Pages of the log at a retention (FORMAT, retention).

A retention deletes copies of expired commits. It also deletes pages that cannot be used, and pages
that a longer page replaces.
"""

from collections.abc import Iterable, Iterator

from opal_lake.log.pages import Page, PageRef, list_pages, read_pages, store_page, trimmed
from opal_lake.retention.garbage import Garbage
from opal_lake.storage.protocol import READERS, Storage

PAGES = "log_pages"
_REPLACED = "another page holds its versions"


def trim_pages(storage: Storage, table_id: str, oldest: int) -> None:
    """Store each page with copies of expired commits again, without these copies.

    `page_garbage` lists the old pages.
    """
    refs = [ref for ref in list_pages(storage, oldest + 1) if ref.first <= oldest]
    pages: list[Page] = []
    for _, page in _read(storage, table_id, refs):
        if page is None:
            continue
        fresh = trimmed(page, oldest)
        if not any(other.holds(fresh) for other in pages):
            pages.append(fresh)
    for page in pages:
        store_page(storage, page)


def page_garbage(storage: Storage, table_id: str, oldest: int) -> list[Garbage]:
    """Return the pages that no reader needs: expired, unusable and replaced ones.

    A page that shares no version with another page is not read: no page replaces it. If it cannot
    be used, readers do without it, and `opal check` reports it.
    """
    pages = list_pages(storage)
    expired = f"it holds copies of versions up to {oldest}, which have expired"
    garbage = [_garbage(ref, expired) for ref in pages if ref.first <= oldest]
    readable = [ref for ref in pages if ref.first > oldest]
    candidates: list[Page] = []  # sound pages that may hold all commits of the next page
    for ref, page in _read(storage, table_id, _overlapping(readable)):
        if page is None:
            garbage.append(_garbage(ref, "it is damaged, or of another table"))
            continue
        candidates = [other for other in candidates if other.last >= page.first]
        if any(other.holds(page) for other in candidates):
            garbage.append(_garbage(ref, _REPLACED))
        else:
            candidates.append(page)
    return garbage


def _overlapping(refs: Iterable[PageRef]) -> Iterator[PageRef]:
    """Yield the pages that share a version with another one."""
    ordered = sorted(refs, key=lambda ref: ref.first)
    reached = 0  # the last version of the pages before
    for index, ref in enumerate(ordered):
        has_follower = index + 1 < len(ordered)
        overlaps_follower = has_follower and ordered[index + 1].first <= ref.last
        if ref.first <= reached or overlaps_follower:
            yield ref
        reached = max(reached, ref.last)


def _read(
    storage: Storage, table_id: str, refs: Iterable[PageRef]
) -> Iterator[tuple[PageRef, Page | None]]:
    """Yield each ref with its page, or with None for an unusable page.

    A page comes before the shorter pages whose commits it may hold.
    """
    ordered = sorted(refs, key=lambda ref: (ref.first, -ref.last, -ref.size, ref.path))
    for begin in range(0, len(ordered), READERS):
        portion = ordered[begin : begin + READERS]
        yield from zip(portion, read_pages(storage, table_id, portion), strict=True)


def _garbage(ref: PageRef, why: str) -> Garbage:
    return Garbage(path=ref.path, size=ref.size, kind=PAGES, why=why)
