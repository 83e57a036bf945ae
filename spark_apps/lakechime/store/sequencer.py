"""Gives events their places: `seq`, the order that watermarks pass, and `event_ts`.

One transaction at a time gives places, on PostgreSQL under an advisory lock, on SQLite as its one writer. It takes the last seq when it has
the lock and commits before the next one may read it, so the order of seq is the order in which events become visible: a reader that saw a
seq has seen every lesser one, and nothing is ever put before a watermark. A producer that keeps its transaction open holds only rows in the
inbox; they get their places when they become visible.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import BigInteger, Connection, cast, delete, extract, func, insert, select

from lakechime.store.database.recordset import FLAG, LONG, TEXT, recordset, rows_text
from lakechime.store.schema import CARRIED, event_tags, events, inbox, meta, tables
from opal_lake.clock import Clock

LOCK = 5_499_137_104_281  # of our own among a database's advisory locks
LOCK_SECONDS = 60
BATCH = 5_000
HORIZON, EXPIRED = "time_horizon", "expired_seq"
_LONGS = {"seq", "event_ts", "table_id", "snapshot_ts", "id", "inbox_id", "depth"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Pending:
    """An event without a place. `row` names it to whoever asked for the place."""

    row: int
    table: tuple[str, str]
    dedup_key: str
    snapshot_id: str | None
    prev_snapshot_id: str | None
    depth: int | None
    tag_keys: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Of a duplicate, the place of the first one."""

    pending: Pending
    seq: int
    table_id: int
    gap: bool
    duplicate: bool


@dataclass(slots=True, kw_only=True)
class Known:
    """What the store has that matters for places. `plan_places` adds to it."""

    ids: dict[tuple[str, str], int]
    with_events: set[int]
    seqs: dict[str, int]
    gaps: dict[tuple[int, str], bool]  # by snapshot: whether its predecessor was missing


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """The last place, and the times that the next one must not be before."""

    seq: int
    event_ts: int
    time_horizon: int
    now_ms: int

    @property
    def next_ts(self) -> int:
        return max(self.now_ms, self.event_ts, self.time_horizon)


def plan_places(pending: Iterable[Pending], known: Known, last_seq: int) -> list[Place]:
    """In the order given."""
    places = []
    for event in pending:
        table_id, first = known.ids[event.table], known.seqs.get(event.dedup_key)
        if first is not None:
            places.append(Place(pending=event, seq=first, table_id=table_id, gap=False, duplicate=True))
            continue
        last_seq += 1
        gap = _is_gap(event, known, table_id)
        places.append(Place(pending=event, seq=last_seq, table_id=table_id, gap=gap, duplicate=False))
        known.seqs[event.dedup_key] = last_seq
        known.with_events.add(table_id)
        if event.snapshot_id is not None:
            known.gaps.setdefault((table_id, event.snapshot_id), gap)
    return places


def _is_gap(event: Pending, known: Known, table_id: int) -> bool:
    """All partitions of a snapshot are alike; a table's first snapshot is no gap."""
    if event.snapshot_id is not None and (table_id, event.snapshot_id) in known.gaps:
        return known.gaps[table_id, event.snapshot_id]
    before = event.prev_snapshot_id
    return before is not None and table_id in known.with_events and (table_id, before) not in known.gaps


