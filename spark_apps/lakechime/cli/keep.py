"""The verbs that maintain the database: retention, its tables, and a check."""

import argparse
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from lakechime.cli.command import (
    KEEP,
    add_verb,
    database_url,
    is_service,
    moment_text,
    open_client,
    show,
)
from lakechime.cli.consumers import consumer_json
from lakechime.errors import InvalidEventError
from opal_lake.cli.command import Verb, Verbs
from opal_lake.cli.render import Style, escaped
from opal_lake.clock import SystemClock
from opal_lake.duration import parse_duration
from opal_lake.errors import count_text

if TYPE_CHECKING:
    from lakechime.client import LakeChime

MAX_NAMED = 5  # consumers that hold back retention
_US_PER_MS = 1000


def commands(verbs: Verbs) -> None:
    """Register the verbs."""
    _add_expire(verbs)
    _add_migrate(verbs)
    summary, example = (
        "show the database, its revision, and the number of events",
        "lakechime check",
    )
    add_verb(verbs, Verb(name="check", group=KEEP, summary=summary, example=example, run=check))


def _add_expire(verbs: Verbs) -> None:
    summary, example = (
        "delete old events that every consumer has seen",
        "lakechime expire --older-than 90d",
    )
    parser = add_verb(
        verbs, Verb(name="expire", group=KEEP, summary=summary, example=example, run=expire)
    )
    parser.add_argument(
        "--older-than",
        required=True,
        metavar="SPAN",
        help="of those registered longer ago than this: 90d, 12h, 1h30m",
    )
    parser.add_argument(
        "--unseen",
        action="store_true",
        help="also those that a consumer's watermark has not passed, and which it then misses",
    )


def expire(args: argparse.Namespace) -> None:
    older_than_us = parse_duration(args.older_than, name="--older-than")
    before_ms = (SystemClock().now_us() - older_than_us) // _US_PER_MS
    with open_client(args) as client:
        count = client.expire(max(before_ms, 0), keep_unseen=not args.unseen)
        # With --unseen retention waits for nobody
        holders = [] if args.unseen else _holders(client, before_ms)
    value = {"expired": count, "waited_for": holders}
    show(args, value, lambda style: _expired_page(count, holders, style))


def _holders(client: "LakeChime", before_ms: int) -> list[dict[str, Any]]:
    """Return the furthest consumers behind an event that is old enough to be deleted."""
    head = client.head()
    holders = []
    for consumer in client.consumers(MAX_NAMED):
        unseen = client.events(after=max(consumer.seq, 0), limit=1).events
        # The furthest behind come first
        if not unseen or (unseen[0].event.event_ts or 0) >= before_ms:
            break
        holders.append(consumer_json(consumer, head))
    return holders


def _expired_page(count: int, holders: Sequence[Mapping[str, Any]], style: Style) -> Iterator[str]:
    yield style.good(f"deleted {count_text(count, 'event')}")
    for row in holders:
        behind = count_text(row["behind"], "event")
        moved = moment_text(row["moved_ts"])
        yield style.warn(
            f"kept for {escaped(row['consumer'])}: it is at {row['seq']}, {behind} behind, "
            f"and moved last at {moved}"
        )
    if holders:
        yield style.faint(
            "to forget a consumer that is permanently gone: lakechime forget CONSUMER --yes"
        )


def _add_migrate(verbs: Verbs) -> None:
    summary, example = "create or upgrade the tables; serve does it too", "lakechime migrate"
    parser = add_verb(
        verbs, Verb(name="migrate", group=KEEP, summary=summary, example=example, run=migrate)
    )
    parser.add_argument(
        "--to",
        metavar="REVISION",
        help="go back to an older revision; base drops the tables with all that is in them",
    )
    parser.add_argument("--yes", action="store_true", help="really go back")


def migrate(args: argparse.Namespace) -> None:
    from lakechime.store.database.engine import open_database
    from lakechime.store.migrate import BASE, KNOWN, downgrade, read_revision, upgrade

    url = database_url(args)
    if is_service(url):
        raise InvalidEventError(
            f"{url} is a service, which upgrades its own database; name the database"
        )
    if args.to is not None and args.to not in (BASE, *KNOWN):
        raise InvalidEventError(
            f"--to {args.to!r} is unknown; the revisions are {', '.join((BASE, *KNOWN))}"
        )
    database = open_database(url)
    try:
        before = database.read(read_revision)
        if args.to is None:
            upgrade(database)
        elif args.to != BASE and (before is None or args.to >= before):
            upgrade(database, args.to)
        elif args.yes:
            downgrade(database, args.to)
        else:
            raise InvalidEventError(
                f"going back from {before} to {args.to} deletes what revision {args.to} has no "
                "columns for; back up the database, then add --yes"
            )
        after = database.read(read_revision)
    finally:
        database.close()
    show(args, {"before": before, "after": after}, lambda style: _migrated(before, after, style))


def _migrated(before: str | None, after: str | None, style: Style) -> Iterator[str]:
    if before == after:
        yield f"nothing to do: the tables are of revision {after}"
    else:
        yield f"{style.good('done')}: from {before or 'no tables'} to {after or 'no tables'}"


def check(args: argparse.Namespace) -> None:
    with open_client(args) as client:
        line = client.check()
    show(args, {"check": line}, lambda style: [line])
