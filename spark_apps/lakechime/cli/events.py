"""The verb `lakechime events`, which shows registered events."""

import argparse
import json
import sys
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from lakechime.cli.command import (
    EVENTS,
    add_cluster,
    add_partition,
    add_tags,
    add_verb,
    moment_ms,
    moment_text,
    open_client,
    partition_of,
    show,
    tags_of,
)
from lakechime.errors import InvalidEventError
from lakechime.event import DEFAULT_CLUSTER
from opal_lake.cli.command import Verb, Verbs, whole_number
from opal_lake.cli.render import Column, Style, escaped, output_width, text_table

if TYPE_CHECKING:
    from lakechime.answers import Page, Registered
    from lakechime.client import LakeChime

_POLL_SECONDS = 1.0  # between two looks of --follow
_PAGE = 1000  # events of one request


def commands(verbs: Verbs) -> None:
    """Register the verb."""
    summary, example = (
        "show the newest events, or the events after a seq or of a time",
        "lakechime events shop.orders --limit 5",
    )
    parser = add_verb(
        verbs,
        Verb(
            name="events",
            group=EVENTS,
            summary=summary,
            example=example,
            run=events,
            operands="[TABLE...] ",
        ),
    )
    parser.add_argument(
        "paths",
        nargs="*",
        metavar="TABLE",
        help="show events of these tables (default: of all tables of all clusters)",
    )
    parser.add_argument(
        "--limit",
        type=whole_number,
        default=20,
        metavar="N",
        help="show at most N events (default: %(default)s)",
    )
    parser.add_argument(
        "--after",
        type=whole_number,
        metavar="SEQ",
        help="show events after this seq, the oldest first",
    )
    parser.add_argument(
        "--from",
        dest="start",
        type=moment_ms,
        metavar="WHEN",
        help="show events registered at this time or later: ISO 8601, or milliseconds since 1970",
    )
    parser.add_argument(
        "--to",
        dest="end",
        type=moment_ms,
        metavar="WHEN",
        help="show events registered before this time (default: now)",
    )
    add_partition(parser)
    add_tags(parser, "show events with this tag; repeat it for more tags, which all have to match")
    add_cluster(parser)
    parser.add_argument(
        "--follow",
        action="store_true",
        help="keep running, and show new events; with --json each line is a JSON object",
    )


def events(args: argparse.Namespace) -> None:
    if args.after is not None and (args.start is not None or args.end is not None):
        raise InvalidEventError(
            "--after takes a seq, and --from and --to take times; use either --after or the times"
        )
    with open_client(args) as client:
        matching, more_after = _matching(client, args)
        if not args.follow:
            shown = {
                "events": [registered.to_json() for registered in matching],
                "more_after": more_after,
            }
            show(args, shown, lambda style: _page(matching, more_after, style))
            return
        _print_each(args, matching)
        if matching:
            last_seq = matching[-1].event.seq or 0
        else:
            last_seq = client.head()
        _follow(client, args, last_seq)


def _matching(
    client: "LakeChime", args: argparse.Namespace
) -> tuple[list["Registered"], int | None]:
    """Return (events, seq after which there are more, or None at the end)."""
    limit = max(args.limit, 1)
    if args.after is not None:
        page = _ask(client, args, args.after, None, limit)
        return list(page.events), page.next_after if page.more else None
    if args.start is None and args.end is None:
        return _newest(client, args, limit), None
    events = _between(client, args)
    if len(events) <= limit:
        return events, None
    return events[:limit], events[limit - 1].event.seq


def _between(client: "LakeChime", args: argparse.Namespace) -> list["Registered"]:
    from opal_lake.clock import SystemClock

    start = args.start or 0
    end = args.end
    if end is None:
        end = SystemClock().now_us() // 1000 + 1
    if len(args.paths) != 1:
        raise InvalidEventError(
            f"--from and --to need exactly one TABLE, got {len(args.paths)}; "
            "name one, or use --after"
        )
    answer = client.events_between(
        args.paths[0],
        start,
        end,
        cluster=args.cluster,
        partition=partition_of(args),
        tags=tags_of(args),
    )
    if answer.covered_from_ts > start and args.start is not None:
        print(
            f"lakechime: events of {escaped(args.paths[0])} have expired, and some before "
            f"{moment_text(answer.covered_from_ts)} may be missing here; "
            "read the table itself for that time",
            file=sys.stderr,
        )
    return list(answer.events)


