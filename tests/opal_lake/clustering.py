"""A Z-order as its job runs it, with files of any size."""

from collections.abc import Sequence
from typing import Any

from opal_lake.definition.schema import Field
from opal_lake.engine.open_table import OpenTable
from opal_lake.maintenance import zorder as job
from opal_lake.operations.zorder import ZOrder
from opal_lake.result import JobResult


def zorder(
    table: OpenTable,
    columns: Sequence[Field],
    *,
    target_bytes: int | None = None,
    **arguments: Any,
) -> JobResult:
    """Cluster a table by some of its columns."""
    asked = ZOrder([field.name for field in columns], **arguments)
    return job.zorder(table, asked, target_bytes=target_bytes)
