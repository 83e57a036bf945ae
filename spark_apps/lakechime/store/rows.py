"""Events as rows, and rows as events."""

import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from sqlalchemy import Row, Select, select

from lakechime.answers import Registered
from lakechime.event import (
    DataChangeEvent,
    OperationType,
    TableFormat,
    partition_text,
    stored_event,
)
from lakechime.store.digests import dedup_key, optional_partition_key, tag_keys
from lakechime.store.schema import events, tables
from lakechime.store.sequencer import Pending, tags_text


def row_of(event: DataChangeEvent) -> dict[str, Any]:
    """Return an event as a row of the inbox."""
    partition = event.partition
    return {
        "cluster": event.cluster,
        "name": event.table,
        "dedup_key": dedup_key(event),
        "partition": None if partition is None else partition_text(partition),
        "partition_key": optional_partition_key(partition),
        "depth": None if partition is None else len(partition),
        "snapshot_id": event.snapshot_id,
        "snapshot_ts": event.snapshot_ts,
        "prev_snapshot_id": event.prev_snapshot_id,
        "table_format": str(event.table_format),
        "operation_type": str(event.operation_type),
        "tags": tags_text(event.tags),
        "tag_keys": " ".join(tag_keys(event.tags)),
    }


def pending_of(number: int, row: Mapping[str, Any]) -> Pending:
    return Pending(
        row=number,
        table=(row["cluster"], row["name"]),
        dedup_key=row["dedup_key"],
        snapshot_id=row["snapshot_id"],
        prev_snapshot_id=row["prev_snapshot_id"],
        depth=row["depth"],
        tag_keys=row["tag_keys"].split(),
    )


def select_events() -> Select[Any]:
    """Return a query of whole events, whose rows `registered_of` reads."""
    return select(events, tables.c.cluster, tables.c.name).join_from(
        events, tables, tables.c.id == events.c.table_id
    )


def registered_of(row: Row[Any], *, duplicate: bool = False) -> Registered:
    columns = row._mapping  # noqa: SLF001  # the name that SQLAlchemy documents
    partition = columns["partition"]
    values = {
        **columns,
        "table": columns["name"],
        "partition": None if partition is None else tuple(json.loads(partition)),
        "table_format": TableFormat(columns["table_format"]),
        "operation_type": OperationType(columns["operation_type"]),
        "tags": MappingProxyType(json.loads(columns["tags"])),
    }
    return Registered(event=stored_event(values), duplicate=duplicate, gap=bool(columns["gap"]))
