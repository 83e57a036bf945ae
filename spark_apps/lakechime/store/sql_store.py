"""The store of events in a database."""

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
from lakechime.store.database.engine import (
    DEFAULT_TUNING,
    Database,
    Tuning,
    check_revision,
    open_database,
)
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
MAX_COUNT = 100_000  # rows that a check counts
# For a range that ends in the future, a horizon of this age is new enough: no lock is needed
FRESH_MS = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class SqlStore:
    """A store in a database. Every method runs one transaction or a few."""

    database: Database
    sequencer: Sequencer

    @classmethod
    def open(
        cls,
        url: str,
        *,
        migrate: bool | None = None,
        clock: Clock | None = None,
        tuning: Tuning = DEFAULT_TUNING,
    ) -> "SqlStore":
        """Open a database. `clock` replaces the clock of the database."""
        database = open_database(url, tuning)
        ensure_schema(database, migrate=migrate)
        # SQLite's own clock is that of this machine
        own_clock = SystemClock() if database.dialect == "sqlite" else None
        return cls(
            database=replace(database, checked=True),
            sequencer=Sequencer(dialect=database.dialect, clock=clock or own_clock),
        )

    def register(
        self, events: Sequence[DataChangeEvent], outbox: Outbox | None
    ) -> list[Registered]:
        return Registration(
            database=self.database, sequencer=self.sequencer, given=events, outbox=outbox
        ).run()

    def events(self, wanted: Filter, *, after: int, until: int | None, limit: int) -> Page:
        self._drain()
        return self.database.read(
            lambda connection: read_page(connection, self.sequencer, wanted, (after, until), limit)
        )

    def events_between(self, wanted: Filter, start_ts: int, end_ts: int) -> EventsBetween:
        span = self.span(start_ts, end_ts)
        matching: list[Registered] = []
        after = span.after
        while after < span.until:
            page = self.events(wanted, after=after, until=span.until, limit=_PAGE)
            matching += page.events
            after = page.next_after
        return EventsBetween(
            events=tuple(matching),
            # Read after the events, so that it covers the events that had expired by then
            covered_from_ts=self.covered_from(wanted, start_ts),
            covered_until_ts=span.covered_until_ts,
        )

    def covered_from(self, wanted: Filter, start_ts: int) -> int:
        """Return the time from which no event of these tables has expired."""

        def work(connection: Connection) -> int:
            ids = None
            if wanted.tables:
                known = self.sequencer.tables(connection, wanted.tables)
                ids = [table_id for table_id, _ in known.values()]
            return read_covered_from(connection, ids, start_ts)

        return self.database.read(work)

    def span(self, start_ts: int, end_ts: int) -> Span:
        """Return a time range as a range of seqs.

        It takes the sequencer's lock only if the range has become final since the last call.
        """
        self._drain()
        span = self.database.read(lambda connection: self._final_span(connection, start_ts, end_ts))
        if span is not None:
            return span
        return self.database.write(
            lambda connection: self._raised_span(connection, start_ts, end_ts), repeatable=True
        )

    def _final_span(self, connection: Connection, start_ts: int, end_ts: int) -> Span | None:
        """Return the span, or None if the horizon has to be raised first.

        It has to be raised if the range ended after the horizon, or if the range ends in the
        future and the horizon is old.
        """
        head = self.sequencer.head(connection)
        is_final = end_ts <= head.fixed_ts
        is_in_future = end_ts > head.next_ts
        has_new_horizon = head.fixed_ts > head.now_ms - FRESH_MS
        if is_final or (is_in_future and has_new_horizon):
            return span_of(connection, head, start_ts, end_ts)
        return None

    def _raised_span(self, connection: Connection, start_ts: int, end_ts: int) -> Span:
        """Raise the horizon to the end of the range or to now, and return the span.

        No later event gets a time before the horizon.
        """
        self.sequencer.lock(connection)
        head = self.sequencer.drain(connection)
        horizon = min(end_ts, head.next_ts)
        is_lower = (meta.c.name == HORIZON) & (meta.c.value < horizon)
        connection.execute(update(meta).where(is_lower).values(value=horizon))
        raised_head = replace(head, time_horizon=max(head.time_horizon, horizon))
        return span_of(connection, raised_head, start_ts, end_ts)

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
        known = self.sequencer.tables(connection, [(cluster, table)])
        table_id, depth = known.get((cluster, table), (None, None))
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
        """Delete old events in batches, and return their number."""
        # Consumers may begin, or go back, between two batches: each batch asks what may be deleted
        after: int | None = 0
        total = 0
        while after is not None:
            work = partial(
                self._expire_batch,
                older_than_ms=older_than_ms,
                keep_unseen=keep_unseen,
                after=after,
            )
            count, after = self.database.write(work, repeatable=True)
            total += count
        return total

    def _expire_batch(
        self, connection: Connection, *, older_than_ms: int, keep_unseen: bool, after: int
    ) -> tuple[int, int | None]:
        """Delete a batch; return (number of events, `after` of the next batch or None)."""
        _check_revision(connection)
        self.sequencer.lock(connection)
        # The inbox may hold repeats of events that expire now: later they would count as new
        self.sequencer.drain(connection)
        last = last_expirable(connection, older_than_ms, keep_unseen=keep_unseen)
        if after >= last:
            return 0, None
        batch_size = self.database.tuning.expired_at_once
        return expire_batch(connection, self.database.dialect, (after, last), batch_size)

    def check(self) -> str:
        def work(connection: Connection) -> str:
            event_count = _count_text(connection, events)
            inbox_count = _count_text(connection, inbox)
            revision = read_revision(connection)
            head = read_head(connection)
            return (
                f"{self.database.dialect}, revision {revision}, {event_count} events, "
                f"head {head:,}, {inbox_count} in the inbox{put_aside_text(connection)}"
            )

        return self.database.read(work)

    def close(self) -> None:
        self.database.close()

    def _drain(self) -> None:
        """Give seqs to the events that producers committed in their own transactions."""
        if self.database.read(self.sequencer.has_pending):
            self.database.write(self._try_drain, repeatable=True)

    def _try_drain(self, connection: Connection) -> None:
        # Otherwise the holder of the lock drains the inbox
        if self.sequencer.try_lock(connection):
            self.sequencer.drain(connection)


def _check_revision(connection: Connection) -> None:
    check_revision(connection.execute(select(VERSIONS.c.version_num)).scalar())


def _count_text(connection: Connection, table: Table) -> str:
    """Return the number of rows, counted up to a maximum."""
    limited = select(table.c[0].label("n")).limit(MAX_COUNT + 1).subquery()
    count = int(connection.execute(select(func.count()).select_from(limited)).scalar_one())
    if count > MAX_COUNT:
        return f"more than {MAX_COUNT:,}"
    return f"{count:,}"
