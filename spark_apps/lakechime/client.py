"""The client of LakeChime: the same methods over a database and over the service."""

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
MAX_TABLES = 10_000  # of one statement
MAX_SEEN = 10_000  # items of one registration
MAX_POSITION_BYTES = 65_536
MAX_ITEM_CHARS = 16_384  # a path of 4,096 bytes, quoted
MAX_ITEM_BYTES = 1_024
_SHOWN_CHARS = 80
_WEB = ("http://", "https://")


class LakeChime:
    """A client that registers events, finds them, and moves consumers' watermarks.

    Several threads may use one client. Close it, or use it as a context manager.
    """

    def __init__(self, store: Store) -> None:
        self._store = store

    @classmethod
    def open(cls, url: str, *, token: str | None = None, migrate: bool | None = None) -> Self:
        """Open a database or the service.

        `url` is `sqlite:////path/to/lakechime.db`, `postgresql+psycopg2://...`, or the URL of the
        service, which needs a token.

        Missing tables are created. Older ones are upgraded in an SQLite file; in a server's
        database only with `migrate=True`, since many clients use it. With `migrate=False` the
        database stays as it is.
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
        """Register events in the given order, and return each with its seq.

        An event that is registered already keeps its first seq.
        """
        for event in events:
            if event.seq is not None or event.event_ts is not None:
                raise InvalidEventError(
                    f"the event of {event.table} has seq={event.seq} and "
                    f"event_ts={event.event_ts}; "
                    "leave both out, because registration assigns them"
                )
        if outbox is not None:
            outbox = checked_outbox(outbox)
        return self._store.register(events, outbox)

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
        """Return events with after < seq <= until, ascending by seq."""
        _check_limit(limit)
        check_number("after", after)
        if until is not None:
            check_number("until", until)
        wanted = _filter(tables, partition, tags)
        if len(wanted.tables) <= MAX_TABLES:
            return self._store.events(wanted, after=after, until=until, limit=limit)
        return self._events_of_many(wanted, after, until, limit)

    def _events_of_many(self, wanted: Filter, after: int, until: int | None, limit: int) -> Page:
        """Return a page of more tables than one statement looks up.

        Events that are registered after the first answer belong to the next page.
        """
        pages: list[Page] = []
        for first in range(0, len(wanted.tables), MAX_TABLES):
            portion = replace(wanted, tables=wanted.tables[first : first + MAX_TABLES])
            pages.append(self._store.events(portion, after=after, until=until, limit=limit))
            head = pages[0].head
            until = head if until is None else min(until, head)
        # After this seq, a portion of the tables may have more events than its page
        next_after = min(page.next_after for page in pages)
        events: list[Registered] = []
        for page in pages:
            events += page.events
        events.sort(key=_seq_of)
        complete = [event for event in events if _seq_of(event) <= next_after]
        if len(complete) > limit:
            complete = complete[:limit]
            next_after = _seq_of(complete[-1])
        return Page(
            events=tuple(complete),
            next_after=next_after,
            more=len(complete) < len(events) or any(page.more for page in pages),
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
        """Return the events with start_ts <= event_ts < end_ts, and the final range.

        A later call returns the same events of the final part.
        """
        if check_number("start_ts", start_ts) > check_number("end_ts", end_ts):
            raise InvalidEventError(
                f"start_ts={start_ts} is after end_ts={end_ts}; pass the earlier time as start_ts"
            )
        wanted = _filter([(cluster, table)], partition, tags)
        return self._store.events_between(wanted, start_ts, end_ts)

    def find(self, interests: Sequence[Interest]) -> Found:
        """Return for each interest the first seq that matches.

        One query answers interests of up to 10,000 tables. With more tables there are several
        queries, and `head` is that of the first one. An event after that head may be in the answer
        of a later query, while an earlier query missed another one.
        """
        parts: list[Interest] = []
        numbers: list[int] = []  # index of the interest that each part belongs to
        for number, interest in enumerate(interests):
            parts_of_interest = _parts_of(_checked(interest))
            parts += parts_of_interest
            numbers += [number] * len(parts_of_interest)
        answers = [self._store.find(portion) for portion in _portions(parts)]
        seqs: list[int | None] = []
        for answer in answers:
            seqs += answer.seqs
        firsts: list[int | None] = [None] * len(interests)
        for number, seq in zip(numbers, seqs, strict=True):
            first = firsts[number]
            if seq is not None and (first is None or seq < first):
                firsts[number] = seq
        return Found(seqs=tuple(firsts), head=min(answer.head for answer in answers))

    def tail(self, after: int, limit: int = 1000) -> Page:
        """Return the new events of all tables."""
        return self.events(after=after, limit=limit)

    def head(self) -> int:
        """Return the greatest seq that a watermark may have now; 0 without events."""
        return self._store.head()

    def table_state(self, table: str, cluster: str = DEFAULT_CLUSTER) -> TableState | None:
        """Return the state of a table and its producer's position, or None if unknown."""
        return self._store.table_state(check_name("cluster", cluster), check_name("table", table))

    def seen(self, table: str, cluster: str = DEFAULT_CLUSTER) -> dict[str, JsonValue]:
        """Return the values that the table's producer stored, by item: see `Outbox`."""
        check_name("cluster", cluster)
        check_name("table", table)
        items: dict[str, JsonValue] = {}
        after: str | None = ""
        while after is not None:
            page = self._store.seen(cluster, table, after=after)
            items.update(page.items)
            after = page.next_after
        return items

    def watermark(self, consumer: str, key: str = "") -> Watermark | None:
        return self._store.watermark(check_name("consumer", consumer), checked_key(key))

    def watermarks(self, consumer: str) -> dict[str, Watermark]:
        """Return the watermarks of a consumer by key."""
        return self._store.watermarks(check_name("consumer", consumer))

    def consumers(self, limit: int = 1000) -> list[Consumer]:
        """Return the consumers with a watermark `events`, the furthest behind first.

        Retention keeps the events that they have not passed.
        """
        _check_limit(limit)
        return self._store.consumers(limit)

    def forget(self, consumer: str) -> list[str]:
        """Delete all watermarks of a consumer, and return their keys.

        Call this for a consumer that is permanently gone. If it came back, it would begin again.
        """
        watermarks = self.watermarks(consumer)
        if not watermarks:
            raise NotFoundError(
                f"consumer {consumer} has no watermark; "
                "`lakechime consumers` lists the consumers that have one"
            )
        for key, watermark in watermarks.items():
            self.delete_watermark(consumer, key, expected=watermark.revision)
        return list(watermarks)

    def put_watermark(
        self,
        consumer: str,
        key: str,
        value: JsonValue,
        *,
        expected: int | None,
        step: str | None = None,
    ) -> Watermark:
        """Set a watermark if its revision is still the expected one.

        Raises ConflictError otherwise. `expected` is the revision that was read, or None if the
        watermark did not exist.

        `step` names this change: a repeat under the same name changes nothing, and is answered as
        before. The value of a watermark `events` is a seq of at most the head.
        """
        if expected is not None:
            check_number("expected", expected)
        if key == SEEN_EVENTS:  # retention and triggers read it as a seq
            check_number("the value of a watermark 'events'", value)
        watermark_text(value)
        return self._store.put_watermark(
            check_name("consumer", consumer),
            checked_key(key),
            value,
            expected=expected,
            step=_step_or_new(step),
        )

    def delete_watermark(
        self, consumer: str, key: str, *, expected: int, step: str | None = None
    ) -> None:
        """Delete a watermark if its revision is still the expected one.

        `step` names this change, as in `put_watermark`.
        """
        check_number("expected", expected)
        self._store.delete_watermark(
            check_name("consumer", consumer),
            checked_key(key),
            expected=expected,
            step=_step_or_new(step),
        )

    def expire(self, older_than_ms: int, *, keep_unseen: bool = True) -> int:
        """Delete events registered before this time, and return their number.

        The newest event of each table stays. Events that a consumer's watermark `events` has not
        passed stay too, unless `keep_unseen` is False.
        """
        check_number("older_than_ms", older_than_ms)
        return self._store.expire(older_than_ms, keep_unseen=keep_unseen)

    def check(self) -> str:
        """Return one line for a test of the connection."""
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


