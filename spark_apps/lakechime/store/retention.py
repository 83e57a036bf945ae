"""The deletion of old events in batches. An event that a consumer has not passed stays."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, delete, func, select, tuple_, update

from lakechime.store.database.recordset import (
    LONG,
    TEXT,
    Types,
    insert_into,
    recordset,
    rows_text,
)
from lakechime.store.database.statements import EXPIRED
from lakechime.store.digests import tag_keys
from lakechime.store.schema import event_tags, events, expired_partitions, meta, tables
from lakechime.store.watermarks import read_consumers


def last_expirable(connection: Connection, older_than_ms: int, *, keep_unseen: bool) -> int:
    """Return the greatest seq that may be deleted."""
    first_recent = (
        select(events.c.seq)
        .where(events.c.event_ts >= older_than_ms)
        .order_by(events.c.event_ts, events.c.seq)
        .limit(1)
    )
    first_kept = connection.execute(first_recent).scalar()
    if first_kept is None:
        newest = select(func.coalesce(func.max(events.c.seq), 0))
        last = int(connection.execute(newest).scalar_one())
    else:
        last = int(first_kept) - 1
    if not keep_unseen:
        return last
    consumers = read_consumers(connection)
    if not consumers:
        return last
    furthest_behind = consumers[0]
    return min(last, furthest_behind.seq)


def expire_batch(
    connection: Connection, dialect: str, span: tuple[int, int], batch_size: int
) -> tuple[int, int]:
    """Delete at most `batch_size` events with after < seq <= last.

    Returns (number of deleted events, seq after which the next batch begins). The newest event of
    each table stays, so that the next event finds its predecessor.
    """
    after, last = span
    newer = events.alias("newer")
    has_newer = (
        select(newer.c.seq)
        .where(newer.c.table_id == events.c.table_id, newer.c.seq > events.c.seq)
        .exists()
    )
    chosen = (
        select(
            events.c.seq,
            events.c.event_ts,
            events.c.table_id,
            events.c.partition_key,
            events.c.tags,
            (~has_newer).label("newest"),
        )
        .where(events.c.seq > after, events.c.seq <= last)
        .order_by(events.c.seq)
        .limit(batch_size)
    )
    rows = connection.execute(chosen).all()
    if not rows:
        return 0, last
    expired = [row for row in rows if not row.newest]
    if expired:
        _delete(connection, dialect, expired)
        # Rows ascend by seq, so the last one of a table counts
        last_of_tables = {row.table_id: (row.seq, row.event_ts) for row in expired}
        _record(connection, dialect, last_of_tables)
        _record_partitions(connection, dialect, expired)
    return len(expired), rows[-1].seq


def _record(connection: Connection, dialect: str, last: Mapping[int, tuple[int, int]]) -> None:
    """Record the last expired (seq, time) of each table, and the greatest seq of all."""
    rows = recordset(dialect, "rows", {"id": LONG, "seq": LONG, "event_ts": LONG})
    # Another process that expires events may be further: a greater seq stays.
    # Joined from the rows: a subquery in SET would read all of them for each table.
    recorded = (
        update(tables)
        .where(tables.c.id == rows.c.id, tables.c.expired_seq < rows.c.seq)
        .values(expired_seq=rows.c.seq, expired_ts=rows.c.event_ts)
    )
    entries: list[dict[str, int]] = []
    for table_id, (seq, event_ts) in sorted(last.items()):
        entries.append({"id": table_id, "seq": seq, "event_ts": event_ts})
    connection.execute(recorded, {"rows": rows_text(entries)})
    greatest = max(seq for seq, _ in last.values())
    is_lower = (meta.c.name == EXPIRED) & (meta.c.value < greatest)
    connection.execute(update(meta).where(is_lower).values(value=greatest))


def _record_partitions(connection: Connection, dialect: str, expired: Sequence[Any]) -> None:
    """Record the partitions of expired events.

    A consumer that waits for such a partition learns that it was registered.
    """
    last: dict[tuple[int, str], int] = {}  # greatest seq by (table id, partition key)
    for row in expired:
        if row.partition_key:
            last[row.table_id, row.partition_key] = row.seq
    if not last:
        return
    names = ("table_id", "partition_key", "expired_seq")
    types: Types = {"table_id": LONG, "partition_key": TEXT, "expired_seq": LONG}
    rows = recordset(dialect, "rows", types)
    # The condition is always true: SQLite reads ON after a plain SELECT as that of a join
    chosen = select(*(rows.c[name] for name in names)).where(rows.c.expired_seq > 0)
    inserted = insert_into(connection, expired_partitions).from_select(list(names), chosen)
    upserted = inserted.on_conflict_do_update(
        index_elements=["table_id", "partition_key"],
        set_={"expired_seq": inserted.excluded.expired_seq},
        where=expired_partitions.c.expired_seq < inserted.excluded.expired_seq,
    )
    entries: list[dict[str, Any]] = []
    for (table_id, key), seq in sorted(last.items()):
        entries.append({"table_id": table_id, "partition_key": key, "expired_seq": seq})
    connection.execute(upserted, {"rows": rows_text(entries)})


def _delete(connection: Connection, dialect: str, expired: Sequence[Any]) -> None:
    """Delete events and their tags."""
    tag_rows: list[dict[str, Any]] = []
    for row in expired:
        for key in tag_keys(json.loads(row.tags)):
            tag_row = {"table_id": row.table_id, "tag_key": key, "seq": row.seq}
            tag_rows.append(tag_row)
    if tag_rows:
        names = ("table_id", "tag_key", "seq")
        rows = recordset(dialect, "rows", {"table_id": LONG, "tag_key": TEXT, "seq": LONG})
        # By the whole key, so that the index finds it: a part of the key would scan all tags
        whole_key = tuple_(*(event_tags.c[name] for name in names))
        keys = select(*(rows.c[name] for name in names))
        connection.execute(
            delete(event_tags).where(whole_key.in_(keys)), {"rows": rows_text(tag_rows)}
        )
    rows = recordset(dialect, "rows", {"seq": LONG})
    deleted = delete(events).where(events.c.seq.in_(select(rows.c.seq)))
    connection.execute(deleted, {"rows": rows_text({"seq": row.seq} for row in expired)})
