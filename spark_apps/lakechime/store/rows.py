"""Events as rows, and rows as events."""

import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from sqlalchemy import Row, Select, select

from lakechime.answers import Registered
from lakechime.event import DataChangeEvent, OperationType, TableFormat, kept_event, partition_text
from lakechime.store.digests import dedup_key, partition_key, tag_keys
from lakechime.store.schema import events, tables
from lakechime.store.sequencer import Pending, tags_text


def row_of(event: DataChangeEvent) -> dict[str, Any]:
    """As the inbox has it."""
    return {
        "cluster": event.cluster,
        "name": event.table,
        "dedup_key": dedup_key(event),
        "partition": None if event.partition is None else partition_text(event.partition),
        "partition_key": None if event.partition is None else partition_key(event.partition),
        "depth": None if event.partition is None else len(event.partition),
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
    """Whole events; `registered_of` reads them."""
    return select(events, tables.c.cluster, tables.c.name).join_from(
        events, tables, tables.c.id == events.c.table_id
    )


def registered_of(row: Row[Any], *, duplicate: bool = False) -> Registered:
    kept = row._mapping  # noqa: SLF001  # the name that SQLAlchemy documents
    values = {
        **kept,
        "table": kept["name"],
        "partition": None if kept["partition"] is None else tuple(json.loads(kept["partition"])),
        "table_format": TableFormat(kept["table_format"]),
        "operation_type": OperationType(kept["operation_type"]),
        "tags": MappingProxyType(json.loads(kept["tags"])),
    }
    return Registered(event=kept_event(values), duplicate=duplicate, gap=bool(kept["gap"]))
