"""The verbs that maintain the database: `expire`, `migrate` and `check`."""

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
        "delete old events that every consumer has passed",
        "lakechime expire --older-than 90d",
    )
    parser = add_verb(
        verbs, Verb(name="expire", group=KEEP, summary=summary, example=example, run=expire)
    )
    parser.add_argument(
        "--older-than",
        required=True,
        metavar="SPAN",
        help="delete events that were registered longer ago than this, such as 90d or 1h30m",
    )
    parser.add_argument(
        "--unseen",
        action="store_true",
        help="also delete events that a consumer has not passed yet: the consumer misses them",
    )


def expire(args: argparse.Namespace) -> None:
    age_us = parse_duration(args.older_than, name="--older-than")
    before_ms = (SystemClock().now_us() - age_us) // _US_PER_MS
    with open_client(args) as client:
        count = client.expire(max(before_ms, 0), keep_unseen=not args.unseen)
        holders: list[dict[str, Any]] = []
        if not args.unseen:  # with --unseen, retention waits for no consumer
            holders = _holders(client, before_ms)
    value = {"expired": count, "waited_for": holders}
    show(args, value, lambda style: _expired_page(count, holders, style))


def _holders(client: "LakeChime", before_ms: int) -> list[dict[str, Any]]:
    """Return the consumers that hold back retention as JSON, most behind first.

    These are the consumers that have not passed an event registered before `before_ms`.
    """
    head = client.head()
    holders = []
    for consumer in client.consumers(MAX_NAMED):
        unseen = client.events(after=max(consumer.seq, 0), limit=1).events
        has_old_unseen = unseen and (unseen[0].event.event_ts or 0) < before_ms
        if not has_old_unseen:
            break  # the consumers after this one are less far behind
        holders.append(consumer_json(consumer, head))
    return holders


def _expired_page(count: int, holders: Sequence[Mapping[str, Any]], style: Style) -> Iterator[str]:
    yield style.good(f"deleted {count_text(count, 'event')}")
    for row in holders:
        behind = count_text(row["behind"], "event")
        moved = moment_text(row["moved_ts"])
        yield style.warn(
            f"kept events for consumer {escaped(row['consumer'])}: it is at seq {row['seq']}, "
            f"{behind} behind, and last moved at {moved}"
        )
    if holders:
        yield style.faint(
            "to forget a consumer that is permanently gone: lakechime forget CONSUMER --yes"
        )


def _add_migrate(verbs: Verbs) -> None:
    summary, example = "create or upgrade the tables, as serve does", "lakechime migrate"
    parser = add_verb(
        verbs, Verb(name="migrate", group=KEEP, summary=summary, example=example, run=migrate)
    )
    parser.add_argument(
        "--to",
        metavar="REVISION",
        help="go back to an older revision; `base` drops the tables with all events",
    )
    parser.add_argument("--yes", action="store_true", help="confirm the way back with --to")


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
                f"going back from {before} to {args.to} deletes data that revision {args.to} "
                "cannot store; back up the database, then add --yes"
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
