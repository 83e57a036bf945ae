"""Files in a store that belong to no version, after a retention that kept only the newest ones."""

import os
from pathlib import Path

from opal_lake import layout
from opal_lake.storage.local.publish import HIDDEN
from opal_lake.table import Table

_WORK = (layout.DATA, layout.SEGMENT_LOGS, layout.KEY_STORE)
_PASSING = (layout.REBUILD, layout.REJECTED)


def left_overs(table: Table, root: Path | None) -> list[str]:
    """Files of work that the newest version does not name, and those that it misses; hidden ones of a store in a folder.

    Of its own bookkeeping a retention leaves what the version before its commit needs.
    """
    head = table.snapshot_at()
    named = {file.path for part in (head.files, head.logs, head.runs) for file in part.values()}
    there = {stored.path for prefix in _WORK for stored in table.storage.list(prefix)}
    passing = {stored.path for prefix in _PASSING for stored in table.storage.list(prefix)}
    found = [f"left over: {path}" for path in sorted((there - named) | passing)]
    found += [f"missing: {path}" for path in sorted(named - there)]
    if root is not None:
        found += [f"hidden: {name}" for name in sorted(os.listdir(root / HIDDEN))]
    return found
