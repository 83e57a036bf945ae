"""Old events go, in batches, and never one that somebody still waits for."""

import json
from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection, case, delete, func, select, update

from lakechime.store.database.recordset import LONG, TEXT, recordset, rows_text
from lakechime.store.database.statements import EXPIRED
from lakechime.store.digests import tag_keys
from lakechime.store.schema import event_tags, events, meta, tables
from lakechime.store.watermarks import read_consumers

BATCH = 1_000


def last_expirable(connection: Connection, older_than_ms: int, *, keep_unseen: bool) -> int:
    """The greatest seq that may go."""
    first_kept = (
        select(events.c.seq)
        .where(events.c.event_ts >= older_than_ms)
        .order_by(events.c.event_ts, events.c.seq)
        .limit(1)
    )
    kept = connection.execute(first_kept).scalar()
    last = (
        connection.execute(select(func.coalesce(func.max(events.c.seq), 0))).scalar_one()
        if kept is None
        else kept - 1
    )
    if keep_unseen:
        last = min([last, *(consumer.seq for consumer in read_consumers(connection)[:1])])
    return int(last)


def expire_batch(connection: Connection, dialect: str, span: tuple[int, int]) -> tuple[int, int]:
    """Of the events with after < seq <= last: how many went, and the seq to go on after. The newest of each table stays, so that the next
    event finds its predecessor.
    """
    after, last = span
    newer = events.alias("newer")
    is_newest = (
        ~select(newer.c.seq)
        .where(newer.c.table_id == events.c.table_id, newer.c.seq > events.c.seq)
        .exists()
    )
    chosen = (
        select(events.c.seq, events.c.table_id, events.c.tags, is_newest.label("newest"))
        .where(events.c.seq > after, events.c.seq <= last)
        .order_by(events.c.seq)
        .limit(BATCH)
    )
    found = connection.execute(chosen).all()
    if not found:
        return 0, last
    gone = [row for row in found if not row.newest]
    if gone:
        _delete(connection, dialect, gone)
        _note(connection, dialect, {row.table_id: row.seq for row in gone})
    return len(gone), found[-1].seq


def _note(connection: Connection, dialect: str, last: Mapping[int, int]) -> None:
    """How far each table expired, and the whole store. Another retention beside this one may be further."""
    rows = recordset(dialect, "rows", {"id": LONG, "seq": LONG})
    mine = select(rows.c.seq).where(rows.c.id == tables.c.id).scalar_subquery()
    further = case((tables.c.expired_seq > mine, tables.c.expired_seq), else_=mine)
    given = rows_text({"id": table_id, "seq": seq} for table_id, seq in sorted(last.items()))
    connection.execute(
        update(tables).where(tables.c.id.in_(select(rows.c.id))).values(expired_seq=further),
        {"rows": given},
    )
    greatest = max(last.values())
    connection.execute(
        update(meta).where(meta.c.name == EXPIRED, meta.c.value < greatest).values(value=greatest)
    )


def _delete(connection: Connection, dialect: str, gone: list[Any]) -> None:
    keys = [
        {"table_id": row.table_id, "tag_key": key, "seq": row.seq}
        for row in gone
        for key in tag_keys(json.loads(row.tags))
    ]
    if keys:
        rows = recordset(dialect, "rows", {"table_id": LONG, "tag_key": TEXT, "seq": LONG})
        same = (
            (event_tags.c.table_id == rows.c.table_id)
            & (event_tags.c.tag_key == rows.c.tag_key)
            & (event_tags.c.seq == rows.c.seq)
        )
        connection.execute(
            delete(event_tags).where(select(rows.c.seq).where(same).exists()),
            {"rows": rows_text(keys)},
        )
    rows = recordset(dialect, "rows", {"seq": LONG})
    connection.execute(
        delete(events).where(events.c.seq.in_(select(rows.c.seq))),
        {"rows": rows_text({"seq": row.seq} for row in gone)},
    )
