"""Registration: an event gets its seq immediately, or first waits in the inbox.

It waits while another process assigns seqs. A producer that writes into the same PostgreSQL may
register in its own transaction (`register_in`): its events appear when it commits.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
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
from lakechime.store.sequencer import Placement, Sequencer

SEEN_PAGE = 10_000
_SEEN = ("cluster", "name", "item_key", "item", "value")
_COLUMNS = ("cluster", "name", "depth", "tag_keys", *CARRIED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Registration:
    """A call of `register`. Of equal events, only the first is a row."""

    database: Database
    sequencer: Sequencer
    given: Sequence[DataChangeEvent]
    outbox: Outbox | None = None

    def run(self) -> list[Registered]:
        rows = [row_of(event) for event in self.given]
        first_numbers = _first_numbers(rows)
        distinct_rows = {number: rows[number] for number in first_numbers.values()}
        placed = self.database.write(
            lambda connection: self._register(connection, distinct_rows), repeatable=True
        )
        if isinstance(placed, dict):
            # Another process held the sequencer's lock, so these events wait in the inbox
            registered = self._await_inbox(placed, len(rows))
            return _answers(rows, registered)
        return _answers(rows, dict(placed))

    def _register(
        self, connection: Connection, rows: Mapping[int, dict[str, Any]]
    ) -> dict[str, int] | list[tuple[str, Registered]]:
        """Register rows by the number of their event.

        Returns (dedup key, answer) pairs. If another process holds the sequencer's lock, it puts
        the rows into the inbox, and returns their ids there by dedup key.
        """
        has_new_levels = check_depths(connection, self.sequencer, rows.values())
        if self.outbox is not None and not _move_position(connection, self.outbox, self._batch):
            return self._repeated_answer(connection, rows)
        if not rows:
            check_revision(connection.execute(select(VERSIONS.c.version_num)).scalar())
            return []
        if has_new_levels:
            # Another process may register the first partition of the table at the same time, and
            # only under the lock is this seen
            self.sequencer.lock(connection)
        elif not self.sequencer.try_lock(connection):
            return put_into_inbox(connection, list(rows.values()))
        head = self.sequencer.drain(connection)
        if has_new_levels:
            check_depths(connection, self.sequencer, rows.values())
        pending = [pending_of(number, row) for number, row in rows.items()]
        placements = self.sequencer.assign(connection, pending, head, rows)
        duplicates = [placement for placement in placements if placement.duplicate]
        stored = self._stored(connection, [each.pending.dedup_key for each in duplicates])
        answers: list[tuple[str, Registered]] = []
        for placement in placements:
            answer = self._answer(placement, head.next_ts, stored)
            answers.append((placement.pending.dedup_key, answer))
        return answers

    @property
    def _batch(self) -> str:
        """The key of this registration, which a repeat of it has too."""
        assert self.outbox is not None
        events = [json.dumps(event.to_json(), sort_keys=True) for event in self.given]
        position = position_text(self.outbox.position)
        expected = position_text(self.outbox.expected)
        return batch_key(events, position, expected)

    def _repeated_answer(
        self, connection: Connection, rows: Mapping[int, dict[str, Any]]
    ) -> list[tuple[str, Registered]]:
        """Return the answer of a registration that was done before.

        All its events are duplicates now.
        """
        self.sequencer.lock(connection)
        self.sequencer.drain(connection)
        stored = self._stored(connection, [row["dedup_key"] for row in rows.values()])
        if len(stored) < len(rows):
            raise ConflictError(
                f"these events of {self.given[0].table} were registered before, and some have "
                "expired since; read the table's position again, and register the events after it"
            )
        return [(key, registered_of(row, duplicate=True)) for key, row in stored.items()]

    def _answer(self, placement: Placement, event_ts: int, stored: Mapping[str, Any]) -> Registered:
        if placement.duplicate:
            return registered_of(stored[placement.pending.dedup_key], duplicate=True)
        return Registered(
            event=replace(self.given[placement.pending.row], seq=placement.seq, event_ts=event_ts),
            gap=placement.gap,
        )

    def _await_inbox(self, inbox_ids: Mapping[str, int], count: int) -> dict[str, Registered]:
        """Return the events of the inbox once they are registered."""
        registered, refusals = self.database.write(
            lambda connection: self._read_placed(connection, inbox_ids), repeatable=True
        )
        if refusals:
            raise InvalidEventError(
                f"{len(refusals):,} of {count:,} events are not registered, because the database "
                f"refuses them. The reason of the first: {refusals[0]}. "
                "Correct these events, and register them again"
            )
        return registered

    def _read_placed(
        self, connection: Connection, inbox_ids: Mapping[str, int]
    ) -> tuple[dict[str, Registered], list[str]]:
        """Return (answers by dedup key, reasons of events that were put aside)."""
        # Whoever held the lock before may have registered them already
        self.sequencer.lock(connection)
        self.sequencer.drain(connection)
        stored = self._stored(connection, list(inbox_ids))
        registered = {
            key: registered_of(row, duplicate=row.inbox_id != inbox_ids[key])
            for key, row in stored.items()
        }
        missing = [inbox_id for key, inbox_id in inbox_ids.items() if key not in stored]
        if not missing:
            return registered, []
        return registered, list(reasons_of(connection, missing).values())

    def _stored(self, connection: Connection, keys: Sequence[str]) -> dict[str, Any]:
        """Return the rows of stored events by their dedup keys."""
        if not keys:
            return {}
        rows = recordset(self.sequencer.dialect, "rows", {"dedup_key": Text()})
        chosen = select_events().where(events.c.dedup_key.in_(select(rows.c.dedup_key)))
        parameters = {"rows": rows_text({"dedup_key": key} for key in keys)}
        return {row.dedup_key: row for row in connection.execute(chosen, parameters)}


def _first_numbers(rows: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """Return by dedup key the number of the first row that has it."""
    numbers: dict[str, int] = {}
    for number, row in enumerate(rows):
        numbers.setdefault(row["dedup_key"], number)
    return numbers


def _answers(
    rows: Sequence[Mapping[str, Any]], registered: Mapping[str, Registered]
) -> list[Registered]:
    """Return the answer for each row; repeats of a row are duplicates."""
    first_numbers = _first_numbers(rows)
    answers = []
    for number, row in enumerate(rows):
        key = row["dedup_key"]
        answer = registered[key]
        if first_numbers[key] != number:
            answer = replace(answer, duplicate=True)
        answers.append(answer)
    return answers


def register_in(connection: Connection, given: Sequence[DataChangeEvent]) -> None:
    """Register events in the caller's transaction.

    The events appear when the transaction commits, and get their seqs then. No other process waits
    for the transaction.
    """
    rows = [row_of(event) for event in given]
    check_revision(connection.execute(select(VERSIONS.c.version_num)).scalar())
    check_depths(connection, Sequencer(dialect=connection.dialect.name, clock=None), rows)
    if rows:
        put_into_inbox(connection, rows)


def put_into_inbox(connection: Connection, rows: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """Insert rows into the inbox, and return their ids by dedup key."""
    statement = _inbox_statement(connection.dialect.name)
    inserted = connection.execute(statement, {"rows": rows_text(rows)})
    return {row.dedup_key: row.id for row in inserted}


@cache
def _inbox_statement(dialect: str) -> ReturningInsert[Any]:
    rows = recordset(dialect, "rows", types_of(_COLUMNS))
    chosen = select(*(rows.c[name] for name in _COLUMNS))
    inserted = insert(inbox).from_select(list(_COLUMNS), chosen)
    return inserted.returning(inbox.c.dedup_key, inbox.c.id)


def check_depths(
    connection: Connection, sequencer: Sequencer, rows: Iterable[Mapping[str, Any]]
) -> bool:
    """Return whether rows set the number of partition levels of some table.

    The first event with a partition sets it. Raises InvalidEventError for an event whose partition
    has another number of levels.
    """
    partitioned = [row for row in rows if row["depth"] is not None]
    if not partitioned:
        return False
    names = {(row["cluster"], row["name"]): None for row in partitioned}
    known = sequencer.tables(connection, list(names))
    depths = {name: depth for name, (_, depth) in known.items() if depth is not None}
    known_count = len(depths)
    for row in partitioned:
        depth = depths.setdefault((row["cluster"], row["name"]), row["depth"])
        if depth != row["depth"]:
            raise InvalidEventError(
                f"partition {row['partition']} of {row['name']} has {row['depth']} levels, and the "
                f"partitions of this table have {depth}; "
                f"write {depth} values, or None for an event without a partition"
            )
    return len(depths) > known_count


def _move_position(connection: Connection, outbox: Outbox, batch: str) -> bool:
    """Move a position; return False if the same registration moved it before."""
    is_of_table = (positions.c.cluster == outbox.cluster) & (positions.c.name == outbox.table)
    text = position_text(outbox.position)
    if outbox.expected is None:
        existing = connection.execute(select(positions.c.position).where(is_of_table)).first()
        values = {"cluster": outbox.cluster, "name": outbox.table, "position": text, "batch": batch}
        inserted = insert_into(connection, positions).values(**values).on_conflict_do_nothing()
        is_moved = existing is None and connection.execute(inserted).rowcount == 1
    else:
        updated = (
            update(positions)
            .where(is_of_table, positions.c.position == position_text(outbox.expected))
            .values(position=text, batch=batch)
        )
        is_moved = connection.execute(updated).rowcount == 1
    if is_moved:
        write_seen(connection, outbox)
        return True
    is_repeat = (positions.c.position == text) & (positions.c.batch == batch)
    repeated = select(positions.c.name).where(is_of_table, is_repeat)
    if connection.execute(repeated).first():
        return False
    raise ConflictError(
        f"another producer moved the position of {outbox.table} meanwhile; "
        "read the position again, and register the changes after it"
    )


def position_text(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def write_seen(connection: Connection, outbox: Outbox) -> None:
    """Store the items of an outbox.

    The same transaction moves the position, so only one producer writes at a time.
    """
    if not outbox.seen:
        return
    items: list[dict[str, str]] = []
    for item, value in outbox.seen.items():
        row = {
            "cluster": outbox.cluster,
            "name": outbox.table,
            "item_key": item_key(item),
            "item": _json(item),
            "value": _json(value),
        }
        items.append(row)
    rows = recordset(connection.dialect.name, "rows", dict.fromkeys(_SEEN, Text()))
    # The condition is always true: SQLite reads ON after a plain SELECT as that of a join
    chosen = select(*(rows.c[name] for name in _SEEN)).where(rows.c.item_key != "")
    inserted = insert_into(connection, seen).from_select(list(_SEEN), chosen)
    upserted = inserted.on_conflict_do_update(
        index_elements=["cluster", "name", "item_key"], set_={"value": inserted.excluded.value}
    )
    connection.execute(upserted, {"rows": rows_text(items)})


def read_seen(connection: Connection, cluster: str, table: str, after: str) -> SeenPage:
    is_of_table = (seen.c.cluster == cluster) & (seen.c.name == table)
    chosen = (
        select(seen.c.item_key, seen.c.item, seen.c.value)
        .where(is_of_table, seen.c.item_key > after)
        .order_by(seen.c.item_key)
        .limit(SEEN_PAGE)
    )
    rows = connection.execute(chosen).all()
    items = {json.loads(row.item): json.loads(row.value) for row in rows}
    next_after = None
    if len(rows) == SEEN_PAGE:
        next_after = rows[-1].item_key
    return SeenPage(items=items, next_after=next_after)


def _json(value: object) -> str:
    # In ASCII: paths may hold bytes that are not text
    return json.dumps(value, separators=(",", ":"))
