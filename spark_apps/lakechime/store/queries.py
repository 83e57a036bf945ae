"""Which events match: each question is answered from indexes, and whole events are read only of what is returned."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from sqlalchemy import CompoundSelect, Connection, Select, func, literal, select, union_all

from lakechime.answers import Filter, Found, Interest, Page, table_name
from lakechime.store.database.recordset import LONG, TEXT, recordset, rows_text
from lakechime.store.database.statements import EXPIRED
from lakechime.store.digests import partition_key, tag_keys
from lakechime.store.rows import registered_of, select_events
from lakechime.store.schema import event_tags, events, expired_partitions, meta, tables
from lakechime.store.sequencer import Head, Sequencer

MAX_UNION = 100  # tables that are looked up one by one


def read_head(connection: Connection) -> int:
    return int(connection.execute(select(func.coalesce(func.max(events.c.seq), 0))).scalar_one())


def read_expired(connection: Connection, ids: Sequence[int] | None, key: str | None = None) -> int:
    """The greatest seq that went, of these tables, or of one partition of them, or of all."""
    if ids is None:
        return int(
            connection.execute(select(meta.c.value).where(meta.c.name == EXPIRED)).scalar_one()
        )
    column, of_table = tables.c.expired_seq, tables.c.id
    if key is not None:
        column, of_table = expired_partitions.c.expired_seq, expired_partitions.c.table_id
    greatest = select(func.coalesce(func.max(column), 0)).where(of_table.in_(ids))
    if key is not None:
        greatest = greatest.where(expired_partitions.c.partition_key == key)
    return int(connection.execute(greatest).scalar_one())


def read_covered_from(connection: Connection, ids: Sequence[int] | None, start_ts: int) -> int:
    """Return from when on these tables, or all, have all their events; `start_ts` where that is earlier."""
    chosen = select(func.max(tables.c.expired_ts))
    if ids is not None:
        chosen = chosen.where(tables.c.id.in_(ids))
    expired_ts = connection.execute(chosen).scalar()
    return start_ts if expired_ts is None else max(start_ts, expired_ts + 1)


def read_page(
    connection: Connection,
    sequencer: Sequencer,
    meant: Filter,
    span: tuple[int, int | None],
    limit: int,
) -> Page:
    """The head comes first: what is registered after that look is for the next page. What expired comes last: it
    has to tell of all that was gone when the rows were read.
    """
    after, until = span
    key = None if meant.partition is None else partition_key(meant.partition)
    head = read_head(connection)
    last = head if until is None else min(until, head)
    ids = (
        [table_id for table_id, _ in sequencer.tables(connection, meant.tables).values()]
        if meant.tables
        else None
    )
    if (ids is not None and not ids) or last <= after:
        return Page(
            events=(),
            next_after=max(after, last),
            more=False,
            head=head,
            expired=read_expired(connection, ids, key),
        )
    seqs = _seqs(meant, ids, (after, last), limit + 1).subquery("matching")
    rows = connection.execute(
        select_events().where(events.c.seq.in_(select(seqs.c.seq))).order_by(events.c.seq)
    ).all()
    expired, more = read_expired(connection, ids, key), len(rows) > limit
    found = tuple(registered_of(row) for row in rows[:limit])
    return Page(
        events=found,
        next_after=found[-1].event.seq or 0 if more else last,
        more=more,
        head=head,
        expired=expired,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """What lies in a range of times by now, after < seq <= until; and how far no event is missing."""

    after: int
    until: int
    covered_until_ts: int


def span_of(connection: Connection, head: Head, start_ts: int, end_ts: int) -> Span:
    start, end = (
        connection.execute(first_seq_statement(moment)).scalar() for moment in (start_ts, end_ts)
    )
    until = head.seq if end is None else end - 1
    return Span(
        after=until if start is None else min(start - 1, until),
        until=until,
        covered_until_ts=min(end_ts, head.fixed_ts),
    )


def first_seq_statement(moment_ts: int) -> Select[Any]:
    """Of the first event registered at this time or later. Times never fall from one seq to the next."""
    return (
        select(events.c.seq)
        .where(events.c.event_ts >= moment_ts)
        .order_by(events.c.event_ts, events.c.seq)
        .limit(1)
    )


def _seqs(
    meant: Filter, ids: Sequence[int] | None, span: tuple[int, int], limit: int
) -> Select[Any]:
    """The first of those that match, table by table, so that each is one stretch of an index."""
    key = None if meant.partition is None else partition_key(meant.partition)
    keys = tag_keys(meant.tags)
    if ids is None or len(ids) > MAX_UNION:
        return _matching(ids, key, keys, span).order_by("seq").limit(limit)
    parts = [
        _matching([table_id], key, keys, span).order_by("seq").limit(limit).subquery()
        for table_id in ids
    ]
    if len(parts) == 1:
        return select(parts[0].c.seq)
    together = union_all(*(select(part.c.seq) for part in parts)).subquery()
    return select(together.c.seq).order_by(together.c.seq).limit(limit)


def _matching(
    ids: Sequence[int] | None, key: str | None, keys: Sequence[str], span: tuple[int, int]
) -> Select[Any]:
    """By partition first, which has few events, else by tags: what is common to many events is looked up event by event."""
    if key is not None or not keys or ids is None:
        chosen = select(events.c.seq).where(events.c.seq > span[0], events.c.seq <= span[1])
        if ids is not None:
            chosen = chosen.where(
                events.c.table_id == ids[0] if len(ids) == 1 else events.c.table_id.in_(ids)
            )
        if key is not None:
            chosen = chosen.where(events.c.partition_key == key)
        return _with_tags(chosen, events, keys)
    chosen = select(event_tags.c.seq).where(
        event_tags.c.tag_key == keys[0], event_tags.c.seq > span[0], event_tags.c.seq <= span[1]
    )
    chosen = chosen.where(
        event_tags.c.table_id == ids[0] if len(ids) == 1 else event_tags.c.table_id.in_(ids)
    )
    return _with_tags(chosen, event_tags, keys[1:])


def _with_tags(chosen: Select[Any], source: Any, keys: Sequence[str]) -> Select[Any]:
    for number, key in enumerate(keys):
        tag = event_tags.alias(f"tag_{number}")
        chosen = chosen.where(
            select(tag.c.seq)
            .where(
                tag.c.table_id == source.c.table_id, tag.c.tag_key == key, tag.c.seq == source.c.seq
            )
            .exists()
        )
    return chosen


def find_first(connection: Connection, dialect: str, interests: Sequence[Interest]) -> Found:
    """One statement for all: a descent into an index for each table of each interest. The head is of the same moment."""
    kinds: dict[tuple[bool, int], list[dict[str, Any]]] = {}
    for number, interest in enumerate(interests):
        keys = tag_keys(interest.tags)
        key = None if interest.partition is None else partition_key(interest.partition)
        row = {
            "n": number,
            "after": interest.after,
            "partition_key": key,
            **{f"tag_{place}": tag for place, tag in enumerate(keys)},
        }
        named = [
            {**row, "cluster": cluster, "name": name}
            for cluster, name in map(table_name, interest.tables)
        ]
        kinds.setdefault((key is not None, len(keys)), []).extend(named)
    given = {f"rows_{place}": rows_text(rows) for place, rows in enumerate(kinds.values())}
    found: dict[int, int] = {}
    for number, seq in connection.execute(_find_statement(dialect, tuple(kinds)), given):
        if seq is not None:
            found[number] = min(seq, found.get(number, seq))
    return Found(
        seqs=tuple(found.get(number) for number in range(len(interests))), head=found.get(-1, 0)
    )


@lru_cache(maxsize=256)
def _find_statement(dialect: str, kinds: tuple[tuple[bool, int], ...]) -> CompoundSelect[Any]:
    parts = [select(literal(-1, type_=LONG).label("n"), func.max(events.c.seq).label("seq"))]
    return union_all(
        *parts, *(_first_of(dialect, f"rows_{place}", kind) for place, kind in enumerate(kinds))
    )


def _first_of(dialect: str, parameter: str, kind: tuple[bool, int]) -> Select[Any]:
    """Of all interests that have a partition or not, and so many tags."""
    by_partition, tags = kind
    texts = ("cluster", "name", "partition_key", *(f"tag_{place}" for place in range(tags)))
    rows = recordset(dialect, parameter, {"n": LONG, "after": LONG, **dict.fromkeys(texts, TEXT)})
    source = events if by_partition or not tags else event_tags.alias("first_tag")
    first = select(source.c.seq).where(
        source.c.table_id == tables.c.id, source.c.seq > rows.c.after
    )
    if by_partition:
        first = first.where(source.c.partition_key == rows.c.partition_key)
    elif tags:
        first = first.where(source.c.tag_key == rows.c.tag_0)
    for place in range(0 if by_partition else 1, tags):
        tag = event_tags.alias(f"tag_{place}")
        same = (
            (tag.c.table_id == tables.c.id)
            & (tag.c.tag_key == rows.c[f"tag_{place}"])
            & (tag.c.seq == source.c.seq)
        )
        first = first.where(select(tag.c.seq).where(same).correlate(tables, rows, source).exists())
    answer = first.order_by(source.c.seq).limit(1).correlate(tables, rows).scalar_subquery()
    named = (tables.c.cluster == rows.c.cluster) & (tables.c.name == rows.c.name)
    return select(rows.c.n, answer.label("seq")).join_from(rows, tables, named)
