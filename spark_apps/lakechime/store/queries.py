"""Queries for events. Indexes answer them; whole events are read only for the result."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from sqlalchemy import (
    ColumnElement,
    CompoundSelect,
    Connection,
    FromClause,
    Select,
    func,
    literal,
    select,
    union_all,
)

from lakechime.answers import Filter, Found, Interest, Page, table_name
from lakechime.store.database.recordset import LONG, TEXT, recordset, rows_text
from lakechime.store.database.statements import EXPIRED
from lakechime.store.digests import optional_partition_key, tag_keys
from lakechime.store.rows import registered_of, select_events
from lakechime.store.schema import event_tags, events, expired_partitions, meta, tables
from lakechime.store.sequencer import Head, Sequencer

MAX_UNION = 100  # tables that are looked up one by one
_HEAD_ROW = -1  # in the answer of `find_first`: the number of the row that has the head


def read_head(connection: Connection) -> int:
    return int(connection.execute(select(func.coalesce(func.max(events.c.seq), 0))).scalar_one())


def read_expired(connection: Connection, ids: Sequence[int] | None, key: str | None = None) -> int:
    """Return the greatest seq that expired of these tables, or 0.

    Without `ids` all tables count. With a `key` only that partition of the tables counts.
    """
    if ids is None:
        greatest = select(meta.c.value).where(meta.c.name == EXPIRED)
    elif key is None:
        of_tables = func.coalesce(func.max(tables.c.expired_seq), 0)
        greatest = select(of_tables).where(tables.c.id.in_(ids))
    else:
        of_partition = func.coalesce(func.max(expired_partitions.c.expired_seq), 0)
        is_named = expired_partitions.c.table_id.in_(ids)
        greatest = select(of_partition).where(is_named, expired_partitions.c.partition_key == key)
    return int(connection.execute(greatest).scalar_one())


def read_covered_from(connection: Connection, ids: Sequence[int] | None, start_ts: int) -> int:
    """Return the time from which no event of these tables has expired.

    The time is at least `start_ts`. Without `ids` all tables count.
    """
    chosen = select(func.max(tables.c.expired_ts))
    if ids is not None:
        chosen = chosen.where(tables.c.id.in_(ids))
    expired_ts = connection.execute(chosen).scalar()
    if expired_ts is None:
        return start_ts
    return max(start_ts, int(expired_ts) + 1)


def read_page(
    connection: Connection,
    sequencer: Sequencer,
    wanted: Filter,
    span: tuple[int, int | None],
    limit: int,
) -> Page:
    """Return a page of the wanted events in a span (after, until)."""
    after, until = span
    key = optional_partition_key(wanted.partition)
    # The head is read first: events that are registered after that belong to the next page
    head = read_head(connection)
    last = head if until is None else min(until, head)
    ids = None
    if wanted.tables:
        known = sequencer.tables(connection, wanted.tables)
        ids = [table_id for table_id, _ in known.values()]
    has_no_table = ids is not None and not ids
    if has_no_table or last <= after:
        return Page(
            events=(),
            next_after=max(after, last),
            more=False,
            head=head,
            expired=read_expired(connection, ids, key),
        )
    seqs = _seqs(wanted, ids, (after, last), limit + 1).subquery("matching")
    chosen = select_events().where(events.c.seq.in_(select(seqs.c.seq))).order_by(events.c.seq)
    rows = connection.execute(chosen).all()
    # Read last, so that it covers all events that had expired when the rows were read
    expired = read_expired(connection, ids, key)
    has_more = len(rows) > limit
    matching = tuple(registered_of(row) for row in rows[:limit])
    next_after = last
    if has_more:
        next_after = matching[-1].event.seq or 0
    return Page(events=matching, next_after=next_after, more=has_more, head=head, expired=expired)


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """The seqs of a time range, as after < seq <= until.

    No event of the range before `covered_until_ts` will be added.
    """

    after: int
    until: int
    covered_until_ts: int


def span_of(connection: Connection, head: Head, start_ts: int, end_ts: int) -> Span:
    """Return the span of start_ts <= event_ts < end_ts, as far as it is registered."""
    first = connection.execute(first_seq_statement(start_ts)).scalar()
    first_after_end = connection.execute(first_seq_statement(end_ts)).scalar()
    until = head.seq
    if first_after_end is not None:
        until = first_after_end - 1
    after = until
    if first is not None:
        after = min(first - 1, until)
    return Span(after=after, until=until, covered_until_ts=min(end_ts, head.fixed_ts))


def first_seq_statement(moment_ts: int) -> Select[Any]:
    """Return the query of the first seq registered at or after a time.

    Times never fall from one seq to the next.
    """
    return (
        select(events.c.seq)
        .where(events.c.event_ts >= moment_ts)
        .order_by(events.c.event_ts, events.c.seq)
        .limit(1)
    )


def _seqs(
    wanted: Filter, ids: Sequence[int] | None, span: tuple[int, int], limit: int
) -> Select[Any]:
    """Return the query of the first `limit` seqs that match.

    It asks table by table, so that each table is one range of an index.
    """
    key = optional_partition_key(wanted.partition)
    tags = tag_keys(wanted.tags)
    if ids is None or len(ids) > MAX_UNION:
        return _matching(ids, key, tags, span).order_by("seq").limit(limit)
    selects: list[Select[Any]] = []
    for table_id in ids:
        matching = _matching([table_id], key, tags, span).order_by("seq").limit(limit)
        selects.append(select(matching.subquery().c.seq))
    if len(selects) == 1:
        return selects[0]
    united = union_all(*selects).subquery()
    return select(united.c.seq).order_by(united.c.seq).limit(limit)


def _matching(
    ids: Sequence[int] | None, key: str | None, tags: Sequence[str], span: tuple[int, int]
) -> Select[Any]:
    """Return the query of the seqs in a span with a partition and tags.

    It finds events by the index of partitions, which have few events each. Without a partition it
    finds them by the first tag, if tables are named. Other tags are looked up event by event.
    """
    by_tag = key is None and bool(tags) and ids is not None
    source = event_tags if by_tag else events
    after, last = span
    chosen = select(source.c.seq).where(source.c.seq > after, source.c.seq <= last)
    if ids is not None:
        chosen = chosen.where(_is_of(source, ids))
    if by_tag:
        return _with_tags(chosen.where(source.c.tag_key == tags[0]), source, tags[1:])
    if key is not None:
        chosen = chosen.where(source.c.partition_key == key)
    return _with_tags(chosen, source, tags)


def _is_of(source: FromClause, ids: Sequence[int]) -> ColumnElement[bool]:
    if len(ids) == 1:
        return source.c.table_id == ids[0]
    return source.c.table_id.in_(ids)


def _with_tags(chosen: Select[Any], source: FromClause, tags: Sequence[str]) -> Select[Any]:
    """Return the query `chosen`, restricted to events that have all tags."""
    for number, key in enumerate(tags):
        tag = event_tags.alias(f"tag_{number}")
        is_tagged = select(tag.c.seq).where(
            tag.c.table_id == source.c.table_id, tag.c.tag_key == key, tag.c.seq == source.c.seq
        )
        chosen = chosen.where(is_tagged.exists())
    return chosen


def find_first(connection: Connection, dialect: str, interests: Sequence[Interest]) -> Found:
    """Return the first seq of each interest, and the head of the same moment.

    One statement asks for all of them: it descends into an index for each table of each interest.
    """
    # All interests of one kind (has a partition, number of tags) form one subquery
    rows_by_kind: dict[tuple[bool, int], list[dict[str, Any]]] = {}
    for number, interest in enumerate(interests):
        tags = tag_keys(interest.tags)
        key = optional_partition_key(interest.partition)
        row = {"n": number, "after": interest.after, "partition_key": key}
        for tag_number, tag in enumerate(tags):
            row[f"tag_{tag_number}"] = tag
        rows = rows_by_kind.setdefault((key is not None, len(tags)), [])
        for table in interest.tables:
            cluster, name = table_name(table)
            rows.append({**row, "cluster": cluster, "name": name})
    parameters: dict[str, str] = {}
    for kind_number, rows in enumerate(rows_by_kind.values()):
        parameters[f"rows_{kind_number}"] = rows_text(rows)
    statement = _find_statement(dialect, tuple(rows_by_kind))
    firsts: dict[int, int] = {}
    for number, seq in connection.execute(statement, parameters):
        if seq is not None:
            firsts[number] = min(seq, firsts.get(number, seq))
    seqs = tuple(firsts.get(number) for number in range(len(interests)))
    return Found(seqs=seqs, head=firsts.get(_HEAD_ROW, 0))


@lru_cache(maxsize=256)
def _find_statement(dialect: str, kinds: tuple[tuple[bool, int], ...]) -> CompoundSelect[Any]:
    """Return the query of (number of an interest, first seq in one table).

    One more row has the head. The parameter `rows_0` has the rows of the first kind, and so on.
    """
    head_number = literal(_HEAD_ROW, type_=LONG).label("n")
    head = select(head_number, func.max(events.c.seq).label("seq"))
    selects: list[Any] = [head]
    for kind_number, kind in enumerate(kinds):
        selects.append(_first_of(dialect, f"rows_{kind_number}", kind))
    return union_all(*selects)


def _first_of(dialect: str, parameter: str, kind: tuple[bool, int]) -> Select[Any]:
    """Return the query of the first seq in each table of all interests of one kind.

    A kind is (has a partition, number of tags). The query's rows are (number of the interest, seq).
    """
    by_partition, tag_count = kind
    tag_names = [f"tag_{number}" for number in range(tag_count)]
    text_columns = dict.fromkeys(["cluster", "name", "partition_key", *tag_names], TEXT)
    rows = recordset(dialect, parameter, {"n": LONG, "after": LONG, **text_columns})
    by_tag = tag_count > 0 and not by_partition
    source: FromClause = events
    other_tags = tag_names
    if by_tag:
        source = event_tags.alias("first_tag")
        other_tags = tag_names[1:]
    first = select(source.c.seq).where(
        source.c.table_id == tables.c.id, source.c.seq > rows.c.after
    )
    if by_partition:
        first = first.where(source.c.partition_key == rows.c.partition_key)
    if by_tag:
        first = first.where(source.c.tag_key == rows.c.tag_0)
    for name in other_tags:
        tag = event_tags.alias(name)
        is_tagged = select(tag.c.seq).where(
            tag.c.table_id == tables.c.id,
            tag.c.tag_key == rows.c[name],
            tag.c.seq == source.c.seq,
        )
        first = first.where(is_tagged.correlate(tables, rows, source).exists())
    first_seq = first.order_by(source.c.seq).limit(1).correlate(tables, rows).scalar_subquery()
    is_named = (tables.c.cluster == rows.c.cluster) & (tables.c.name == rows.c.name)
    return select(rows.c.n, first_seq.label("seq")).join_from(rows, tables, is_named)
