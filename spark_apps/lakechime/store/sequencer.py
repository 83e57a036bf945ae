"""Gives events their places: `seq`, the order that watermarks pass, and `event_ts`.

One transaction at a time gives places, on PostgreSQL under an advisory lock, on SQLite as its one writer. It takes the last seq when it has
the lock and commits before the next one may read it, so the order of seq is the order in which events become visible: a reader that saw a
seq has seen every lesser one, and nothing is ever put before a watermark. A producer that keeps its transaction open holds only rows in the
inbox; they get their places when they become visible.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, exc, func, insert, select, update

from lakechime.event import MAX_TAG_VALUE_CHARS, MAX_TAGS
from lakechime.store.database.engine import check_revision
from lakechime.store.database.failures import is_of_data, said
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

LOCK = 5_499_137_104_281  # of our own among a database's advisory locks
LOCK_SECONDS = 60
BATCH = 5_000


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
    """The last place, the times that the next one must not be before, and whether there is anything in the inbox."""

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
        """No later event gets a time before this, whatever the clock says."""
        return max(self.event_ts, self.time_horizon)


def plan_places(pending: Iterable[Pending], known: Known, last_seq: int) -> list[Place]:
    """In the order given."""
    places = []
    for event in pending:
        table_id, first = known.ids[event.table], known.seqs.get(event.dedup_key)
        if first is not None:
            places.append(
                Place(pending=event, seq=first, table_id=table_id, gap=False, duplicate=True)
            )
            continue
        last_seq += 1
        gap = _is_gap(event, known, table_id)
        places.append(
            Place(pending=event, seq=last_seq, table_id=table_id, gap=gap, duplicate=False)
        )
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
    return (
        before is not None
        and table_id in known.with_events
        and (table_id, before) not in known.gaps
    )


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
        return bool(
            connection.execute(select(*self._limits(), func.pg_try_advisory_xact_lock(LOCK))).one()[
                2
            ]
        )

    @staticmethod
    def _limits() -> tuple[Any, Any]:
        seconds = f"{LOCK_SECONDS}s"
        return func.set_config("lock_timeout", seconds, True), func.set_config(
            "idle_in_transaction_session_timeout", seconds, True
        )

    def now_ms(self, connection: Connection) -> int:
        if self.clock is not None:
            return self.clock.now_us() // 1000
        return int(connection.execute(select(DATABASE_CLOCK)).scalar_one())

    def head(self, connection: Connection) -> Head:
        found = connection.execute(head_statement(with_clock=self.clock is None)).one()
        check_revision(found.revision)
        now_ms = found.now_ms if self.clock is None else self.clock.now_us() // 1000
        return Head(
            seq=found.seq or 0,
            event_ts=found.event_ts or 0,
            time_horizon=found.horizon,
            now_ms=now_ms,
            has_pending=bool(found.has_pending),
        )

    def drain(self, connection: Connection) -> Head:
        """Under the lock: give what is visible in the inbox its places. The head afterwards."""
        while (head := self.head(connection)).has_pending:
            self._place_pending(connection, self._pending(connection, head), head)
        return head

    def _place_pending(self, connection: Connection, batch: Sequence[Pending], head: Head) -> None:
        """Place rows of the inbox. Where the database refuses them, halves are tried, until what it refuses is found and put aside."""
        if not batch:
            return
        try:
            with connection.begin_nested():
                fitting = self._fitting(connection, batch)
                self.place(connection, fitting, head)
                connection.execute(
                    delete_statement(self.dialect),
                    {"rows": rows_text({"id": event.row} for event in batch)},
                )
        except exc.DBAPIError as error:
            if not is_of_data(error):
                raise
            if len(batch) == 1:
                row = connection.execute(select(inbox).where(inbox.c.id == batch[0].row)).one()
                put_row_aside(connection, dict(row._mapping), said(error), head.next_ts)  # noqa: SLF001  # the name that SQLAlchemy documents
                return
            middle = len(batch) // 2
            self._place_pending(connection, batch[:middle], head)
            self._place_pending(connection, batch[middle:], self.head(connection))

    def has_pending(self, connection: Connection) -> bool:
        return connection.execute(select(inbox.c.id).limit(1)).first() is not None

    def _pending(self, connection: Connection, head: Head) -> list[Pending]:
        """Return the first rows of the inbox that are events. The others are put aside."""
        with any_bytes_as_text(connection):
            chosen = select(inbox).order_by(inbox.c.id).limit(BATCH)
            found = connection.execute(chosen).mappings().all()
        pending = []
        for row in map(dict, found):
            reason = unfit_reason(row)
            if reason is None:
                pending.append(_pending_of(row))
            else:
                put_row_aside(connection, row, reason, head.next_ts)
        return pending

    def _fitting(self, connection: Connection, batch: Sequence[Pending]) -> Sequence[Pending]:
        """Two transactions may bring the first partitions of a table, of different levels, and neither sees the other. A table has one
        number of levels, so the later event keeps its partition as a tag.
        """
        depths = {
            name: depth
            for name, (_, depth) in self.tables(
                connection, list({event.table for event in batch})
            ).items()
        }
        strangers = []
        for event in batch:
            if event.depth is not None and (depths.get(event.table) or event.depth) != event.depth:
                strangers.append(event.row)
            elif event.depth is not None:
                depths[event.table] = event.depth
        changed = {}
        rows = connection.execute(select(inbox).where(inbox.c.id.in_(strangers))).mappings()
        for row in map(dict, rows.all()):
            values = without_partition(row["partition"], json.loads(row["tags"]))
            connection.execute(update(inbox).where(inbox.c.id == row["id"]).values(**values))
            changed[row["id"]] = _pending_of({**row, **values})
        return [changed.get(event.row, event) for event in batch]

    def place(
        self,
        connection: Connection,
        batch: Sequence[Pending],
        head: Head,
        rows: Mapping[int, Mapping[str, Any]] | None = None,
    ) -> list[Place]:
        """Under the lock: places of a batch, registered at `head.next_ts`. What is copied is in `rows`, or lies in the inbox."""
        places = plan_places(batch, self._known(connection, batch), head.seq)
        new = [place for place in places if not place.duplicate]
        if new:
            given = [_placed(place, head.next_ts) for place in new]
            if rows is None:
                connection.execute(
                    move_statement(self.dialect),
                    {"rows": rows_text({**row, "inbox_id": row["row"]} for row in given)},
                )
            else:
                connection.execute(
                    insert_statement(self.dialect),
                    {"rows": rows_text({**rows[row["row"]], **row} for row in given)},
                )
            tags = [
                {"table_id": place.table_id, "tag_key": key, "seq": place.seq}
                for place in new
                for key in place.pending.tag_keys
            ]
            if tags:
                connection.execute(tags_statement(self.dialect), {"rows": rows_text(tags)})
        return places

    def _known(self, connection: Connection, batch: Sequence[Pending]) -> Known:
        """One question: which tables have events, which snapshots there are, and which events."""
        ids = self._table_ids(connection, batch)
        snapshots = {
            (ids[event.table], name)
            for event in batch
            for name in (event.snapshot_id, event.prev_snapshot_id)
            if name is not None
        }
        asked = {
            "of_tables": rows_text({"id": table_id} for table_id in ids.values()),
            "of_snapshots": rows_text(
                {"table_id": table_id, "snapshot_id": name} for table_id, name in snapshots
            ),
            "of_keys": rows_text({"dedup_key": event.dedup_key} for event in batch),
        }
        known = Known(ids=ids, with_events=set(), seqs={}, gaps={})
        for kind, number, text, flag in connection.execute(known_statement(self.dialect), asked):
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
        """Tables that are new are made; the first event with a partition fixes the number of levels."""
        depths: dict[tuple[str, str], int | None] = {}
        for event in batch:
            depths[event.table] = depths.get(event.table) or event.depth
        found = self.tables(connection, list(depths))
        missing = [name for name in depths if name not in found]
        if missing:
            connection.execute(
                insert(tables),
                [{"cluster": name[0], "name": name[1], "depth": depths[name]} for name in missing],
            )
            found = self.tables(connection, list(depths))
        for name, (table_id, depth) in found.items():
            if depth is None and depths[name] is not None:
                connection.execute(
                    tables.update().where(tables.c.id == table_id).values(depth=depths[name])
                )
        return {name: table_id for name, (table_id, _) in found.items()}

    def tables(
        self, connection: Connection, names: Sequence[tuple[str, str]]
    ) -> dict[tuple[str, str], tuple[int, int | None]]:
        """Id and number of partition levels of those that are known."""
        asked = {"rows": rows_text({"cluster": cluster, "name": name} for cluster, name in names)}
        found = connection.execute(tables_statement(self.dialect), asked)
        return {(row.cluster, row.name): (row.id, row.depth) for row in found}


def _pending_of(row: Mapping[str, Any]) -> Pending:
    """Of a row of the inbox."""
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
    """Of a row in the inbox: the partition as a tag."""
    with_tag = (
        {**tags, OTHER_PARTITION: partition}
        if len(partition) <= MAX_TAG_VALUE_CHARS and len(tags) < MAX_TAGS
        else tags
    )
    return {
        "partition": None,
        "partition_key": None,
        "depth": None,
        "tags": tags_text(with_tag),
        "tag_keys": " ".join(tag_keys(with_tag)),
    }


def tags_text(tags: Mapping[str, str]) -> str:
    """As the rows have them."""
    return json.dumps(dict(sorted(tags.items())), separators=(",", ":"), ensure_ascii=False)


def _placed(place: Place, event_ts: int) -> dict[str, Any]:
    """`row` is what the event was called when its place was asked for."""
    return {
        "row": place.pending.row,
        "seq": place.seq,
        "event_ts": event_ts,
        "table_id": place.table_id,
        "gap": place.gap,
    }
