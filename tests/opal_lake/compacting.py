"""A compaction as its job runs it, with a floor as an order word and files of any size."""

from typing import Any

from opal_lake.engine.open_table import OpenTable
from opal_lake.maintenance.compaction import Compaction
from opal_lake.operations.compact import Compact
from opal_lake.result import JobResult


def compact(
    table: OpenTable,
    *,
    floor: int | None = None,
    target_bytes: int | None = None,
    look_back: Any = None,
    **arguments: Any,
) -> JobResult:
    """Compact a table; with a floor or a look-back also drop history."""
    mode = "minor" if look_back is None else "major"
    asked = Compact(mode=mode, look_back=look_back, **arguments)
    return Compaction(table=table, asked=asked, floor=floor, target_bytes=target_bytes).run()
