"""The one client of LakeChime: the same methods over a database and over the service."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Self

from lakechime.answers import (
    SEEN_EVENTS,
    Consumer,
    EventsBetween,
    Filter,
    Found,
    Interest,
    Outbox,
    Page,
    Registered,
    Store,
    TableName,
    TableState,
    Watermark,
    checked_step,
    new_step,
    table_name,
    watermark_text,
)
from lakechime.errors import InvalidEventError, NotFoundError
from lakechime.event import (
    DEFAULT_CLUSTER,
    DataChangeEvent,
    JsonValue,
    check_name,
    check_number,
    checked_partition,
    checked_tags,
    json_text,
)

MAX_LIMIT = 10_000
MAX_TABLES = 10_000  # that one statement looks up
MAX_SEEN = 10_000  # items of one registration
MAX_POSITION_BYTES = 65_536
MAX_ITEM_CHARS = 16_384  # a path of 4,096 bytes, quoted
MAX_ITEM_BYTES = 1_024
_WEB = ("http://", "https://")


class LakeChime:
    """Registers events, finds them, and keeps the watermarks of who consumes them.

    Several threads may use one client. Close it, or use it as a context manager.
    """

    def __init__(self, store: Store) -> None:
        self._store = store

    @classmethod
    def open(cls, url: str, *, token: str | None = None, migrate: bool | None = None) -> Self:
        """`sqlite:////path/to/lakechime.db`, `postgresql+psycopg2://...`, or the URL of the service with a token.

        Tables are made where there are none. Older ones are upgraded in an SQLite file; in a server's database only with `migrate=True`,
        since many use it. With `migrate=False` nothing is made.
        """
        if url.startswith(_WEB):
            from lakechime.remote.http import HttpStore

            return cls(HttpStore.open(url, token=token))
        if token is not None:
            raise InvalidEventError(
                "a token is for the service (http://...); a database takes its password in the URL"
            )
        from lakechime.store.sql_store import SqlStore

        return cls(SqlStore.open(url, migrate=migrate))

    @property
    def store(self) -> Store:
        return self._store

    def register(
        self, events: Sequence[DataChangeEvent], *, outbox: Outbox | None = None
    ) -> list[Registered]:
        """Give each event its place, in the order given. An event that is there already keeps its first place."""
        for event in events:
            if event.seq is not None or event.event_ts is not None:
                raise InvalidEventError(
                    f"the event of {event.table} has seq={event.seq} and event_ts={event.event_ts}; registering gives them, leave them out"
                )
        return self._store.register(events, None if outbox is None else checked_outbox(outbox))

    def events(
        self,
        tables: Sequence[TableName] = (),
        *,
        after: int = 0,
        until: int | None = None,
        partition: Sequence[JsonValue] | None = None,
        tags: Mapping[str, str] | None = None,
        limit: int = 1000,
    ) -> Page:
        """Events with after < seq <= until, ascending by seq."""
        _check_limit(limit)
        check_number("after", after)
        if until is not None:
            check_number("until", until)
        meant = _filter(tables, partition, tags)
        if len(meant.tables) <= MAX_TABLES:
            return self._store.events(meant, after=after, until=until, limit=limit)
        return self._events_of_many(meant, after, until, limit)

    def _events_of_many(self, meant: Filter, after: int, until: int | None, limit: int) -> Page:
        """Ask for more tables than one statement looks up. What is registered after the first answer is for the next page."""
        pages: list[Page] = []
        for first in range(0, len(meant.tables), MAX_TABLES):
            portion = replace(meant, tables=meant.tables[first : first + MAX_TABLES])
            pages.append(self._store.events(portion, after=after, until=until, limit=limit))
            until = pages[0].head if until is None else min(until, pages[0].head)
        next_after = min(page.next_after for page in pages)
        events = sorted(
            (event for page in pages for event in page.events),
            key=lambda found: found.event.seq or 0,
        )
        fitting = [found for found in events if (found.event.seq or 0) <= next_after]
        if len(fitting) > limit:
            fitting = fitting[:limit]
            next_after = fitting[-1].event.seq or 0
        return Page(
            events=tuple(fitting),
            next_after=next_after,
            more=len(fitting) < len(events) or any(page.more for page in pages),
            head=pages[0].head,
            expired=max(page.expired for page in pages),
        )

    def events_between(
        self,
        table: str,
        start_ts: int,
        end_ts: int,
        *,
        cluster: str = DEFAULT_CLUSTER,
        partition: Sequence[JsonValue] | None = None,
        tags: Mapping[str, str] | None = None,
    ) -> EventsBetween:
        """Events with start_ts <= event_ts < end_ts, and how far that is final: as far as the range has passed, it stays as it was read."""
        if check_number("start_ts", start_ts) > check_number("end_ts", end_ts):
            raise InvalidEventError(
                f"start_ts={start_ts} is after end_ts={end_ts}; begin earlier, or end later"
            )
        return self._store.events_between(
            _filter([(cluster, table)], partition, tags), start_ts, end_ts
        )

    def find(self, interests: Sequence[Interest]) -> Found:
        """For each interest the first seq that matches: one query for all of them, or one for each 10,000 tables that they name.

        The head is then that of the first query: of what came after it, later queries may have found some, and earlier ones none.
        """
        parts = [
            (number, part)
            for number, interest in enumerate(interests)
            for part in _parts_of(_checked(interest))
        ]
        answers = [self._store.find(batch) for batch in _portions([part for _, part in parts])]
        seqs = [seq for answer in answers for seq in answer.seqs]
        firsts: list[int | None] = [None] * len(interests)
        for (number, _), seq in zip(parts, seqs, strict=True):
            first = firsts[number]
            if seq is not None and (first is None or seq < first):
                firsts[number] = seq
        return Found(seqs=tuple(firsts), head=min(answer.head for answer in answers))

    def tail(self, after: int, limit: int = 1000) -> Page:
        """What is new for everybody."""
        return self.events(after=after, limit=limit)

    def head(self) -> int:
        """The greatest seq that a watermark may take now; 0 when there is no event."""
        return self._store.head()

    def table_state(self, table: str, cluster: str = DEFAULT_CLUSTER) -> TableState | None:
        """What is known of a table, and how far its producer's log is registered; None of an unknown table."""
        return self._store.table_state(check_name("cluster", cluster), check_name("table", table))

    def seen(self, table: str, cluster: str = DEFAULT_CLUSTER) -> dict[str, JsonValue]:
        """What the table's producer remembers, by item: see `Outbox`."""
        check_name("cluster", cluster)
        check_name("table", table)
        found: dict[str, JsonValue] = {}
        after: str | None = ""
        while after is not None:
            page = self._store.seen(cluster, table, after=after)
            found.update(page.items)
            after = page.next_after
        return found

    def watermark(self, consumer: str, key: str = "") -> Watermark | None:
        return self._store.watermark(check_name("consumer", consumer), checked_key(key))

    def watermarks(self, consumer: str) -> dict[str, Watermark]:
        """By key."""
        return self._store.watermarks(check_name("consumer", consumer))

    def consumers(self, limit: int = 1000) -> list[Consumer]:
        """Those who read events in their order (watermark `events`), the furthest behind first: retention waits for them."""
        _check_limit(limit)
        return self._store.consumers(limit)

    def forget(self, consumer: str) -> list[str]:
        """Delete all watermarks of a consumer that is gone for good, and say which there were. If it comes back, it begins anew."""
        there = self.watermarks(consumer)
        if not there:
            raise NotFoundError(
                f"consumer {consumer} has no watermark; `lakechime consumers` shows which there are"
            )
        for key, watermark in there.items():
            self.delete_watermark(consumer, key, expected=watermark.revision)
        return list(there)

    def put_watermark(
        self,
        consumer: str,
        key: str,
        value: JsonValue,
        *,
        expected: int | None,
        step: str | None = None,
    ) -> Watermark:
        """Set it, if its revision is still the one that was read (None: there is none yet); else ConflictError.

        `step` names this change: asked for again under the same name, it is done once, and answered as it was.
        A watermark `events` names a place in the order of events: InvalidEventError where it is beyond the head.
        """
        if expected is not None:
            check_number("expected", expected)
        if key == SEEN_EVENTS:  # retention and triggers read it as a place
            check_number("the value of a watermark 'events'", value)
        watermark_text(value)
        return self._store.put_watermark(
            check_name("consumer", consumer),
            checked_key(key),
            value,
            expected=expected,
            step=new_step() if step is None else checked_step(step),
        )

    def delete_watermark(
        self, consumer: str, key: str, *, expected: int, step: str | None = None
    ) -> None:
        """Delete it, if its revision is still the one that was read. `step` as above."""
        check_number("expected", expected)
        self._store.delete_watermark(
            check_name("consumer", consumer),
            checked_key(key),
            expected=expected,
            step=new_step() if step is None else checked_step(step),
        )

    def expire(self, older_than_ms: int, *, keep_unseen: bool = True) -> int:
        """Delete events registered before this time, and say how many. The newest of each table stays.

        What a consumer's watermark `events` has not passed stays too, unless `keep_unseen` is False.
        """
        check_number("older_than_ms", older_than_ms)
        return self._store.expire(older_than_ms, keep_unseen=keep_unseen)

    def check(self) -> str:
        """One line for a test of the connection."""
        return self._store.check()

    def close(self) -> None:
        self._store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _check_limit(limit: int) -> None:
    if type(limit) is not int or not 1 <= limit <= MAX_LIMIT:
        raise InvalidEventError(f"limit={limit} is outside of 1 to {MAX_LIMIT:,}; ask page by page")