def _seq_of(registered: Registered) -> int:
    return registered.event.seq or 0


def _check_limit(limit: int) -> None:
    if type(limit) is not int or not 1 <= limit <= MAX_LIMIT:
        raise InvalidEventError(
            f"limit={limit} is not from 1 to {MAX_LIMIT:,}; ask for more events page by page"
        )


def _step_or_new(step: str | None) -> str:
    return new_step() if step is None else checked_step(step)


def checked_key(key: str) -> str:
    """Return the key of a watermark, which may be empty, or raise InvalidEventError."""
    if key == "":
        return key
    return check_name("key", key)


def checked_outbox(outbox: Outbox) -> Outbox:
    """Return an outbox if it is valid, or raise InvalidEventError.

    The size of a position is limited, however large its table is.
    """
    check_name("cluster", outbox.cluster)
    check_name("table", outbox.table)
    json_text("position", outbox.position, MAX_POSITION_BYTES)
    json_text("expected", outbox.expected, MAX_POSITION_BYTES)
    if len(outbox.seen) > MAX_SEEN:
        raise InvalidEventError(
            f"seen has {len(outbox.seen):,} items, and one registration may have {MAX_SEEN:,}; "
            "split them among several"
        )
    for item, value in outbox.seen.items():
        if not 1 <= len(item) <= MAX_ITEM_CHARS or not item.isprintable():
            raise InvalidEventError(
                f"{item[:_SHOWN_CHARS]!r} is not a valid item of seen; "
                f"write 1 to {MAX_ITEM_CHARS:,} printable characters"
            )
        json_text("an item of seen", value, MAX_ITEM_BYTES)
    return outbox


