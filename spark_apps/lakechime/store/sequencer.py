"""The sequencer, which assigns each event its place: its `seq` and its `event_ts`.

Watermarks pass events in the order of `seq`. One transaction at a time assigns it, on PostgreSQL
under an advisory lock, on SQLite as its only writer. It reads the last seq after it has the lock,
and commits before the next transaction gets the lock. So events become visible in the order of
their seqs: a reader that saw a seq has seen every lesser one, and no event is ever added before a
watermark. A producer in its own open transaction only holds rows in the inbox. They get their seqs
when they become visible.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, exc, func, insert, select, update

from lakechime.event import MAX_TAG_VALUE_CHARS, MAX_TAGS
from lakechime.store.database.engine import check_revision
from lakechime.store.database.failures import first_line, is_of_data
from lakechime.store.database.recordset import rows_text
from lakechime.store.database.statements import (
    DATABASE_CLOCK,
    delete_statement,
    head_statement,
    insert_statement,
    known_statement,
    move_statement,
    tables_statement,
    tags_statement,
)
from lakechime.store.digests import tag_keys
from lakechime.store.put_aside import any_bytes_as_text, put_row_aside, unfit_reason
from lakechime.store.schema import inbox, tables
from lakechime.tags import OTHER_PARTITION
from opal_lake.clock import Clock

LOCK = 5_499_137_104_281  # the key of this lock among the advisory locks of a database
# The server ends the transaction of a process that holds or awaits the lock for longer
LOCK_SECONDS = 60
BATCH = 5_000  # rows of the inbox that are registered together


@dataclass(frozen=True, slots=True, kw_only=True)
class Pending:
    """An event without a seq. `row` is its id in the inbox, or its number."""

    row: int
    table: tuple[str, str]
    dedup_key: str
    snapshot_id: str | None
    prev_snapshot_id: str | None
    depth: int | None
    tag_keys: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """The placement of an event. A duplicate has the seq of the event that it repeats."""

    pending: Pending
    seq: int
    table_id: int
    gap: bool
    duplicate: bool


@dataclass(slots=True, kw_only=True)
class Known:
    """Stored facts that placements depend on. `plan_placements` adds to them."""

    ids: dict[tuple[str, str], int]  # by (cluster, table)
    with_events: set[int]  # ids of tables
    seqs: dict[str, int]  # by dedup key
    gaps: dict[tuple[int, str], bool]  # by (table id, snapshot): its predecessor was missing


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """The state that the next seq and its time depend on.

    `seq` and `event_ts` are those of the last event. No new event gets a time before `event_ts`, or
    before `time_horizon`.
    """

    seq: int
    event_ts: int
    time_horizon: int
    now_ms: int
    has_pending: bool

    @property
    def next_ts(self) -> int:
        return max(self.now_ms, self.fixed_ts)

    @property
    def fixed_ts(self) -> int:
        """The time before which no event will be added, even if the clock steps back."""
        return max(self.event_ts, self.time_horizon)


def plan_placements(pending: Iterable[Pending], known: Known, last_seq: int) -> list[Placement]:
    """Return the placements of events in the given order."""
    placements = []
    for event in pending:
        table_id = known.ids[event.table]
        first_seq = known.seqs.get(event.dedup_key)
        if first_seq is not None:
            duplicate = Placement(
                pending=event, seq=first_seq, table_id=table_id, gap=False, duplicate=True
            )
            placements.append(duplicate)
            continue
        last_seq += 1
        gap = _is_gap(event, known, table_id)
        placement = Placement(
            pending=event, seq=last_seq, table_id=table_id, gap=gap, duplicate=False
        )
        placements.append(placement)
        known.seqs[event.dedup_key] = last_seq
        known.with_events.add(table_id)
        if event.snapshot_id is not None:
            known.gaps.setdefault((table_id, event.snapshot_id), gap)
    return placements


def _is_gap(event: Pending, known: Known, table_id: int) -> bool:
    """Return whether the predecessor of an event's snapshot is missing."""
    # All partitions of a snapshot have the same answer
    if event.snapshot_id is not None and (table_id, event.snapshot_id) in known.gaps:
        return known.gaps[table_id, event.snapshot_id]
    before = event.prev_snapshot_id
    # The first snapshot of a table is not a gap: its history may begin before LakeChime
    if before is None or table_id not in known.with_events:
        return False
    return (table_id, before) not in known.gaps


