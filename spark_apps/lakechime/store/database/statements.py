"""What the sequencer asks and writes. Each statement is built once a dialect: building one costs more than running it."""

from collections.abc import Iterable
from functools import cache
from typing import Any

from sqlalchemy import (
    BigInteger,
    CompoundSelect,
    Delete,
    Insert,
    Select,
    Text,
    cast,
    column,
    delete,
    extract,
    func,
    insert,
    literal,
    literal_column,
    select,
    table,
    union_all,
)

from lakechime.store.database.recordset import FLAG, LONG, TEXT, recordset
from lakechime.store.schema import CARRIED, VERSION_TABLE, event_tags, events, inbox, meta, tables

HORIZON, EXPIRED = "time_horizon", "expired_seq"
DATABASE_CLOCK = cast(func.floor(extract("epoch", func.clock_timestamp()) * 1000), BigInteger)
VERSIONS = table(VERSION_TABLE, column("version_num", Text()))  # Alembic's own
_LONGS = {"seq", "event_ts", "table_id", "snapshot_ts", "id", "inbox_id", "depth"}
_PLACED = ("seq", "event_ts", "table_id", "gap")


def types_of(names: Iterable[str]) -> dict[str, Any]:
    return {name: LONG if name in _LONGS else FLAG if name == "gap" else TEXT for name in names}


@cache
def head_statement(*, with_clock: bool) -> Select[Any]:
    """Everything that the next place depends on, and whether the tables are still those that this client knows."""
    last = select(events.c.seq, events.c.event_ts).order_by(events.c.seq.desc()).limit(1).subquery()
    horizon = select(meta.c.value).where(meta.c.name == HORIZON).scalar_subquery()
    now = (DATABASE_CLOCK if with_clock else literal(0, type_=LONG)).label("now_ms")
    chosen = (
        select(last.c.seq).scalar_subquery().label("seq"),
        select(last.c.event_ts).scalar_subquery().label("event_ts"),
    )
    revision = select(VERSIONS.c.version_num).limit(1).scalar_subquery().label("revision")
    return select(
        *chosen,
        horizon.label("horizon"),
        select(inbox.c.id).exists().label("has_pending"),
        revision,
        now,
    )


@cache
def known_statement(dialect: str) -> CompoundSelect[Any]:
    """Rows of (kind, number, text, flag): 0 tables that have events, 1 snapshots and whether they are a gap, 2 events by their key."""
    of_tables = recordset(dialect, "of_tables", types_of(["id"]))
    of_snapshots = recordset(dialect, "of_snapshots", types_of(["table_id", "snapshot_id"]))
    of_keys = recordset(dialect, "of_keys", types_of(["dedup_key"]))
    there = select(events.c.seq).where(events.c.table_id == of_tables.c.id).exists()
    nothing, no_flag = literal_column("NULL", TEXT), literal_column("false", FLAG)
    same = (events.c.table_id == of_snapshots.c.table_id) & (
        events.c.snapshot_id == of_snapshots.c.snapshot_id
    )
    return union_all(
        select(literal_column("0"), of_tables.c.id, nothing, no_flag).where(there),
        select(literal_column("1"), events.c.table_id, events.c.snapshot_id, events.c.gap)
        .join_from(of_snapshots, events, same)
        .distinct(),
        select(literal_column("2"), events.c.seq, events.c.dedup_key, no_flag).join_from(
            of_keys, events, events.c.dedup_key == of_keys.c.dedup_key
        ),
    )


@cache
def tables_statement(dialect: str) -> Select[Any]:
    rows = recordset(dialect, "rows", types_of(["cluster", "name"]))
    named = (tables.c.cluster == rows.c.cluster) & (tables.c.name == rows.c.name)
    return select(tables.c.cluster, tables.c.name, tables.c.id, tables.c.depth).join_from(
        rows, tables, named
    )


@cache
def insert_statement(dialect: str) -> Insert:
    names = (*_PLACED, *CARRIED)
    rows = recordset(dialect, "rows", types_of(names))
    return insert(events).from_select(list(names), select(*(rows.c[name] for name in names)))


@cache
def move_statement(dialect: str) -> Insert:
    """From the inbox."""
    names = (*_PLACED, "inbox_id")
    rows = recordset(dialect, "rows", types_of(names))
    chosen = select(*(rows.c[name] for name in names), *(inbox.c[name] for name in CARRIED))
    return insert(events).from_select(
        [*names, *CARRIED], chosen.join_from(rows, inbox, inbox.c.id == rows.c.inbox_id)
    )


@cache
def delete_statement(dialect: str) -> Delete:
    rows = recordset(dialect, "rows", types_of(["id"]))
    return delete(inbox).where(inbox.c.id.in_(select(rows.c.id)))


@cache
def tags_statement(dialect: str) -> Insert:
    names = ("table_id", "tag_key", "seq")
    rows = recordset(dialect, "rows", types_of(names))
    return insert(event_tags).from_select(list(names), select(*(rows.c[name] for name in names)))
