"""How far consumers are. Every change names the revision that it was decided on.

That they move after success only is up to who moves them: in Airflow `events.consumer` and `AcknowledgeOperator`.
"""

import json
from typing import Any

from sqlalchemy import Connection, Row, select, update

from lakechime.answers import SEEN_EVENTS, Consumer, Watermark
from lakechime.errors import ConflictError, InvalidEventError, NotFoundError
from lakechime.event import JsonValue
from lakechime.store.database.recordset import insert_into
from lakechime.store.schema import watermarks

MAX_VALUE_BYTES = 65_536


def value_text(value: JsonValue) -> str:
    if value is None:
        raise InvalidEventError("a watermark has a value; delete it instead of setting it to null")
    try:
        text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidEventError(
            f"the value of a watermark is JSON, and this is none: {error}"
        ) from error
    if len(text) > MAX_VALUE_BYTES:
        raise InvalidEventError(
            f"the value of a watermark takes {len(text):,} bytes, and may take {MAX_VALUE_BYTES:,}; store a short value here, and what is "
            "long beside the data"
        )
    return text


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


def put_watermark(connection: Connection, wanted: Watermark, expected: int | None) -> Watermark:
    """`wanted.revision` is not looked at: the database gives it."""
    values = {"value": value_text(wanted.value), "updated_ts": wanted.updated_ts}
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
    if row is None:
        raise _conflict(connection, wanted.consumer, wanted.key, expected)
    return _watermark(row)


def delete_watermark(connection: Connection, consumer: str, key: str, expected: int) -> None:
    still = (watermarks.c.revision == expected) & watermarks.c.value.is_not(None)
    changed = (
        update(watermarks)
        .where(_named(consumer, key), still)
        .values(value=None, revision=watermarks.c.revision + 1)
    )
    if connection.execute(changed).rowcount == 1:
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