@dataclass(frozen=True, slots=True, kw_only=True)
class Sequencer:
    """The sequencer of a database.

    `clock` replaces the clock of the database (PostgreSQL) or of the machine (SQLite).
    """

    dialect: str
    clock: Clock | None
    lock_seconds: float = LOCK_SECONDS

    def lock(self, connection: Connection) -> None:
        """Wait for the lock, which the end of the transaction releases.

        The server ends the connection of a process that is idle while it holds the lock.
        """
        if self.dialect == "postgresql":
            connection.execute(select(*self._limits(), func.pg_advisory_xact_lock(LOCK)))

    def try_lock(self, connection: Connection) -> bool:
        """Take the lock if it is free; return whether this transaction has it."""
        if self.dialect != "postgresql":
            return True  # a writing transaction of SQLite begins with the lock
        tried = func.pg_try_advisory_xact_lock(LOCK).label("locked")
        return bool(connection.execute(select(*self._limits(), tried)).one().locked)

    def _limits(self) -> tuple[Any, Any]:
        """Return the two expressions that limit the wait for the lock, and idling with it."""
        seconds = f"{self.lock_seconds}s"
        return (
            func.set_config("lock_timeout", seconds, True),
            func.set_config("idle_in_transaction_session_timeout", seconds, True),
        )

    def now_ms(self, connection: Connection) -> int:
        if self.clock is not None:
            return self.clock.now_us() // 1000
        return int(connection.execute(select(DATABASE_CLOCK)).scalar_one())

    def head(self, connection: Connection) -> Head:
        row = connection.execute(head_statement(with_clock=self.clock is None)).one()
        check_revision(row.revision)
        now_ms = row.now_ms
        if self.clock is not None:
            now_ms = self.clock.now_us() // 1000
        return Head(
            seq=row.seq or 0,
            event_ts=row.event_ts or 0,
            time_horizon=row.horizon,
            now_ms=now_ms,
            has_pending=bool(row.has_pending),
        )

    def drain(self, connection: Connection) -> Head:
        """Place the visible events of the inbox, and return the head afterwards.

        The caller holds the lock.
        """
        while True:
            head = self.head(connection)
            if not head.has_pending:
                return head
            self._place_pending(connection, self._pending(connection, head), head)

    def _place_pending(self, connection: Connection, batch: Sequence[Pending], head: Head) -> None:
        """Place rows of the inbox, and put aside the rows that the database refuses.

        If the database refuses a batch, each half is tried, until single rows are known.
        """
        if not batch:
            return
        try:
            with connection.begin_nested():
                fitting = self._fitting(connection, batch)
                self.assign(connection, fitting, head)
                connection.execute(
                    delete_statement(self.dialect),
                    {"rows": rows_text({"id": event.row} for event in batch)},
                )
        except exc.DBAPIError as error:
            if not is_of_data(error):
                raise
            if len(batch) == 1:
                chosen = select(inbox).where(inbox.c.id == batch[0].row)
                row = connection.execute(chosen).mappings().one()
                put_row_aside(connection, dict(row), first_line(error), head.next_ts)
                return
            middle = len(batch) // 2
            self._place_pending(connection, batch[:middle], head)
            # The first half may have taken seqs
            self._place_pending(connection, batch[middle:], self.head(connection))

    def has_pending(self, connection: Connection) -> bool:
        return connection.execute(select(inbox.c.id).limit(1)).first() is not None

    def _pending(self, connection: Connection, head: Head) -> list[Pending]:
        """Return the events in the next batch of the inbox, and put its other rows aside."""
        with any_bytes_as_text(connection):
            chosen = select(inbox).order_by(inbox.c.id).limit(BATCH)
            rows = connection.execute(chosen).mappings().all()
        pending = []
        for row in map(dict, rows):
            reason = unfit_reason(row)
            if reason is None:
                pending.append(_pending_of(row))
            else:
                put_row_aside(connection, row, reason, head.next_ts)
        return pending

    def _fitting(self, connection: Connection, batch: Sequence[Pending]) -> Sequence[Pending]:
        """Return the events with as many partition levels as their tables have.

        Two open transactions may register the first partitions of a table, with different numbers
        of levels, without seeing each other. A table has one number of levels. So the later event
        keeps its partition in a tag only.
        """
        names = {event.table for event in batch}
        known = self.tables(connection, list(names))
        depths = {name: depth for name, (_, depth) in known.items()}
        misfit_ids = []
        for event in batch:
            if event.depth is None:
                continue
            depth = depths.get(event.table) or event.depth
            if depth == event.depth:
                depths[event.table] = depth
            else:
                misfit_ids.append(event.row)
        changed: dict[int, Pending] = {}  # by id in the inbox
        rows = connection.execute(select(inbox).where(inbox.c.id.in_(misfit_ids))).mappings()
        for row in map(dict, rows.all()):
            values = without_partition(row["partition"], json.loads(row["tags"]))
            connection.execute(update(inbox).where(inbox.c.id == row["id"]).values(**values))
            changed[row["id"]] = _pending_of({**row, **values})
        return [changed.get(event.row, event) for event in batch]

    def assign(
        self,
        connection: Connection,
        batch: Sequence[Pending],
        head: Head,
        rows: Mapping[int, Mapping[str, Any]] | None = None,
    ) -> list[Placement]:
        """Register a batch at `head.next_ts`, and return the placements.

        The caller holds the lock. `rows` has the events' columns by `Pending.row`; without it they
        are in the inbox.
        """
        placements = plan_placements(batch, self._known(connection, batch), head.seq)
        new = [placement for placement in placements if not placement.duplicate]
        if not new:
            return placements
        placed = [_placed(placement, head.next_ts) for placement in new]
        if rows is None:
            connection.execute(
                move_statement(self.dialect),
                {"rows": rows_text({**row, "inbox_id": row["row"]} for row in placed)},
            )
        else:
            connection.execute(
                insert_statement(self.dialect),
                {"rows": rows_text({**rows[row["row"]], **row} for row in placed)},
            )
        tags: list[dict[str, Any]] = []
        for placement in new:
            for key in placement.pending.tag_keys:
                tag = {"table_id": placement.table_id, "tag_key": key, "seq": placement.seq}
                tags.append(tag)
        if tags:
            connection.execute(tags_statement(self.dialect), {"rows": rows_text(tags)})
        return placements

    def _known(self, connection: Connection, batch: Sequence[Pending]) -> Known:
        """Return which tables have events, and which snapshots and events are stored."""
        ids = self._table_ids(connection, batch)
        snapshots: set[tuple[int, str]] = set()  # (table id, snapshot)
        for event in batch:
            for snapshot_id in (event.snapshot_id, event.prev_snapshot_id):
                if snapshot_id is not None:
                    snapshots.add((ids[event.table], snapshot_id))
        parameters = {
            "of_tables": rows_text({"id": table_id} for table_id in ids.values()),
            "of_snapshots": rows_text(
                {"table_id": table_id, "snapshot_id": snapshot_id}
                for table_id, snapshot_id in snapshots
            ),
            "of_keys": rows_text({"dedup_key": event.dedup_key} for event in batch),
        }
        known = Known(ids=ids, with_events=set(), seqs={}, gaps={})
        rows = connection.execute(known_statement(self.dialect), parameters)
        for kind, number, text, flag in rows:
            if kind == 0:
                known.with_events.add(number)
            elif kind == 1:
                known.gaps[number, text] = bool(flag)
            else:
                known.seqs[text] = number
        return known

    def _table_ids(
        self, connection: Connection, batch: Sequence[Pending]
    ) -> dict[tuple[str, str], int]:
        """Return the ids of the batch's tables, and create the new tables.

        The first event with a partition sets the number of levels of its table.
        """
        depths: dict[tuple[str, str], int | None] = {}
        for event in batch:
            depths[event.table] = depths.get(event.table) or event.depth
        known = self.tables(connection, list(depths))
        new_tables: list[dict[str, Any]] = []
        for (cluster, name), depth in depths.items():
            if (cluster, name) not in known:
                new_tables.append({"cluster": cluster, "name": name, "depth": depth})
        if new_tables:
            connection.execute(insert(tables), new_tables)
            known = self.tables(connection, list(depths))
        ids: dict[tuple[str, str], int] = {}
        for table, (table_id, stored_depth) in known.items():
            ids[table] = table_id
            if stored_depth is None and depths[table] is not None:
                is_table = tables.c.id == table_id
                connection.execute(tables.update().where(is_table).values(depth=depths[table]))
        return ids

    def tables(
        self, connection: Connection, names: Sequence[tuple[str, str]]
    ) -> dict[tuple[str, str], tuple[int, int | None]]:
        """Return (id, number of partition levels) of each known table by its name."""
        parameter = rows_text({"cluster": cluster, "name": name} for cluster, name in names)
        rows = connection.execute(tables_statement(self.dialect), {"rows": parameter})
        return {(row.cluster, row.name): (row.id, row.depth) for row in rows}


