"""Registration: events get their places at once where nobody else is giving places, and through the inbox where somebody is.

A producer that writes into the same PostgreSQL may register in a transaction of its own (`register_in`): its events appear when it commits.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from sqlalchemy import Connection, Text, insert, select, update
from sqlalchemy.sql.dml import ReturningInsert

from lakechime.answers import Outbox, Registered
from lakechime.errors import ConflictError, InvalidEventError
from lakechime.event import DataChangeEvent
from lakechime.store.database.engine import Database
from lakechime.store.database.recordset import recordset, rows_text
from lakechime.store.database.statements import types_of
from lakechime.store.rows import pending_of, registered_of, row_of, select_events
from lakechime.store.schema import CARRIED, events, inbox, positions
from lakechime.store.sequencer import Place, Sequencer

_COLUMNS = ("cluster", "name", "depth", "tag_keys", *CARRIED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Registration:
    """Of one call. Equal events in it are one row; the others are its duplicates."""

    database: Database
    sequencer: Sequencer
    given: Sequence[DataChangeEvent]
    outbox: Outbox | None = None

    def run(self) -> list[Registered]:
        rows = [row_of(event) for event in self.given]
        first = {row["dedup_key"]: number for number, row in reversed(list(enumerate(rows)))}
        wanted = {number: rows[number] for number in sorted(first.values())}
        placed = self.database.write(lambda connection: self._first(connection, wanted), repeatable=True)
        if isinstance(placed, dict):  # somebody else is giving places; these wait in the inbox
            inbox_ids = placed
            by_key = self.database.write(lambda connection: self._second(connection, inbox_ids), repeatable=True)
        else:
            by_key = dict(placed)
        return [
            by_key[row["dedup_key"]] if first[row["dedup_key"]] == number else replace(by_key[row["dedup_key"]], duplicate=True)
            for number, row in enumerate(rows)
        ]

    def _first(self, connection: Connection, rows: Mapping[int, dict[str, Any]]) -> dict[str, int] | list[tuple[str, Registered]]:
        check_depths(connection, self.sequencer, rows.values())
        if self.outbox is not None:
            _move_position(connection, self.outbox)
        if not rows:
            return []
        if not self.sequencer.try_lock(connection):
            return put_into_inbox(connection, list(rows.values()))
        head = self.sequencer.drain(connection)
        places = self.sequencer.place(connection, [pending_of(number, row) for number, row in rows.items()], head, rows)
        there = self._stored(connection, [place.pending.dedup_key for place in places if place.duplicate])
        return [(place.pending.dedup_key, self._answer(place, head.next_ts, there)) for place in places]

    def _answer(self, place: Place, event_ts: int, there: Mapping[str, Any]) -> Registered:
        if place.duplicate:
            return registered_of(there[place.pending.dedup_key], duplicate=True)
        return Registered(event=replace(self.given[place.pending.row], seq=place.seq, event_ts=event_ts), gap=place.gap)

    def _second(self, connection: Connection, inbox_ids: Mapping[str, int]) -> dict[str, Registered]:
        """Whoever had the lock before may have given these their places."""
        self.sequencer.lock(connection)
        self.sequencer.drain(connection)
        there = self._stored(connection, list(inbox_ids))
        return {key: registered_of(row, duplicate=row.inbox_id != inbox_ids[key]) for key, row in there.items()}

    def _stored(self, connection: Connection, keys: Sequence[str]) -> dict[str, Any]:
        if not keys:
            return {}
        rows = recordset(self.sequencer.dialect, "rows", {"dedup_key": Text()})
        chosen = select_events().where(events.c.dedup_key.in_(select(rows.c.dedup_key)))
        return {row.dedup_key: row for row in connection.execute(chosen, {"rows": rows_text({"dedup_key": key} for key in keys)})}


def register_in(connection: Connection, given: Sequence[DataChangeEvent]) -> None:
    """In the caller's transaction, and only there: the events appear when it commits, and get their places then.

    The caller may keep its transaction open: nobody waits for it.
    """
    rows = [row_of(event) for event in given]
    check_depths(connection, Sequencer(dialect=connection.dialect.name, clock=None), rows)
    if rows:
        put_into_inbox(connection, rows)


def put_into_inbox(connection: Connection, rows: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """Their ids, by what makes an event the same."""
    written = _inbox_statement(connection.dialect.name)
    return {row.dedup_key: row.id for row in connection.execute(written, {"rows": rows_text(rows)})}


@cache
def _inbox_statement(dialect: str) -> ReturningInsert[Any]:
    rows = recordset(dialect, "rows", types_of(_COLUMNS))
    chosen = select(*(rows.c[name] for name in _COLUMNS))
    return insert(inbox).from_select(list(_COLUMNS), chosen).returning(inbox.c.dedup_key, inbox.c.id)


def check_depths(connection: Connection, sequencer: Sequencer, rows: Any) -> None:
    """The first event with a partition fixes the number of levels of its table."""
    listed = [row for row in rows if row["depth"] is not None]
    if not listed:
        return
    known = sequencer.tables(connection, list(dict.fromkeys((row["cluster"], row["name"]) for row in listed)))
    depths = {name: depth for name, (_, depth) in known.items() if depth is not None}
    for row in listed:
        depth = depths.setdefault((row["cluster"], row["name"]), row["depth"])
        if depth != row["depth"]:
            raise InvalidEventError(
                f"partition {row['partition']} of {row['name']} has {row['depth']} levels, and the partitions of this table have {depth}; "
                f"name {depth} values, or leave the partition None"
            )


def _move_position(connection: Connection, outbox: Outbox) -> None:
    mine = (positions.c.cluster == outbox.cluster) & (positions.c.name == outbox.table)
    text = position_text(outbox.position)
    if outbox.expected is None:
        there = connection.execute(select(positions.c.position).where(mine)).first()
        moved = there is None and _inserted(connection, outbox, text)
    else:
        changed = update(positions).where(mine, positions.c.position == position_text(outbox.expected)).values(position=text)
        moved = connection.execute(changed).rowcount == 1
    if not moved:
        raise ConflictError(
            f"another producer moved the position of {outbox.table} meanwhile; read it again, and register what is missing after it"
        )


def _inserted(connection: Connection, outbox: Outbox, text: str) -> bool:
    values = {"cluster": outbox.cluster, "name": outbox.table, "position": text}
    return connection.execute(insert_or_ignore(connection, positions, values)).rowcount == 1


def insert_or_ignore(connection: Connection, table: Any, values: Mapping[str, Any]) -> Any:
    """Both databases know it, each by a construct of its own."""
    from sqlalchemy.dialects import postgresql, sqlite

    kind = postgresql if connection.dialect.name == "postgresql" else sqlite
    return kind.insert(table).values(**values).on_conflict_do_nothing()


def position_text(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))
