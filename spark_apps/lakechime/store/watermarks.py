"""The progress of consumers. Every change names the revision that it is based on."""

import json
from dataclasses import replace
from typing import Any

from sqlalchemy import Connection, Row, func, select, update

from lakechime.answers import SEEN_EVENTS, Consumer, Watermark, watermark_text
from lakechime.errors import ConflictError, InvalidEventError, NotFoundError
from lakechime.store.database.recordset import insert_into
from lakechime.store.schema import events, watermarks


def read_watermark(connection: Connection, consumer: str, key: str) -> Watermark | None:
    is_set = _named(consumer, key) & watermarks.c.value.is_not(None)
    row = connection.execute(select(watermarks).where(is_set)).first()
    return None if row is None else _watermark(row)


def read_watermarks(connection: Connection, consumer: str) -> dict[str, Watermark]:
    chosen = (
        select(watermarks)
        .where(watermarks.c.consumer == consumer, watermarks.c.value.is_not(None))
        .order_by(watermarks.c.key)
    )
    return {row.key: _watermark(row) for row in connection.execute(chosen)}


def read_consumers(connection: Connection) -> list[Consumer]:
    """Return the consumers that read events in their order, the furthest behind first."""
    rows = connection.execute(
        select(watermarks).where(watermarks.c.key == SEEN_EVENTS, watermarks.c.value.is_not(None))
    )
    consumers = []
    for row in rows:
        # A value that is not a seq is not progress, so retention ignores it
        if row.value.lstrip("-").isdigit():
            consumer = Consumer(consumer=row.consumer, seq=int(row.value), moved_ts=row.updated_ts)
            consumers.append(consumer)
    return sorted(consumers, key=lambda consumer: (consumer.seq, consumer.consumer))


def put_watermark(
    connection: Connection, wanted: Watermark, expected: int | None, step: str
) -> Watermark:
    """Set a watermark that has its expected revision, and return it.

    `expected` is None for a watermark that does not exist. A repeat of the same step gets the same
    answer. `wanted.revision` is ignored, because the database assigns it.
    """
    _check_not_beyond_head(connection, wanted)
    values = {
        "value": watermark_text(wanted.value),
        "updated_ts": wanted.updated_ts,
        "step": step,
    }
    if expected is None:
        first = {"consumer": wanted.consumer, "key": wanted.key, "revision": 1, **values}
        inserted = insert_into(connection, watermarks).values(**first).on_conflict_do_nothing()
        if connection.execute(inserted).rowcount == 1:
            return replace(wanted, revision=1)
        # A deleted watermark keeps its row without a value, and that row can be set again
        is_expected: Any = watermarks.c.value.is_(None)
    else:
        is_expected = (watermarks.c.revision == expected) & watermarks.c.value.is_not(None)
    changed = (
        update(watermarks)
        .where(_named(wanted.consumer, wanted.key), is_expected)
        .values(**values, revision=watermarks.c.revision + 1)
        .returning(watermarks)
    )
    row = connection.execute(changed).first()
    if row is None:
        # It is not a conflict if this step set the watermark before, and the answer was lost
        row = _moved_by(connection, wanted.consumer, wanted.key, step)
        if row is None or not _is_result(row, wanted.value, expected):
            raise _conflict(connection, wanted.consumer, wanted.key, expected)
    return _watermark(row)


def _is_result(row: Row[Any], value: Any, expected: int | None) -> bool:
    """Return whether a row results from setting `value` at the expected revision."""
    if row.value is None or json.loads(row.value) != value:
        return False
    # With expected=None any revision fits: a deleted watermark continues its revisions
    return expected is None or row.revision == expected + 1


def _check_not_beyond_head(connection: Connection, wanted: Watermark) -> None:
    """Raise InvalidEventError for a seq beyond the head."""
    if wanted.key != SEEN_EVENTS or not isinstance(wanted.value, int):
        return
    head = connection.execute(select(func.coalesce(func.max(events.c.seq), 0))).scalar_one()
    if wanted.value > head:
        raise InvalidEventError(
            f"the watermark 'events' of consumer {wanted.consumer} would be at {wanted.value}, "
            f"and the newest event is {head}: the consumer would miss the events in between; "
            f"set it to at most {head}"
        )


def _moved_by(connection: Connection, consumer: str, key: str, step: str) -> Row[Any] | None:
    """Return the watermark if this step was the last to change it."""
    return connection.execute(
        select(watermarks).where(_named(consumer, key), watermarks.c.step == step)
    ).first()


def delete_watermark(
    connection: Connection, consumer: str, key: str, expected: int, step: str
) -> None:
    is_expected = (watermarks.c.revision == expected) & watermarks.c.value.is_not(None)
    changed = (
        update(watermarks)
        .where(_named(consumer, key), is_expected)
        .values(value=None, revision=watermarks.c.revision + 1, step=step)
    )
    if connection.execute(changed).rowcount == 1 or _moved_by(connection, consumer, key, step):
        return
    if read_watermark(connection, consumer, key) is None:
        raise NotFoundError(
            f"consumer {consumer} has no watermark {key!r}; "
            f"watermarks({consumer!r}) returns the ones that it has"
        )
    raise _conflict(connection, consumer, key, expected)


def _conflict(
    connection: Connection, consumer: str, key: str, expected: int | None
) -> ConflictError:
    watermark = read_watermark(connection, consumer, key)
    state = "does not exist"
    if watermark is not None:
        state = f"is at revision {watermark.revision}"
    expectation = "none was expected"
    if expected is not None:
        expectation = f"revision {expected} was expected"
    return ConflictError(
        f"watermark {key!r} of consumer {consumer} {state}, and {expectation}: "
        "another process changed the watermark; read it again and decide again"
    )


def _named(consumer: str, key: str) -> Any:
    return (watermarks.c.consumer == consumer) & (watermarks.c.key == key)


def _watermark(row: Row[Any]) -> Watermark:
    return Watermark(
        consumer=row.consumer,
        key=row.key,
        value=json.loads(row.value),
        revision=row.revision,
        updated_ts=row.updated_ts,
    )
