"""`lakechime events`: what has been registered."""

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
from opal_lake.cli.command import Verb, Verbs, whole_number
from opal_lake.cli.render import Column, Style, escaped, output_width, text_table

if TYPE_CHECKING:
    from lakechime.answers import Page, Registered
    from lakechime.client import LakeChime

_POLL_SECONDS = 1.0
_PAGE = 1000


def commands(verbs: Verbs) -> None:
    """Register the verb."""
    summary, example = (
        "show events, the newest unless you say where to begin",
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
        "paths", nargs="*", metavar="TABLE", help="of these tables (default: all, of every cluster)"
    )
    parser.add_argument(
        "--limit",
        type=whole_number,
        default=20,
        metavar="N",
        help="how many (default: %(default)s)",
    )
    parser.add_argument(
        "--after", type=whole_number, metavar="SEQ", help="those after this seq, the oldest first"
    )
    parser.add_argument(
        "--from",
        dest="start",
        type=moment_ms,
        metavar="WHEN",
        help="registered then or later: ISO 8601, or milliseconds",
    )
    parser.add_argument(
        "--to",
        dest="end",
        type=moment_ms,
        metavar="WHEN",
        help="registered before this time (default: now)",
    )
    add_partition(parser)
    add_tags(parser, "with this tag; repeat for more, all of which have to match")
    add_cluster(parser)
    parser.add_argument(
        "--follow",
        action="store_true",
        help="go on, and show what comes; with --json a JSON object a line",
    )


def events(args: argparse.Namespace) -> None:
    if args.after is not None and (args.start is not None or args.end is not None):
        raise InvalidEventError("--after counts by seq, --from and --to by time; use one of them")
    with open_client(args) as client:
        found, more_after = _found(client, args)
        if not args.follow:
            shown = {
                "events": [registered.to_json() for registered in found],
                "more_after": more_after,
            }
            show(args, shown, lambda style: _page(found, more_after, style))
            return
        _print_each(args, found)
        _follow(client, args, found[-1].event.seq or 0 if found else client.head())


def _found(client: "LakeChime", args: argparse.Namespace) -> tuple[list["Registered"], int | None]:
    """And the seq to go on after, where there is more."""
    limit = max(args.limit, 1)
    if args.after is not None:
        page = _ask(client, args, args.after, None, limit)
        return list(page.events), page.next_after if page.more else None
    if args.start is not None or args.end is not None:
        found = _between(client, args)
        return found[:limit], found[limit - 1].event.seq if len(found) > limit else None
    return _newest(client, args, limit), None


def _between(client: "LakeChime", args: argparse.Namespace) -> list["Registered"]:
    from opal_lake.clock import SystemClock

    start, end = (
        args.start or 0,
        SystemClock().now_us() // 1000 + 1 if args.end is None else args.end,
    )
    if len(args.paths) != 1:
        raise InvalidEventError("--from and --to are for one table; name it, or use --after")
    found = client.events_between(
        args.paths[0],
        start,
        end,
        cluster=args.cluster,
        partition=partition_of(args),
        tags=tags_of(args),
    )
    if found.covered_from_ts > start and args.start is not None:
        print(
            f"lakechime: events of {escaped(args.paths[0])} have expired: those from before {moment_text(found.covered_from_ts)} may be "
            "missing; read the table itself for that time",
            file=sys.stderr,
        )
    return list(found.events)


def _newest(client: "LakeChime", args: argparse.Namespace, limit: int) -> list["Registered"]:
    """Look back from the head, twice as far each time, until there are enough."""
    head, back = client.head(), limit
    while True:
        after = max(head - back, 0)
        found: list[Registered] = []
        at, more = after, head > after
        while more:
            page = _ask(client, args, at, head, _PAGE)
            found = [*found, *page.events][-limit:]
            at, more = page.next_after, page.more
        if len(found) == limit or after == 0:
            return found
        back *= 2


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


def _print_each(args: argparse.Namespace, found: Sequence["Registered"]) -> None:
    style = Style.of(sys.stdout)
    for registered in found:
        print(
            json.dumps(registered.to_json(), ensure_ascii=False)
            if args.json
            else _line(registered, style),
            flush=True,
        )


def _line(registered: "Registered", style: Style) -> str:
    row = _row(registered)
    where = f" {row['partition']}" if row["partition"] else ""
    what = f"{escaped(row['operation'])} {escaped(row['snapshot'])}"
    return f"{row['seq']:>8}  {style.faint(row['registered'])}  {escaped(row['table'])}{where}  {what}  {style.faint(row['tags'])}".rstrip()


def _page(found: Sequence["Registered"], more_after: int | None, style: Style) -> Iterator[str]:
    if not found:
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
    yield from text_table(
        columns, [_row(registered) for registered in found], style, output_width(sys.stdout)
    )
    if more_after is not None:
        yield style.faint(f"there is more: --after {more_after}")


def _row(registered: "Registered") -> dict[str, Any]:
    event = registered.event
    gap = " (gap)" if registered.gap else ""
    return {
        "seq": event.seq,
        "registered": moment_text(event.event_ts or 0),
        "table": event.table if event.cluster == "default" else f"{event.cluster}: {event.table}",
        "partition": ""
        if event.partition is None
        else "/".join(_level(level) for level in event.partition),
        "operation": str(event.operation_type),
        "snapshot": event.snapshot_id or "-",
        "previous": f"{event.prev_snapshot_id or '-'}{gap}",
        "format": str(event.table_format),
        "tags": " ".join(f"{name}={value}" for name, value in event.tags.items()),
    }


def _level(level: Any) -> str:
    return level if isinstance(level, str) else json.dumps(level, ensure_ascii=False)
