"""Pages of the log at a retention: copies of expired commits go, and pages that a longer one replaces (FORMAT, retention)."""

from opal_lake.log.pages import list_pages, read_page, store_page, superseded, trimmed
from opal_lake.retention.garbage import Garbage
from opal_lake.storage.protocol import Storage

PAGES = "log_pages"


def trim_pages(storage: Storage, oldest: int) -> None:
    """Store pages without copies of expired commits, for those that begin before the oldest version ends.

    The pages that hold such copies are garbage then (`page_garbage`).
    """
    pages = list_pages(storage, oldest + 1)
    for ref in sorted({*pages} - superseded(pages), key=lambda ref: ref.first):
        if ref.first > oldest:
            continue
        page = read_page(storage, ref)
        if page is not None:
            store_page(storage, trimmed(page, oldest))


def page_garbage(storage: Storage, oldest: int) -> list[Garbage]:
    """Return the pages that hold copies of expired commits, and those whose versions another one holds."""
    pages = list_pages(storage)
    current = [ref for ref in pages if ref.first > oldest]
    replaced = superseded(current)
    garbage = []
    for ref in pages:
        why = ""
        if ref.first <= oldest:
            why = f"it holds copies of versions up to {oldest}, which have expired"
        elif ref in replaced:
            why = "another page holds its versions"
        if why:
            garbage.append(Garbage(path=ref.path, size=ref.size, kind=PAGES, why=why))
    return garbage
