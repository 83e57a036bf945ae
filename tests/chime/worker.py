"""Producers and consumers, each a process of its own that may be killed at any moment.

Events expire meanwhile, as far as everybody has got: consumers by what they have processed, and
producers by where they looked last.
"""

import random
import time
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Engine, create_engine

from lakechime import ConflictError, DataChangeEvent, Interest, LakeChime, UnavailableError
from lakechime.answers import SEEN_EVENTS
from lakechime.store.register import register_in
from tests.chime.site import Site, client_of, digest_of, event_of

MAX_IN_BATCH = 60
LONGEST_HELD_SECONDS = 1.0
PAUSE_SECONDS = 0.02
PROGRESS = "story"  # the key of the watermark of a consumer


@dataclass(frozen=True, slots=True, kw_only=True)
class Consumer:
    """A consumer of `tables` (none: all) with `tags`, by one or several processes."""

    name: str
    tables: tuple[str, ...] = ()
    tags: tuple[tuple[str, str], ...] = ()
    by_find: bool = False


def opened(site: Site, dice: random.Random) -> LakeChime:
    """Open a client as soon as the database answers."""
    while True:
        try:
            return client_of(site, dice)
        except UnavailableError:
            time.sleep(0.2)


def produce(site: Site, number: int, seed: str) -> None:
    """Register what LakeChime lacks of a table, by the table's own log."""
    dice = random.Random(seed)
    table = site.table(number)
    with opened(site, dice) as client:
        engine = None if site.url.startswith("sqlite") else create_engine(site.url, pool_size=1)
        while True:
            try:
                pass_up_to(
                    client, producer_name(number), client.head()
                )  # what comes after this look is not forgotten before the next one
                if _registered(client, table, site.snapshots, dice=dice, engine=engine):
                    return
            except (UnavailableError, _away()):
                time.sleep(0.2)


def producer_name(number: int) -> str:
    """Return the name under which a producer stores where it looked last."""
    return f"producer {number}"


def pass_up_to(client: LakeChime, name: str, seq: int) -> None:
    """Move the watermark of a consumer to a seq, unless the watermark is there or beyond."""
    while True:
        watermark = client.watermark(name, SEEN_EVENTS)
        if watermark is not None and int(str(watermark.value)) >= seq:
            return
        revision = None if watermark is None else watermark.revision
        try:
            client.put_watermark(name, SEEN_EVENTS, seq, expected=revision)
        except ConflictError:
            continue  # another process of this consumer


def _away() -> type[Exception]:
    """Return whether an error is of the producer's own connection."""
    from sqlalchemy.exc import DBAPIError

    return DBAPIError


def _registered(
    client: LakeChime, table: str, snapshots: int, *, dice: random.Random, engine: Engine | None
) -> bool:
    """Return whether all is registered."""
    state = client.table_state(table)
    last = int(state.last_snapshot_id or 0) if state is not None else 0
    if last >= snapshots:
        return True
    many = 1 if dice.random() < 0.2 else dice.randrange(1, MAX_IN_BATCH)
    batch = [event_of(table, number) for number in range(last + 1, min(last + many, snapshots) + 1)]
    if engine is not None and dice.random() < 0.3:
        _hold(engine, batch, dice)
    else:
        client.register(batch)
    return False


def _hold(engine: Engine, batch: list[DataChangeEvent], dice: random.Random) -> None:
    """Register in a transaction that stays open, and is undone now and then."""
    with engine.connect() as connection:
        half = len(batch) // 2
        register_in(connection, batch[:half])
        time.sleep(dice.random() ** 4 * LONGEST_HELD_SECONDS)
        register_in(connection, batch[half:])
        if dice.random() < 0.1:
            connection.rollback()
        else:
            connection.commit()


def consume(site: Site, consumer: Consumer, seed: str) -> None:
    """Read events, record them, and move the watermark in one step."""
    dice = random.Random(seed)
    with (
        opened(site, dice) as client,
        (site.folder / f"{consumer.name}-{seed}").open("a", encoding="utf-8") as ledger,
    ):
        while True:
            try:
                progress = _read(client, consumer, dice)
                if progress is None:
                    time.sleep(PAUSE_SECONDS)
                    continue
                before, revision, events, to_seq = progress
                ledger.writelines(
                    f"{event.seq} {event.table} {event.snapshot_id}\n" for event in events
                )
                ledger.flush()
                value = {
                    "seq": to_seq,
                    "count": before["count"] + len(events),
                    "digest": digest_of(before["digest"], events),
                }
                client.put_watermark(consumer.name, PROGRESS, value, expected=revision)
                pass_up_to(client, consumer.name, to_seq)
            except ConflictError:
                continue  # another process of this consumer was faster
            except UnavailableError:
                time.sleep(0.2)


def _read(
    client: LakeChime, consumer: Consumer, dice: random.Random
) -> tuple[Any, int | None, list[DataChangeEvent], int] | None:
    """Return what was processed, its revision, and the events after it."""
    watermark = client.watermark(consumer.name, PROGRESS)
    before: Any = {"seq": 0, "count": 0, "digest": ""}
    revision = None
    if watermark is not None:
        before, revision = watermark.value, watermark.revision
    tags = dict(consumer.tags)
    if consumer.by_find:
        answer = client.find([Interest(tables=consumer.tables, tags=tags, after=before["seq"])])
        if answer.seqs == (None,):  # nothing for it up to the head
            return (before, revision, [], answer.head) if answer.head > before["seq"] else None
    page = client.events(
        consumer.tables, after=before["seq"], tags=tags, limit=dice.randrange(1, 400)
    )
    if page.expired > before["seq"] and (
        watermark is None or client.watermark(consumer.name, PROGRESS) == watermark
    ):
        raise RuntimeError(
            f"events up to {page.expired} have expired, "
            f"and consumer {consumer.name} has seen those up to {before['seq']}"
        )
    if page.next_after == before["seq"]:
        return None
    return before, revision, [entry.event for entry in page.events], page.next_after
