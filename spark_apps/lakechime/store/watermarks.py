"""How far consumers are. Every change names the revision that it was decided on.

That they move after success only is up to who moves them: in Airflow `events.consumer` and `AcknowledgeOperator`.
"""

import json
from typing import Any

from sqlalchemy import Connection, Row, func, select, update

from lakechime.answers import SEEN_EVENTS, Consumer, Watermark, watermark_text
from lakechime.errors import ConflictError, InvalidEventError, NotFoundError
from lakechime.store.database.recordset import insert_into
from lakechime.store.schema import events, watermarks


def read_watermark(connection: Connection, consumer: str, key: str) -> Watermark | None:
    row = connection.execute(
        select(watermarks).where(_named(consumer, key), watermarks.c.value.is_not(None))
    ).first()
    return None if row is None else _watermark(row)


def read_watermarks(connection: Connection, consumer: str) -> dict[str, Watermark]:
    chosen = (
        select(watermarks)
        .where(watermarks.c.consumer == consumer, watermarks.c.value.is_not(None))
        .order_by(watermarks.c.key)
    )
    return {row.key: _watermark(row) for row in connection.execute(chosen)}


def read_consumers(connection: Connection) -> list[Consumer]:
    """Of everybody who reads events in their order, whoever is furthest behind first. A value that is no seq holds nothing back."""
    rows = connection.execute(
        select(watermarks).where(watermarks.c.key == SEEN_EVENTS, watermarks.c.value.is_not(None))
    )
    found = [
        Consumer(consumer=row.consumer, seq=int(row.value), moved_ts=row.updated_ts)
        for row in rows
        if row.value.lstrip("-").isdigit()
    ]
    return sorted(found, key=lambda consumer: (consumer.seq, consumer.consumer))


def put_watermark(
    connection: Connection, wanted: Watermark, expected: int | None, step: str
) -> Watermark:
    """Move a watermark, or find that this very step moved it before and its answer was lost.

    `wanted.revision` is not looked at: the database gives it.
    """
    _check_place(connection, wanted)
    values = {
        "value": watermark_text(wanted.value),
        "updated_ts": wanted.updated_ts,
        "step": step,
    }
    if expected is None:
        first = {"consumer": wanted.consumer, "key": wanted.key, "revision": 1, **values}
        if (
            connection.execute(
                insert_into(connection, watermarks).values(**first).on_conflict_do_nothing()
            ).rowcount
            == 1
        ):
            return Watermark(
                consumer=wanted.consumer,
                key=wanted.key,
                value=wanted.value,
                revision=1,
                updated_ts=wanted.updated_ts,
            )
        still: Any = watermarks.c.value.is_(None)  # deleted
    else:
        still = (watermarks.c.revision == expected) & watermarks.c.value.is_not(None)
    changed = (
        update(watermarks)
        .where(_named(wanted.consumer, wanted.key), still)
        .values(**values, revision=watermarks.c.revision + 1)
        .returning(watermarks)
    )
    row = connection.execute(changed).first()
    if row is None:  # perhaps this very move was made, and its answer lost
        row = _moved_by(connection, wanted.consumer, wanted.key, step)
        if row is not None and not _is_after(row, wanted.value, expected):
            row = None
    if row is None or row.value is None:
        raise _conflict(connection, wanted.consumer, wanted.key, expected)
    return _watermark(row)


def _is_after(row: Row[Any], value: Any, expected: int | None) -> bool:
    """Return whether a watermark is where one move from the expected revision leads."""
    if row.value is None or json.loads(row.value) != value:
        return False
    # One that was deleted and made again goes on from its old revision
    return expected is None or row.revision == expected + 1


def _check_place(connection: Connection, wanted: Watermark) -> None:
    """A consumer beyond the head would see nothing of what comes up to there."""
    if wanted.key != SEEN_EVENTS or not isinstance(wanted.value, int):
        return
    head = connection.execute(select(func.coalesce(func.max(events.c.seq), 0))).scalar_one()
    if wanted.value > head:
        raise InvalidEventError(
            f"the watermark 'events' of consumer {wanted.consumer} would be at {wanted.value}, and the newest event is {head}: those "
            f"between would be missed; set it to {head} at most"
        )


def _moved_by(connection: Connection, consumer: str, key: str, step: str) -> Row[Any] | None:
    """Return the watermark if this step was the last to change it."""
    return connection.execute(
        select(watermarks).where(_named(consumer, key), watermarks.c.step == step)
    ).first()


def delete_watermark(
    connection: Connection, consumer: str, key: str, expected: int, step: str
) -> None:
    still = (watermarks.c.revision == expected) & watermarks.c.value.is_not(None)
    changed = (
        update(watermarks)
        .where(_named(consumer, key), still)
        .values(value=None, revision=watermarks.c.revision + 1, step=step)
    )
    if connection.execute(changed).rowcount == 1 or _moved_by(connection, consumer, key, step):
        return
    if read_watermark(connection, consumer, key) is None:
        raise NotFoundError(
            f"consumer {consumer} has no watermark {key!r}; see which it has by watermarks({consumer!r})"
        )
    raise _conflict(connection, consumer, key, expected)


def _conflict(
    connection: Connection, consumer: str, key: str, expected: int | None
) -> ConflictError:
    there = read_watermark(connection, consumer, key)
    found = "is not there" if there is None else f"is at revision {there.revision}"
    meant = "none was expected" if expected is None else f"revision {expected} was expected"
    return ConflictError(
        f"watermark {key!r} of consumer {consumer} {found}, and {meant}: another process moved it; read it again and decide anew"
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