def _filter(
    tables: Sequence[TableName],
    partition: Sequence[JsonValue] | None,
    tags: Mapping[str, str] | None,
) -> Filter:
    if isinstance(tables, str):
        raise InvalidEventError(f"tables={tables!r} is a text; pass a list: tables=[{tables!r}]")
    names = [table_name(table) for table in tables]
    return Filter(
        tables=tuple(dict.fromkeys(names)),  # each once
        partition=None if partition is None else checked_partition(partition),
        tags=checked_tags(tags or {}),
    )


def _portions(interests: Sequence[Interest]) -> list[list[Interest]]:
    """Return the interests in one or more portions of at most MAX_TABLES tables."""
    portions: list[list[Interest]] = [[]]
    table_count = 0
    for interest in interests:
        if portions[-1] and table_count + len(interest.tables) > MAX_TABLES:
            portions.append([])
            table_count = 0
        portions[-1].append(interest)
        table_count += len(interest.tables)
    return portions


def _parts_of(interest: Interest) -> list[Interest]:
    """Return an interest as interests of at most MAX_TABLES tables each."""
    parts = []
    for first in range(0, len(interest.tables), MAX_TABLES):
        tables = interest.tables[first : first + MAX_TABLES]
        parts.append(replace(interest, tables=tables))
    return parts


def _checked(interest: Interest) -> Interest:
    if not interest.tables:
        raise InvalidEventError("an interest names no table; name at least one")
    check_number("after", interest.after)
    wanted = _filter(interest.tables, interest.partition, interest.tags)
    return Interest(
        tables=wanted.tables, partition=wanted.partition, tags=wanted.tags, after=interest.after
    )
