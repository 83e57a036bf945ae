"""Old events go, in batches, and never one that somebody still waits for."""

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
        select(
            events.c.seq,
            events.c.event_ts,
            events.c.table_id,
            events.c.partition_key,
            events.c.tags,
            is_newest.label("newest"),
        )
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
        _note(connection, dialect, {row.table_id: (row.seq, row.event_ts) for row in gone})
        _note_partitions(connection, dialect, gone)
    return len(gone), found[-1].seq


def _note(connection: Connection, dialect: str, last: Mapping[int, tuple[int, int]]) -> None:
    """How far each table expired, by seq and time, and the whole store. Another retention beside this one may be further."""
    rows = recordset(dialect, "rows", {"id": LONG, "seq": LONG, "event_ts": LONG})
    # Joined from the rows: a subquery in SET would read all of them for each table
    noted = (
        update(tables)
        .where(tables.c.id == rows.c.id, tables.c.expired_seq < rows.c.seq)
        .values(expired_seq=rows.c.seq, expired_ts=rows.c.event_ts)
    )
    given = rows_text(
        {"id": table_id, "seq": seq, "event_ts": event_ts}
        for table_id, (seq, event_ts) in sorted(last.items())
    )
    connection.execute(noted, {"rows": given})
    greatest = max(seq for seq, _ in last.values())
    connection.execute(
        update(meta).where(meta.c.name == EXPIRED, meta.c.value < greatest).values(value=greatest)
    )


def _note_partitions(connection: Connection, dialect: str, gone: Sequence[Any]) -> None:
    """Which partitions had events: who waits for one of them hears that it was there."""
    last = {(row.table_id, row.partition_key): row.seq for row in gone if row.partition_key}
    if not last:
        return
    names = ("table_id", "partition_key", "expired_seq")
    types: Types = {"table_id": LONG, "partition_key": TEXT, "expired_seq": LONG}
    rows = recordset(dialect, "rows", types)
    # SQLite reads ON after a plain SELECT as that of a join
    chosen = select(*(rows.c[name] for name in names)).where(rows.c.expired_seq > 0)
    written = insert_into(connection, expired_partitions).from_select(list(names), chosen)
    noted = written.on_conflict_do_update(
        index_elements=["table_id", "partition_key"],
        set_={"expired_seq": written.excluded.expired_seq},
        where=expired_partitions.c.expired_seq < written.excluded.expired_seq,
    )
    given = rows_text(
        {"table_id": table_id, "partition_key": key, "expired_seq": seq}
        for (table_id, key), seq in sorted(last.items())
    )
    connection.execute(noted, {"rows": given})


def _delete(connection: Connection, dialect: str, gone: Sequence[Any]) -> None:
    """Each row of tags is found in the index of its whole key, not by looking at all of them."""
    keys = [
        {"table_id": row.table_id, "tag_key": key, "seq": row.seq}
        for row in gone
        for key in tag_keys(json.loads(row.tags))
    ]
    if keys:
        names = ("table_id", "tag_key", "seq")
        rows = recordset(dialect, "rows", {"table_id": LONG, "tag_key": TEXT, "seq": LONG})
        whole_key = tuple_(*(event_tags.c[name] for name in names))
        connection.execute(
            delete(event_tags).where(whole_key.in_(select(*(rows.c[name] for name in names)))),
            {"rows": rows_text(keys)},
        )
    rows = recordset(dialect, "rows", {"seq": LONG})
    connection.execute(
        delete(events).where(events.c.seq.in_(select(rows.c.seq))),
        {"rows": rows_text({"seq": row.seq} for row in gone)},
    )
