"""Files of a store that no version names, after a retention of all but the newest."""

import os
from pathlib import Path

from opal_lake import layout
from opal_lake.storage.local.publish import HIDDEN
from opal_lake.table import Table

_WORK = (layout.DATA, layout.SEGMENT_LOGS, layout.KEY_STORE)
_PASSING = (layout.REBUILD, layout.REJECTED)


def left_overs(table: Table, root: Path | None) -> list[str]:
    """Return the files of work that the newest version does not name, and those that it misses.

    Of a store in a folder, also hidden files. Of its own bookkeeping a retention leaves what the
    version before its commit needs.
    """
    head = table.snapshot_at()
    named = {file.path for part in (head.files, head.logs, head.runs) for file in part.values()}
    existing = {stored.path for prefix in _WORK for stored in table.storage.list(prefix)}
    passing = {stored.path for prefix in _PASSING for stored in table.storage.list(prefix)}
    findings = [f"left over: {path}" for path in sorted((existing - named) | passing)]
    findings += [f"missing: {path}" for path in sorted(named - existing)]
    if root is not None:
        findings += [f"hidden: {name}" for name in sorted(os.listdir(root / HIDDEN))]
    return findings
