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

from lakechime.answers import Outbox, Registered, SeenPage
from lakechime.errors import ConflictError, InvalidEventError
from lakechime.event import DataChangeEvent
from lakechime.store.database.engine import Database, check_revision
from lakechime.store.database.recordset import insert_into, recordset, rows_text
from lakechime.store.database.statements import VERSIONS, types_of
from lakechime.store.digests import batch_key, item_key
from lakechime.store.put_aside import reasons_of
from lakechime.store.rows import pending_of, registered_of, row_of, select_events
from lakechime.store.schema import CARRIED, events, inbox, positions, seen
from lakechime.store.sequencer import Place, Sequencer

SEEN_PAGE = 10_000
_SEEN = ("cluster", "name", "item_key", "item", "value")
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
        placed = self.database.write(
            lambda connection: self._first(connection, wanted), repeatable=True
        )
        if isinstance(placed, dict):  # somebody else is giving places; these wait in the inbox
            inbox_ids = placed
            by_key, refused = self.database.write(
                lambda connection: self._second(connection, inbox_ids), repeatable=True
            )
            if refused:
                raise InvalidEventError(
                    f"{len(refused):,} of {len(rows):,} events were put aside and are not registered; the first, since {refused[0]}"
                )
        else:
            by_key = dict(placed)
        return [
            by_key[row["dedup_key"]]
            if first[row["dedup_key"]] == number
            else replace(by_key[row["dedup_key"]], duplicate=True)
            for number, row in enumerate(rows)
        ]

    def _first(
        self, connection: Connection, rows: Mapping[int, dict[str, Any]]
    ) -> dict[str, int] | list[tuple[str, Registered]]:
        has_new_levels = check_depths(connection, self.sequencer, rows.values())
        if self.outbox is not None and not _move_position(connection, self.outbox, self._batch):
            return self._again(connection, rows)
        if not rows:
            check_revision(connection.execute(select(VERSIONS.c.version_num)).scalar())
            return []
        if has_new_levels:  # who else brings the first partition is seen only under the lock
            self.sequencer.lock(connection)
        elif not self.sequencer.try_lock(connection):
            return put_into_inbox(connection, list(rows.values()))
        head = self.sequencer.drain(connection)
        if has_new_levels:
            check_depths(connection, self.sequencer, rows.values())
        places = self.sequencer.place(
            connection, [pending_of(number, row) for number, row in rows.items()], head, rows
        )
        there = self._stored(
            connection, [place.pending.dedup_key for place in places if place.duplicate]
        )
        return [
            (place.pending.dedup_key, self._answer(place, head.next_ts, there)) for place in places
        ]

    @property
    def _batch(self) -> str:
        assert self.outbox is not None
        events = [json.dumps(event.to_json(), sort_keys=True) for event in self.given]
        return batch_key(
            events, position_text(self.outbox.position), position_text(self.outbox.expected)
        )

    def _again(
        self, connection: Connection, rows: Mapping[int, dict[str, Any]]
    ) -> list[tuple[str, Registered]]:
        """This very step was done before, and its answer did not arrive: as it was, but that all are duplicates now."""
        self.sequencer.lock(connection)
        self.sequencer.drain(connection)
        there = self._stored(connection, [row["dedup_key"] for row in rows.values()])
        if len(there) < len(rows):
            raise ConflictError(
                f"these events of {self.given[0].table} were registered before, and some expired since; go on after the table's position"
            )
        return [(key, registered_of(row, duplicate=True)) for key, row in there.items()]

    def _answer(self, place: Place, event_ts: int, there: Mapping[str, Any]) -> Registered:
        if place.duplicate:
            return registered_of(there[place.pending.dedup_key], duplicate=True)
        return Registered(
            event=replace(self.given[place.pending.row], seq=place.seq, event_ts=event_ts),
            gap=place.gap,
        )

    def _second(
        self, connection: Connection, inbox_ids: Mapping[str, int]
    ) -> tuple[dict[str, Registered], list[str]]:
        """Whoever had the lock before may have given these their places. And why some of them got none."""
        self.sequencer.lock(connection)
        self.sequencer.drain(connection)
        there = self._stored(connection, list(inbox_ids))
        placed = {
            key: registered_of(row, duplicate=row.inbox_id != inbox_ids[key])
            for key, row in there.items()
        }
        missing = [inbox_id for key, inbox_id in inbox_ids.items() if key not in there]
        return placed, list(reasons_of(connection, missing).values()) if missing else []

    def _stored(self, connection: Connection, keys: Sequence[str]) -> dict[str, Any]:
        if not keys:
            return {}
        rows = recordset(self.sequencer.dialect, "rows", {"dedup_key": Text()})
        chosen = select_events().where(events.c.dedup_key.in_(select(rows.c.dedup_key)))
        return {
            row.dedup_key: row
            for row in connection.execute(
                chosen, {"rows": rows_text({"dedup_key": key} for key in keys)}
            )
        }


