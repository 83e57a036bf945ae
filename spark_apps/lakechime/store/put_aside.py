"""Inbox rows that are not events, or that the tables refuse.

They are moved to a table of their own, where an operator sees them, so that they do not block the
rows behind them. Clients check events before they write them into the inbox. So such a row was
written by another program or by hand, or a constraint or trigger of this database refuses it.
"""

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from sqlalchemy import Connection, delete, func, insert, select

from lakechime.errors import InvalidEventError
from lakechime.event import DataChangeEvent
from lakechime.store.schema import inbox, put_aside

log = logging.getLogger(__name__)

_FIELDS = (
    "cluster",
    "snapshot_id",
    "snapshot_ts",
    "prev_snapshot_id",
    "table_format",
    "operation_type",
)


def unfit_reason(row: Mapping[str, Any]) -> str | None:
    """Return why a row of the inbox is not an event, or None where it is one."""
    try:
        partition = None if row["partition"] is None else json.loads(row["partition"])
        event = DataChangeEvent(
            table=row["name"],
            partition=partition,
            tags=json.loads(row["tags"]),
            **{name: row[name] for name in _FIELDS},
        )
    except (InvalidEventError, TypeError, ValueError, RecursionError) as error:
        return str(error)
    digests = (row["dedup_key"], row["partition_key"] or "", row["tag_keys"])
    if not all(isinstance(digest, str) and digest.isascii() for digest in digests):
        return f"its digests {digests!r} are not ASCII texts"
    depth = None if event.partition is None else len(event.partition)
    if row["depth"] != depth:
        return f"its depth is {row['depth']}, but its partition has {depth} levels"
    return None


@contextmanager
def any_bytes_as_text(connection: Connection) -> Iterator[None]:
    """Read bytes that are not UTF-8 as unpaired surrogates, which no event may have.

    SQLite may hold such bytes. Otherwise its driver would raise an error and return no row.
    """
    driver: Any = connection.connection.dbapi_connection
    if connection.dialect.name != "sqlite":
        yield
        return
    driver.text_factory = partial(str, encoding="utf-8", errors="surrogateescape")
    try:
        yield
    finally:
        driver.text_factory = str


def put_row_aside(connection: Connection, row: Mapping[str, Any], reason: str, now_ms: int) -> None:
    """Move a row out of the inbox, with the reason."""
    log.error(
        "event %s of %r in the inbox was put aside, and is not registered: %s",
        row["id"],
        row["name"],
        reason,
    )
    written = {
        "inbox_id": row["id"],
        "put_aside_ts": now_ms,
        "reason": reason.encode("utf-8", "backslashreplace").decode().replace("\0", "\\0"),
        "inbox_row": json.dumps(dict(row), default=repr),
    }
    connection.execute(insert(put_aside), written)
    connection.execute(delete(inbox).where(inbox.c.id == row["id"]))


def reasons_of(connection: Connection, inbox_ids: Sequence[int]) -> dict[int, str]:
    """Return the reasons why rows were put aside, by the rows' ids in the inbox."""
    is_one_of_them = put_aside.c.inbox_id.in_(inbox_ids)
    chosen = select(put_aside.c.inbox_id, put_aside.c.reason).where(is_one_of_them)
    return {row.inbox_id: row.reason for row in connection.execute(chosen)}


def put_aside_text(connection: Connection) -> str:
    """Return a text on the rows that were put aside, or "" without any."""
    count = connection.execute(select(func.count()).select_from(put_aside)).scalar_one()
    if not count:
        return ""
    newest = connection.execute(
        select(put_aside.c.reason).order_by(put_aside.c.id.desc()).limit(1)
    ).scalar_one()
    return (
        f", {count:,} put aside and not registered (reason of the last one: {newest}). "
        f"Read the table {put_aside.name}, register corrected events, then delete its rows"
    )