def checked_key(key: str) -> str:
    """Of a watermark; a consumer that has one only may leave it empty."""
    return key if key == "" else check_name("key", key)


def checked_outbox(outbox: Outbox) -> Outbox:
    """A position stays small, however large its table is."""
    check_name("cluster", outbox.cluster)
    check_name("table", outbox.table)
    for name, value in (("position", outbox.position), ("expected", outbox.expected)):
        json_text(name, value, MAX_POSITION_BYTES)
    if len(outbox.seen) > MAX_SEEN:
        raise InvalidEventError(
            f"seen has {len(outbox.seen):,} items, and a registration may have {MAX_SEEN:,}; make several"
        )
    for item, value in outbox.seen.items():
        if not 1 <= len(item) <= MAX_ITEM_CHARS or not item.isprintable():
            raise InvalidEventError(
                f"an item of seen is a text of 1 to {MAX_ITEM_CHARS:,} printable characters; shorten or quote it"
            )
        json_text("an item of seen", value, MAX_ITEM_BYTES)
    return outbox


def _filter(
    tables: Sequence[TableName],
    partition: Sequence[JsonValue] | None,
    tags: Mapping[str, str] | None,
) -> Filter:
    if isinstance(tables, str):
        raise InvalidEventError(f"tables={tables!r} is one text; write a list of tables")
    return Filter(
        tables=tuple(dict.fromkeys(table_name(table) for table in tables)),
        partition=None if partition is None else checked_partition(partition),
        tags=checked_tags(tags or {}),
    )


def _portions(interests: Sequence[Interest]) -> list[list[Interest]]:
    """What one statement answers: so many tables in all. One portion at least."""
    portions: list[list[Interest]] = [[]]
    count = 0
    for interest in interests:
        if portions[-1] and count + len(interest.tables) > MAX_TABLES:
            portions.append([])
            count = 0
        portions[-1].append(interest)
        count += len(interest.tables)
    return portions


def _parts_of(interest: Interest) -> list[Interest]:
    """Split an interest of more tables than one statement looks up."""
    return [
        replace(interest, tables=interest.tables[first : first + MAX_TABLES])
        for first in range(0, len(interest.tables), MAX_TABLES)
    ]


def _checked(interest: Interest) -> Interest:
    if not interest.tables:
        raise InvalidEventError("an interest names no table; name at least one")
    check_number("after", interest.after)
    meant = _filter(interest.tables, interest.partition, interest.tags)
    return Interest(
        tables=meant.tables, partition=meant.partition, tags=meant.tags, after=interest.after
    )
