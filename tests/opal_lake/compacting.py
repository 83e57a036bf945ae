"""A compaction as its job runs it, with a floor as an order word and files of any size."""

from typing import Any

from opal_lake.engine.open_table import OpenTable
from opal_lake.maintenance.compaction import Archive, Compaction
from opal_lake.result import JobResult


def compact(
    table: OpenTable,
    *,
    archive_after: str | int | None = None,
    archive_codec: str | None = None,
    **arguments: Any,
) -> JobResult:
    """Compact a table; with a floor or a look-back also drop history."""
    archive = Archive.of(archive_after, archive_codec)
    return Compaction(table=table, archive=archive, **arguments).run()