@dataclass(frozen=True, slots=True, kw_only=True)
class Sequencer:
    """`clock`: instead of the database's (PostgreSQL) or the machine's (SQLite)."""

    dialect: str
    clock: Clock | None

    def lock(self, connection: Connection) -> None:
        """Wait for it; it is let go when the transaction ends. A process that stands still under it is cut off by the server."""
        if self.dialect == "postgresql":
            connection.execute(select(*self._limits(), func.pg_advisory_xact_lock(LOCK)))

    def try_lock(self, connection: Connection) -> bool:
        if self.dialect != "postgresql":
            return True  # the transaction began with it
        return bool(connection.execute(select(*self._limits(), func.pg_try_advisory_xact_lock(LOCK))).one()[2])

    @staticmethod
    def _limits() -> tuple[Any, Any]:
        seconds = f"{LOCK_SECONDS}s"
        return func.set_config("lock_timeout", seconds, True), func.set_config("idle_in_transaction_session_timeout", seconds, True)

    def now_ms(self, connection: Connection) -> int:
        if self.clock is not None:
            return self.clock.now_us() // 1000
        return int(connection.execute(select(_DATABASE_CLOCK)).scalar_one())

    def head(self, connection: Connection) -> Head:
        last = connection.execute(select(events.c.seq, events.c.event_ts).order_by(events.c.seq.desc()).limit(1)).first()
        horizon = connection.execute(select(meta.c.value).where(meta.c.name == HORIZON)).scalar_one()
        seq, event_ts = (0, 0) if last is None else (last.seq, last.event_ts)
        return Head(seq=seq, event_ts=event_ts, time_horizon=horizon, now_ms=self.now_ms(connection))

    def drain(self, connection: Connection) -> int:
        """Under the lock: give what is visible in the inbox its places. How many rows there were."""
        done = 0
        while batch := self._pending(connection):
            self.place(connection, batch, from_inbox=True)
            rows = recordset(self.dialect, "rows", {"id": LONG})
            connection.execute(
                delete(inbox).where(inbox.c.id.in_(select(rows.c.id))), {"rows": rows_text({"id": event.row} for event in batch)}
            )
            done += len(batch)
        return done

    def has_pending(self, connection: Connection) -> bool:
        return connection.execute(select(inbox.c.id).limit(1)).first() is not None

    def _pending(self, connection: Connection) -> list[Pending]:
        columns = (inbox.c.id, inbox.c.cluster, inbox.c.name, inbox.c.dedup_key, inbox.c.snapshot_id, inbox.c.prev_snapshot_id)
        found = connection.execute(select(*columns, inbox.c.depth, inbox.c.tag_keys).order_by(inbox.c.id).limit(BATCH))
        return [
            Pending(
                row=row.id,
                table=(row.cluster, row.name),
                dedup_key=row.dedup_key,
                snapshot_id=row.snapshot_id,
                prev_snapshot_id=row.prev_snapshot_id,
                depth=row.depth,
                tag_keys=row.tag_keys.split(),
            )
            for row in found
        ]

    def place(
        self,
        connection: Connection,
        batch: Sequence[Pending],
        rows: Mapping[int, Mapping[str, Any]] | None = None,
        *,
        from_inbox: bool = False,
    ) -> tuple[list[Place], int]:
        """Under the lock: places of a batch, and their event_ts. What is copied lies in the inbox, or is in `rows`."""
        head = self.head(connection)
        places = plan_places(batch, self._known(connection, batch), head.seq)
        new = [place for place in places if not place.duplicate]
        if not new:
            return places, head.next_ts
        given = [
            {"seq": place.seq, "event_ts": head.next_ts, "table_id": place.table_id, "gap": place.gap, "inbox_id": place.pending.row}
            for place in new
        ]
        if from_inbox:
            self._copy_from_inbox(connection, given)
        else:
            assert rows is not None
            self._insert(connection, [{**rows[place.pending.row], **one, "inbox_id": None} for place, one in zip(new, given, strict=True)])
        self._insert_tags(connection, new)
        return places, head.next_ts

    def _copy_from_inbox(self, connection: Connection, given: list[dict[str, Any]]) -> None:
        names = ("seq", "event_ts", "table_id", "gap", "inbox_id")
        rows = recordset(self.dialect, "rows", _types(names))
        chosen = select(*(rows.c[name] for name in names), *(inbox.c[name] for name in CARRIED)).join_from(
            rows, inbox, inbox.c.id == rows.c.inbox_id
        )
        connection.execute(insert(events).from_select([*names, *CARRIED], chosen), {"rows": rows_text(given)})

    def _insert(self, connection: Connection, given: list[dict[str, Any]]) -> None:
        names = ("seq", "event_ts", "table_id", "gap", "inbox_id", *CARRIED)
        rows = recordset(self.dialect, "rows", _types(names))
        chosen = select(*(rows.c[name] for name in names))
        values = ({name: row[name] for name in names} for row in given)
        connection.execute(insert(events).from_select(list(names), chosen), {"rows": rows_text(values)})

    def _insert_tags(self, connection: Connection, places: Sequence[Place]) -> None:
        given = [{"table_id": place.table_id, "tag_key": key, "seq": place.seq} for place in places for key in place.pending.tag_keys]
        if given:
            names = ("table_id", "tag_key", "seq")
            rows = recordset(self.dialect, "rows", _types(names))
            chosen = select(*(rows.c[name] for name in names))
            connection.execute(insert(event_tags).from_select(list(names), chosen), {"rows": rows_text(given)})

    def _known(self, connection: Connection, batch: Sequence[Pending]) -> Known:
        ids = self._table_ids(connection, batch)
        snapshots = {
            (ids[event.table], name) for event in batch for name in (event.snapshot_id, event.prev_snapshot_id) if name is not None
        }
        rows = recordset(self.dialect, "rows", _types(["table_id", "snapshot_id"]))
        found = connection.execute(
            select(events.c.table_id, events.c.snapshot_id, events.c.gap)
            .join_from(rows, events, (events.c.table_id == rows.c.table_id) & (events.c.snapshot_id == rows.c.snapshot_id))
            .distinct(),
            {"rows": rows_text({"table_id": table_id, "snapshot_id": name} for table_id, name in snapshots)},
        )
        gaps = {(row.table_id, row.snapshot_id): bool(row.gap) for row in found}
        keys = recordset(self.dialect, "rows", _types(["dedup_key"]))
        same = connection.execute(
            select(events.c.dedup_key, events.c.seq).join_from(keys, events, events.c.dedup_key == keys.c.dedup_key),
            {"rows": rows_text({"dedup_key": event.dedup_key} for event in batch)},
        )
        return Known(ids=ids, with_events=self._with_events(connection, ids), seqs={row.dedup_key: row.seq for row in same}, gaps=gaps)

    def _with_events(self, connection: Connection, ids: Mapping[tuple[str, str], int]) -> set[int]:
        rows = recordset(self.dialect, "rows", _types(["id"]))
        there = select(events.c.seq).where(events.c.table_id == rows.c.id).exists()
        return set(connection.execute(select(rows.c.id).where(there), {"rows": rows_text({"id": one} for one in ids.values())}).scalars())

    def _table_ids(self, connection: Connection, batch: Sequence[Pending]) -> dict[tuple[str, str], int]:
        """Tables that are new are made; the first event with a partition fixes the number of levels."""
        depths: dict[tuple[str, str], int | None] = {}
        for event in batch:
            depths[event.table] = depths.get(event.table) or event.depth
        found = self.tables(connection, list(depths))
        missing = [name for name in depths if name not in found]
        if missing:
            connection.execute(insert(tables), [{"cluster": name[0], "name": name[1], "depth": depths[name]} for name in missing])
            found = self.tables(connection, list(depths))
        for name, (table_id, depth) in found.items():
            if depth is None and depths[name] is not None:
                connection.execute(tables.update().where(tables.c.id == table_id).values(depth=depths[name]))
        return {name: table_id for name, (table_id, _) in found.items()}

    def tables(self, connection: Connection, names: Sequence[tuple[str, str]]) -> dict[tuple[str, str], tuple[int, int | None]]:
        """Id and number of partition levels of those that are known."""
        rows = recordset(self.dialect, "rows", _types(["cluster", "name"]))
        found = connection.execute(
            select(tables.c.cluster, tables.c.name, tables.c.id, tables.c.depth).join_from(
                rows, tables, (tables.c.cluster == rows.c.cluster) & (tables.c.name == rows.c.name)
            ),
            {"rows": rows_text({"cluster": cluster, "name": name} for cluster, name in names)},
        )
        return {(row.cluster, row.name): (row.id, row.depth) for row in found}


_DATABASE_CLOCK = cast(func.floor(extract("epoch", func.clock_timestamp()) * 1000), BigInteger)


def _types(names: Iterable[str]) -> dict[str, Any]:
    return {name: LONG if name in _LONGS else FLAG if name == "gap" else TEXT for name in names}