def register_in(connection: Connection, given: Sequence[DataChangeEvent]) -> None:
    """In the caller's transaction, and only there: the events appear when it commits, and get their places then.

    The caller may keep its transaction open: nobody waits for it.
    """
    rows = [row_of(event) for event in given]
    check_revision(connection.execute(select(VERSIONS.c.version_num)).scalar())
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
    return (
        insert(inbox).from_select(list(_COLUMNS), chosen).returning(inbox.c.dedup_key, inbox.c.id)
    )


def check_depths(connection: Connection, sequencer: Sequencer, rows: Any) -> bool:
    """The first event with a partition fixes the number of levels of its table. Whether one of these would."""
    listed = [row for row in rows if row["depth"] is not None]
    if not listed:
        return False
    known = sequencer.tables(
        connection, list(dict.fromkeys((row["cluster"], row["name"]) for row in listed))
    )
    depths = {name: depth for name, (_, depth) in known.items() if depth is not None}
    fixed = len(depths)
    for row in listed:
        depth = depths.setdefault((row["cluster"], row["name"]), row["depth"])
        if depth != row["depth"]:
            raise InvalidEventError(
                f"partition {row['partition']} of {row['name']} has {row['depth']} levels, and the partitions of this table have {depth}; "
                f"name {depth} values, or leave the partition None"
            )
    return len(depths) > fixed


def _move_position(connection: Connection, outbox: Outbox, batch: str) -> bool:
    """False: the same step moved it before."""
    mine = (positions.c.cluster == outbox.cluster) & (positions.c.name == outbox.table)
    text = position_text(outbox.position)
    if outbox.expected is None:
        there = connection.execute(select(positions.c.position).where(mine)).first()
        values = {"cluster": outbox.cluster, "name": outbox.table, "position": text, "batch": batch}
        written = insert_into(connection, positions).values(**values).on_conflict_do_nothing()
        moved = there is None and connection.execute(written).rowcount == 1
    else:
        changed = (
            update(positions)
            .where(mine, positions.c.position == position_text(outbox.expected))
            .values(position=text, batch=batch)
        )
        moved = connection.execute(changed).rowcount == 1
    if moved:
        write_seen(connection, outbox)
        return True
    if connection.execute(
        select(positions.c.name).where(
            mine, positions.c.position == text, positions.c.batch == batch
        )
    ).first():
        return False
    raise ConflictError(
        f"another producer moved the position of {outbox.table} meanwhile; read it again, and register what is missing after it"
    )


def position_text(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def write_seen(connection: Connection, outbox: Outbox) -> None:
    """In the transaction that moves the position, so that one producer at a time writes."""
    if not outbox.seen:
        return
    named = {"cluster": outbox.cluster, "name": outbox.table}
    given = [
        {**named, "item_key": item_key(item), "item": _text(item), "value": _text(value)}
        for item, value in outbox.seen.items()
    ]
    rows = recordset(connection.dialect.name, "rows", dict.fromkeys(_SEEN, Text()))
    # SQLite reads ON after a plain SELECT as that of a join
    written = insert_into(connection, seen).from_select(
        list(_SEEN), select(*(rows.c[name] for name in _SEEN)).where(rows.c.item_key != "")
    )
    changed = written.on_conflict_do_update(
        index_elements=["cluster", "name", "item_key"], set_={"value": written.excluded.value}
    )
    connection.execute(changed, {"rows": rows_text(given)})


def read_seen(connection: Connection, cluster: str, table: str, after: str) -> SeenPage:
    mine = (seen.c.cluster == cluster) & (seen.c.name == table) & (seen.c.item_key > after)
    chosen = (
        select(seen.c.item_key, seen.c.item, seen.c.value)
        .where(mine)
        .order_by(seen.c.item_key)
        .limit(SEEN_PAGE)
    )
    found = connection.execute(chosen).all()
    items = {json.loads(row.item): json.loads(row.value) for row in found}
    return SeenPage(items=items, next_after=found[-1].item_key if len(found) == SEEN_PAGE else None)


def _text(value: object) -> str:
    """In ASCII: paths may hold bytes that are no text."""
    return json.dumps(value, separators=(",", ":"))