def _newest(client: "LakeChime", args: argparse.Namespace, limit: int) -> list["Registered"]:
    """Return the newest matching events, at most `limit`.

    Each pass looks back twice as far from the head, until it finds enough events.
    """
    # Read once: events that are registered meanwhile would shift the range
    head = client.head()
    distance = limit
    while True:
        start = max(head - distance, 0)
        newest: list[Registered] = []
        after, has_more = start, head > start
        while has_more:
            page = _ask(client, args, after, head, _PAGE)
            newest = [*newest, *page.events][-limit:]
            after, has_more = page.next_after, page.more
        if len(newest) == limit or start == 0:
            return newest
        distance *= 2


def _ask(
    client: "LakeChime", args: argparse.Namespace, after: int, until: int | None, limit: int
) -> "Page":
    tables = [(args.cluster, name) for name in args.paths]
    return client.events(
        tables,
        after=after,
        until=until,
        partition=partition_of(args),
        tags=tags_of(args),
        limit=limit,
    )


def _follow(client: "LakeChime", args: argparse.Namespace, after: int) -> None:
    while True:
        page = _ask(client, args, after, None, _PAGE)
        _print_each(args, page.events)
        after = page.next_after
        if not page.more:
            time.sleep(_POLL_SECONDS)


def _print_each(args: argparse.Namespace, events: Sequence["Registered"]) -> None:
    style = Style.of(sys.stdout)
    for registered in events:
        if args.json:
            line = json.dumps(registered.to_json(), ensure_ascii=False)
        else:
            line = _line(registered, style)
        print(line, flush=True)


def _line(registered: "Registered", style: Style) -> str:
    row = _row(registered)
    partition = f" {row['partition']}" if row["partition"] else ""
    parts = [
        f"{row['seq']:>8}",
        style.faint(row["registered"]),
        f"{escaped(row['table'])}{partition}",
        f"{escaped(row['operation'])} {escaped(row['snapshot'])}",
        style.faint(row["tags"]),
    ]
    return "  ".join(parts).rstrip()


def _page(events: Sequence["Registered"], more_after: int | None, style: Style) -> Iterator[str]:
    if not events:
        yield style.faint("no event")
        return
    columns = [
        Column(key="seq", title="seq", right=True, show=str),
        Column(key="registered", title="registered (UTC)"),
        Column(key="table", title="table", show=escaped, shrinks=True),
        Column(key="partition", title="partition", show=escaped, shrinks=True),
        Column(key="operation", title="operation"),
        Column(key="snapshot", title="snapshot", show=escaped, shrinks=True),
        Column(key="previous", title="previous", show=escaped, shrinks=True, optional=True),
        Column(key="format", title="format", optional=True),
        Column(key="tags", title="tags", show=escaped, shrinks=True, optional=True),
    ]
    rows = [_row(registered) for registered in events]
    yield from text_table(columns, rows, style, output_width(sys.stdout))
    if more_after is not None:
        yield style.faint(f"there are more events: show them with --after {more_after}")


def _row(registered: "Registered") -> dict[str, Any]:
    event = registered.event
    gap = " (gap)" if registered.gap else ""
    table = event.table
    if event.cluster != DEFAULT_CLUSTER:
        table = f"{event.cluster}: {table}"
    return {
        "seq": event.seq,
        "registered": moment_text(event.event_ts or 0),
        "table": table,
        "partition": "/".join(_level_text(level) for level in event.partition or ()),
        "operation": str(event.operation_type),
        "snapshot": event.snapshot_id or "-",
        "previous": f"{event.prev_snapshot_id or '-'}{gap}",
        "format": str(event.table_format),
        "tags": " ".join(f"{name}={value}" for name, value in event.tags.items()),
    }


def _level_text(level: Any) -> str:
    if isinstance(level, str):
        return level
    return json.dumps(level, ensure_ascii=False)