def _pending_of(row: Mapping[str, Any]) -> Pending:
    """Return the pending event of an inbox row."""
    return Pending(
        row=row["id"],
        table=(row["cluster"], row["name"]),
        dedup_key=row["dedup_key"],
        snapshot_id=row["snapshot_id"],
        prev_snapshot_id=row["prev_snapshot_id"],
        depth=row["depth"],
        tag_keys=row["tag_keys"].split(),
    )


def without_partition(partition: str, tags: Mapping[str, str]) -> dict[str, Any]:
    """Return the changed columns of an inbox row whose partition becomes a tag."""
    # The partition is dropped if it is too long for a tag, or if the event has all tags it may have
    if len(partition) <= MAX_TAG_VALUE_CHARS and len(tags) < MAX_TAGS:
        tags = {**tags, OTHER_PARTITION: partition}
    return {
        "partition": None,
        "partition_key": None,
        "depth": None,
        "tags": tags_text(tags),
        "tag_keys": " ".join(tag_keys(tags)),
    }


def tags_text(tags: Mapping[str, str]) -> str:
    """Return tags as the JSON text that is stored."""
    return json.dumps(dict(sorted(tags.items())), separators=(",", ":"), ensure_ascii=False)


def _placed(placement: Placement, event_ts: int) -> dict[str, Any]:
    return {
        "row": placement.pending.row,
        "seq": placement.seq,
        "event_ts": event_ts,
        "table_id": placement.table_id,
        "gap": placement.gap,
    }
