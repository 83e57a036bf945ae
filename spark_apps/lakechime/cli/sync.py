"""The verbs `lakechime sync` and `lakechime watch`.

They register the changes in tables' own logs, once or until they are stopped.
"""

import argparse
import json
import signal
import sys
import threading
from collections.abc import Iterator, Mapping
from types import FrameType
from typing import TYPE_CHECKING

from lakechime.cli.command import EVENTS, add_cluster, add_verb, open_client
from lakechime.errors import InvalidEventError
from opal_lake.cli.command import Verb, Verbs
from opal_lake.cli.render import Style, escaped
from opal_lake.errors import count_text
from opal_lake.exit_codes import FINDINGS, OK

if TYPE_CHECKING:
    from lakechime.producers.outbox import Source, Synced

INTERVAL = "30s"
_OPERANDS = "[TABLE...] "
_EXAMPLE = "shop.orders=opal:s3://lake/orders web.clicks=iceberg:prod:web.clicks"
_STOPPING = (signal.SIGTERM, signal.SIGINT)


def commands(verbs: Verbs) -> None:
    """Register the verbs."""
    sync_verb = Verb(
        name="sync",
        group=EVENTS,
        summary="register the new commits of tables, as their own logs list them",
        example=f"lakechime sync {_EXAMPLE}",
        run=sync,
        operands=_OPERANDS,
    )
    _add_tables(add_verb(verbs, sync_verb))
    watch_verb = Verb(
        name="watch",
        group=EVENTS,
        summary="run sync at an interval until it is stopped",
        example="lakechime watch --file tables.yaml",
        run=watch,
        operands=_OPERANDS,
    )
    parser = add_verb(verbs, watch_verb)
    _add_tables(parser)
    parser.add_argument(
        "--interval",
        metavar="SPAN",
        help="the time between two looks at a table "
        f"(default: the interval in the file of --file, else {INTERVAL})",
    )


def _add_tables(parser: argparse.ArgumentParser) -> None:
    forms = (
        "NAME=FORMAT:LOCATION. FORMAT is opal, iceberg, delta or hive; LOCATION is a path, or "
        "CATALOG:NAME of an Iceberg table. A path alone is an Opal table, whose name is its "
        "property event_table"
    )
    parser.add_argument("paths", nargs="*", metavar="TABLE", help=forms)
    parser.add_argument(
        "--file",
        metavar="YAML",
        help="a file that lists tables, with the options of their stores and catalogs",
    )
    add_cluster(parser)


def _tables(args: argparse.Namespace) -> "tuple[Mapping[str, Source], float]":
    """Return (sources by name, seconds between two looks at a table)."""
    from lakechime.producers.tables import interval_seconds, read_tables, tables_of_words

    if bool(args.paths) == bool(args.file):
        raise InvalidEventError(
            f"lakechime {args.command} needs either TABLE... or --file; "
            f"write for example: lakechime {args.command} {_EXAMPLE}"
        )
    interval = getattr(args, "interval", None)
    if args.file is None:
        sources = tables_of_words(args.paths, args.cluster)
        return sources, interval_seconds(interval or INTERVAL, "--interval")
    tables = read_tables(args.file)
    if interval is None:
        return tables.sources, tables.interval_seconds
    return tables.sources, interval_seconds(interval, "--interval")


def sync(args: argparse.Namespace) -> int:
    """Register the new commits of each table, also if another table fails."""
    from lakechime.producers.outbox import sync as sync_source

    sources, _ = _tables(args)
    failures: list[Exception] = []
    results = []
    with open_client(args) as client:
        for name, source in sources.items():
            try:
                synced = sync_source(client, source)
            except Exception as error:  # the library of a format may raise any
                if len(sources) == 1:
                    raise
                failures.append(error)
                _print_failure(name, error)
                continue
            results.append(synced.to_json())
            if not args.json:
                _print_page(name, synced)
    if args.json:
        print(json.dumps(results, indent=2, ensure_ascii=False))
    return FINDINGS if failures else OK


def watch(args: argparse.Namespace) -> None:
    """Watch tables until SIGTERM or Ctrl-C; running looks finish first."""
    from lakechime.producers.watch import Watch

    sources, interval = _tables(args)
    stop = threading.Event()

    def end(number: int, frame: FrameType | None) -> None:
        stop.set()

    # Restored at the end: a caller in the same process has its own handlers
    old_handlers = {number: signal.signal(number, end) for number in _STOPPING}
    print(
        f"watching {count_text(len(sources), 'table')}, every {interval:g} s",
        file=sys.stderr,
        flush=True,
    )
    try:
        Watch(
            client=lambda: open_client(args),
            sources=sources,
            interval_seconds=interval,
            at_result=lambda name, synced: _print_result(args, name, synced),
            at_failure=lambda name, error, pause: _print_failure(
                name, error, f"; next look in {pause:g} s"
            ),
        ).run(stop)
    finally:
        for number, handler in old_handlers.items():
            signal.signal(number, handler)


def _print_result(args: argparse.Namespace, name: str, synced: "Synced") -> None:
    # Most looks find nothing new, and would fill the output
    if not synced.events and not synced.notes:
        return
    if args.json:
        print(json.dumps(synced.to_json(), ensure_ascii=False), flush=True)
    else:
        _print_page(name, synced)


def _print_page(name: str, synced: "Synced") -> None:
    for line in _page(name, synced, Style.of(sys.stdout)):
        print(line, flush=True)


def _page(name: str, synced: "Synced", style: Style) -> Iterator[str]:
    count = count_text(synced.events, "event")
    events = f"{style.good('registered')} {count}"
    if not synced.events:
        yield f"nothing new: {escaped(name)}"
    elif synced.last is None:
        yield f"{events}: {escaped(name)}"
    else:
        snapshots = count_text(synced.snapshots, "snapshot")
        last = escaped(synced.last)
        yield f"{events} of {snapshots}: {escaped(name)}, up to snapshot {last}"
    for note in synced.notes:
        yield f"{style.warn('note')}  {escaped(note)}"


def _print_failure(name: str, error: Exception, suffix: str = "") -> None:
    program = Style.of(sys.stderr).bad("lakechime:")
    message = str(error) or repr(error)
    line = f"{program} {escaped(name)}: {escaped(message)}{suffix}"
    print(line, file=sys.stderr, flush=True)
