"""The store over a database."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from sqlalchemy import Connection, Table, func, select, update

from lakechime.answers import (
    Consumer,
    EventsBetween,
    Filter,
    Found,
    Interest,
    Outbox,
    Page,
    Registered,
    SeenPage,
    TableState,
    Watermark,
)
from lakechime.event import DataChangeEvent, JsonValue
from lakechime.store import watermarks
from lakechime.store.database.engine import Database, check_revision, open_database
from lakechime.store.database.statements import HORIZON, VERSIONS
from lakechime.store.migrate import ensure_schema, read_revision
from lakechime.store.put_aside import put_aside_text
from lakechime.store.queries import (
    Span,
    find_first,
    read_covered_from,
    read_head,
    read_page,
    span_of,
)
from lakechime.store.register import Registration, read_seen
from lakechime.store.retention import expire_batch, last_expirable
from lakechime.store.schema import events, inbox, meta, positions
from lakechime.store.sequencer import Sequencer
from opal_lake.clock import Clock, SystemClock

_PAGE = 10_000
MAX_COUNT = 100_000  # that a check counts
FRESH_MS = 1_000  # a range that reaches into the future is answered from the last look, if that is no older


@dataclass(frozen=True, slots=True, kw_only=True)
class SqlStore:
    """Every method is a transaction, or a few. `clock`: instead of the database's."""

    database: Database
    sequencer: Sequencer

    @classmethod
    def open(
        cls, url: str, *, migrate: bool | None = None, clock: Clock | None = None
    ) -> "SqlStore":
        database = open_database(url)
        ensure_schema(database, migrate=migrate)
        own = SystemClock() if database.dialect == "sqlite" else None
        return cls(
            database=replace(database, checked=True),
            sequencer=Sequencer(dialect=database.dialect, clock=clock or own),
        )

    def register(
        self, events: Sequence[DataChangeEvent], outbox: Outbox | None
    ) -> list[Registered]:
        return Registration(
            database=self.database, sequencer=self.sequencer, given=events, outbox=outbox
        ).run()

    def events(self, meant: Filter, *, after: int, until: int | None, limit: int) -> Page:
        self._drain()
        return self.database.read(
            lambda connection: read_page(connection, self.sequencer, meant, (after, until), limit)
        )

    def events_between(self, meant: Filter, start_ts: int, end_ts: int) -> EventsBetween:
        span = self.span(start_ts, end_ts)
        found: list[Registered] = []
        after = span.after
        while after < span.until:
            page = self.events(meant, after=after, until=span.until, limit=_PAGE)
            found += page.events
            after = page.next_after
        return EventsBetween(
            events=tuple(found),
            covered_from_ts=self.covered_from(meant, start_ts),
            covered_until_ts=span.covered_until_ts,
        )

    def covered_from(self, meant: Filter, start_ts: int) -> int:
        """Return from when on no event of these tables has expired. Asked after the events were read, it speaks of them."""

        def work(connection: Connection) -> int:
            known = self.sequencer.tables(connection, meant.tables).values()
            ids = [table_id for table_id, _ in known] if meant.tables else None
            return read_covered_from(connection, ids, start_ts)

        return self.database.read(work)

    def span(self, start_ts: int, end_ts: int) -> Span:
        """A range of times as one of seq. Nobody waits for it where the range is final already, or as good as."""
        self._drain()
        span = self.database.read(lambda connection: self._final_span(connection, start_ts, end_ts))
        return span or self.database.write(
            lambda connection: self._raised_span(connection, start_ts, end_ts), repeatable=True
        )

    def _final_span(self, connection: Connection, start_ts: int, end_ts: int) -> Span | None:
        """None where the horizon has to be raised: the range has ended since, or was looked at longer ago."""
        head = self.sequencer.head(connection)
        is_ahead = end_ts > head.next_ts and head.fixed_ts > head.now_ms - FRESH_MS
        return (
            span_of(connection, head, start_ts, end_ts)
            if end_ts <= head.fixed_ts or is_ahead
            else None
        )

    def _raised_span(self, connection: Connection, start_ts: int, end_ts: int) -> Span:
        """No event that comes later gets a time within what has passed."""
        self.sequencer.lock(connection)
        head = self.sequencer.drain(connection)
        horizon = min(end_ts, head.next_ts)
        connection.execute(
            update(meta).where(meta.c.name == HORIZON, meta.c.value < horizon).values(value=horizon)
        )
        return span_of(
            connection,
            replace(head, time_horizon=max(head.time_horizon, horizon)),
            start_ts,
            end_ts,
        )

    def find(self, interests: Sequence[Interest]) -> Found:
        self._drain()
        return self.database.read(
            lambda connection: find_first(connection, self.database.dialect, interests)
        )

    def head(self) -> int:
        self._drain()
        return self.database.read(read_head)

    def table_state(self, cluster: str, table: str) -> TableState | None:
        self._drain()
        return self.database.read(lambda connection: self._table_state(connection, cluster, table))

    def _table_state(self, connection: Connection, cluster: str, table: str) -> TableState | None:
        table_id, depth = self.sequencer.tables(connection, [(cluster, table)]).get(
            (cluster, table), (None, None)
        )
        chosen = select(positions.c.position).where(
            positions.c.cluster == cluster, positions.c.name == table
        )
        position = connection.execute(chosen).scalar()
        if table_id is None and position is None:
            return None
        newest = (
            select(events.c.seq, events.c.snapshot_id)
            .where(events.c.table_id == table_id)
            .order_by(events.c.seq.desc())
            .limit(1)
        )
        last = connection.execute(newest).first()
        return TableState(
            table=table,
            cluster=cluster,
            depth=depth,
            last_seq=None if last is None else last.seq,
            last_snapshot_id=None if last is None else last.snapshot_id,
            position=None if position is None else json.loads(position),
        )

    def seen(self, cluster: str, table: str, *, after: str) -> SeenPage:
        return self.database.read(lambda connection: read_seen(connection, cluster, table, after))

    def watermark(self, consumer: str, key: str) -> Watermark | None:
        return self.database.read(
            lambda connection: watermarks.read_watermark(connection, consumer, key)
        )

    def watermarks(self, consumer: str) -> dict[str, Watermark]:
        return self.database.read(
            lambda connection: watermarks.read_watermarks(connection, consumer)
        )

    def consumers(self, limit: int) -> list[Consumer]:
        return self.database.read(watermarks.read_consumers)[:limit]

    def put_watermark(
        self, consumer: str, key: str, value: JsonValue, *, expected: int | None, step: str
    ) -> Watermark:
        wanted = Watermark(consumer=consumer, key=key, value=value, revision=0, updated_ts=0)

        def work(connection: Connection) -> Watermark:
            _check_revision(connection)
            now_ms = self.sequencer.now_ms(connection)
            return watermarks.put_watermark(
                connection, replace(wanted, updated_ts=now_ms), expected, step
            )

        return self.database.write(work, repeatable=True)

    def delete_watermark(self, consumer: str, key: str, *, expected: int, step: str) -> None:
        def work(connection: Connection) -> None:
            _check_revision(connection)
            watermarks.delete_watermark(connection, consumer, key, expected, step)

        self.database.write(work, repeatable=True)

    def expire(self, older_than_ms: int, *, keep_unseen: bool) -> int:
        """Consumers may begin, or go back, between two batches: each batch asks anew what may go."""
        after: int | None = 0
        gone = 0
        while after is not None:
            work = partial(
                self._expire_batch,
                older_than_ms=older_than_ms,
                keep_unseen=keep_unseen,
                after=after,
            )
            count, after = self.database.write(work, repeatable=True)
            gone += count
        return gone

    def _expire_batch(
        self, connection: Connection, *, older_than_ms: int, keep_unseen: bool, after: int
    ) -> tuple[int, int | None]:
        """How many went, and the seq to go on after; None at the end."""
        _check_revision(connection)
        self.sequencer.lock(connection)
        self.sequencer.drain(
            connection
        )  # what waits in the inbox may be there already, and is then no new event
        last = last_expirable(connection, older_than_ms, keep_unseen=keep_unseen)
        if after >= last:
            return 0, None
        return expire_batch(connection, self.database.dialect, (after, last))

    def check(self) -> str:
        def work(connection: Connection) -> str:
            count, waiting = (_count_text(connection, table) for table in (events, inbox))
            revision, head = read_revision(connection), read_head(connection)
            counted = f"{self.database.dialect}, revision {revision}, {count} events, head {head:,}, {waiting} in the inbox"
            return counted + put_aside_text(connection)

        return self.database.read(work)

    def close(self) -> None:
        self.database.close()

    def _drain(self) -> None:
        """What producers committed in transactions of their own gets its places before anybody looks."""
        if self.database.read(self.sequencer.has_pending):
            self.database.write(self._try_drain, repeatable=True)

    def _try_drain(self, connection: Connection) -> None:
        """Whoever has the lock does it for us."""
        if self.sequencer.try_lock(connection):
            self.sequencer.drain(connection)


def _check_revision(connection: Connection) -> None:
    check_revision(connection.execute(select(VERSIONS.c.version_num)).scalar())


def _count_text(connection: Connection, table: Table) -> str:
    """As far as it is counted."""
    few = select(table.c[0].label("n")).limit(MAX_COUNT + 1).subquery()
    count = int(connection.execute(select(func.count()).select_from(few)).scalar_one())
    return f"more than {MAX_COUNT:,}" if count > MAX_COUNT else f"{count:,}"
