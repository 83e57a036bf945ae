"""The statements of the sequencer.

Each is built once for each dialect, because building a statement costs more than running it.
"""

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
    return {name: _type_of(name) for name in names}


def _type_of(name: str) -> Any:
    if name in _LONGS:
        return LONG
    return FLAG if name == "gap" else TEXT


@cache
def head_statement(*, with_clock: bool) -> Select[Any]:
    """Return the query of the fields of a `Head`.

    It includes the revision of the tables, which another client may have upgraded.
    """
    last = select(events.c.seq, events.c.event_ts).order_by(events.c.seq.desc()).limit(1).subquery()
    horizon = select(meta.c.value).where(meta.c.name == HORIZON).scalar_subquery()
    revision = select(VERSIONS.c.version_num).limit(1).scalar_subquery()
    now = DATABASE_CLOCK if with_clock else literal(0, type_=LONG)
    return select(
        select(last.c.seq).scalar_subquery().label("seq"),
        select(last.c.event_ts).scalar_subquery().label("event_ts"),
        horizon.label("horizon"),
        select(inbox.c.id).exists().label("has_pending"),
        revision.label("revision"),
        now.label("now_ms"),
    )


@cache
def known_statement(dialect: str) -> CompoundSelect[Any]:
    """Return the query of the facts in `Known`, as rows (kind, number, text, flag).

    Kind 0: (0, id of a table with events, null, false).
    Kind 1: (1, id of a table, stored snapshot, whether it is a gap).
    Kind 2: (2, seq of a stored event, its dedup key, false).
    """
    of_tables = recordset(dialect, "of_tables", types_of(["id"]))
    of_snapshots = recordset(dialect, "of_snapshots", types_of(["table_id", "snapshot_id"]))
    of_keys = recordset(dialect, "of_keys", types_of(["dedup_key"]))
    no_text, no_flag = literal_column("NULL", TEXT), literal_column("false", FLAG)

    has_events = select(events.c.seq).where(events.c.table_id == of_tables.c.id).exists()
    table_facts = select(literal_column("0"), of_tables.c.id, no_text, no_flag)
    tables_with_events = table_facts.where(has_events)
    is_same_table = events.c.table_id == of_snapshots.c.table_id
    is_same_snapshot = is_same_table & (events.c.snapshot_id == of_snapshots.c.snapshot_id)
    known_snapshots = (
        select(literal_column("1"), events.c.table_id, events.c.snapshot_id, events.c.gap)
        .join_from(of_snapshots, events, is_same_snapshot)
        .distinct()
    )
    is_same_event = events.c.dedup_key == of_keys.c.dedup_key
    event_facts = select(literal_column("2"), events.c.seq, events.c.dedup_key, no_flag)
    known_events = event_facts.join_from(of_keys, events, is_same_event)
    return union_all(tables_with_events, known_snapshots, known_events)


@cache
def tables_statement(dialect: str) -> Select[Any]:
    rows = recordset(dialect, "rows", types_of(["cluster", "name"]))
    is_named = (tables.c.cluster == rows.c.cluster) & (tables.c.name == rows.c.name)
    facts = select(tables.c.cluster, tables.c.name, tables.c.id, tables.c.depth)
    return facts.join_from(rows, tables, is_named)


@cache
def insert_statement(dialect: str) -> Insert:
    names = (*_PLACED, *CARRIED)
    rows = recordset(dialect, "rows", types_of(names))
    chosen = select(*(rows.c[name] for name in names))
    return insert(events).from_select(list(names), chosen)


@cache
def move_statement(dialect: str) -> Insert:
    """Return the statement that copies events from the inbox."""
    names = (*_PLACED, "inbox_id")
    rows = recordset(dialect, "rows", types_of(names))
    placed = [rows.c[name] for name in names]
    carried = [inbox.c[name] for name in CARRIED]
    chosen = select(*placed, *carried).join_from(rows, inbox, inbox.c.id == rows.c.inbox_id)
    return insert(events).from_select([*names, *CARRIED], chosen)


@cache
def delete_statement(dialect: str) -> Delete:
    rows = recordset(dialect, "rows", types_of(["id"]))
    return delete(inbox).where(inbox.c.id.in_(select(rows.c.id)))


@cache
def tags_statement(dialect: str) -> Insert:
    names = ("table_id", "tag_key", "seq")
    rows = recordset(dialect, "rows", types_of(names))
    chosen = select(*(rows.c[name] for name in names))
    return insert(event_tags).from_select(list(names), chosen)
