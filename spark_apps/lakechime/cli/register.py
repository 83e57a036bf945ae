"""The verb `lakechime register`, for one event by options or many as JSON lines."""

import argparse
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, BinaryIO

from lakechime.cli.command import (
    EVENTS,
    add_cluster,
    add_partition,
    add_tags,
    add_verb,
    moment_ms,
    open_client,
    partition_of,
    show,
    tags_of,
)
from lakechime.completeness import completeness_tag
from lakechime.errors import InvalidEventError
from lakechime.event import DataChangeEvent, OperationType, TableFormat, event_from_json
from opal_lake.cli.command import Verb, Verbs, pairs
from opal_lake.cli.render import Style, escaped
from opal_lake.errors import count_text

if TYPE_CHECKING:
    from lakechime.answers import Registered

STANDARD_INPUT = "-"
_CHUNK_BYTES = 1 << 20
# Options that describe a single event
_EVENT_OPTIONS = (
    "format",
    "operation",
    "snapshot",
    "previous",
    "snapshot_ts",
    "partition",
    "partition_json",
    "path",
)


def commands(verbs: Verbs) -> None:
    """Register the verb."""
    example = (
        "lakechime register shop.orders --format ICEBERG --snapshot 4711 --previous 4710 "
        "--partition 2026-11-24"
    )
    summary = "register a data-change event, or many as JSON lines"
    parser = add_verb(
        verbs,
        Verb(
            name="register",
            group=EVENTS,
            summary=summary,
            example=example,
            run=register,
            operands="TABLE|- ",
        ),
    )
    parser.add_argument(
        "table",
        metavar="TABLE",
        help="the name of the table; - reads events from standard input, one JSON object per line",
    )
    parser.add_argument(
        "--format",
        choices=[str(member) for member in TableFormat],
        help="the format of the table, whose metadata has the snapshot",
    )
    parser.add_argument(
        "--snapshot",
        metavar="ID",
        help="the snapshot that the change created; only HIVE may leave it out",
    )
    parser.add_argument(
        "--previous", metavar="ID", help="the snapshot before the one of --snapshot"
    )
    parser.add_argument(
        "--snapshot-ts",
        type=moment_ms,
        metavar="WHEN",
        help="the time of the snapshot: ISO 8601, or milliseconds since 1970",
    )
    parser.add_argument(
        "--operation",
        choices=[str(member) for member in OperationType],
        help="the kind of the change (default: UPDATE, for any kind)",
    )
    add_partition(parser)
    parser.add_argument(
        "--path",
        metavar="dt=1/hour=3",
        help="the partition, as the path of its folders in a Hive table",
    )
    parser.add_argument(
        "--complete",
        action="append",
        default=[],
        metavar="PERIOD=PERCENT",
        help="how complete the partition is, such as hourly=99; repeat it for more periods",
    )
    add_tags(parser, "a tag of your own, by which consumers filter; repeat it for more tags")
    add_cluster(parser)


def register(args: argparse.Namespace) -> None:
    if args.table != STANDARD_INPUT:
        event = _event(args)
        with open_client(args) as client:
            [registered] = client.register([event])
        show(args, registered.to_json(), lambda style: [_line(registered, style)])
        return
    for name in _EVENT_OPTIONS:
        if getattr(args, name) is not None:
            option = name.replace("_", "-")
            raise InvalidEventError(
                f"--{option} describes a single event; with -, write it into each JSON line"
            )
    json_answers: list[dict[str, Any]] = []
    counts: Counter[str] = Counter()
    with open_client(args) as client:
        for batch in _batches(sys.stdin.buffer):
            answers = client.register(batch)
            _count(counts, answers)
            if args.json:
                json_answers += [answer.to_json() for answer in answers]
    show(args, json_answers, lambda style: [_summary(counts, style)])


def _event(args: argparse.Namespace) -> DataChangeEvent:
    if args.format is None:
        raise InvalidEventError(
            f"lakechime register needs --format; write one of {', '.join(TableFormat)}"
        )
    return DataChangeEvent(
        table=args.table,
        cluster=args.cluster,
        partition=_partition(args),
        snapshot_id=args.snapshot,
        snapshot_ts=args.snapshot_ts,
        prev_snapshot_id=args.previous,
        table_format=args.format,
        operation_type=args.operation or OperationType.UPDATE,
        tags=tags_of(args) | _completeness(args),
    )


def _partition(args: argparse.Namespace) -> tuple[Any, ...] | None:
    if args.path is None:
        return partition_of(args)
    if args.partition is not None or args.partition_json is not None:
        raise InvalidEventError("--path and --partition both name the partition; use one of them")
    from lakechime.producers.hive import partition_of_path

    return partition_of_path(args.path)


def _completeness(args: argparse.Namespace) -> dict[str, str]:
    """Return the tags of --complete."""
    tags: dict[str, str] = {}
    for period, percent in pairs(args.complete, "--complete").items():
        tags |= completeness_tag(period, percent)
    return tags


def _batches(stream: BinaryIO) -> Iterator[list[DataChangeEvent]]:
    """Yield the events of JSON lines in batches, as the lines arrive."""
    line_count = 0
    partial_line = b""
    # `read` would wait for a whole chunk
    read = getattr(stream, "read1", stream.read)
    while chunk := read(_CHUNK_BYTES):
        text = partial_line + chunk
        *lines, partial_line = text.split(b"\n")
        yield from _parsed(lines, line_count)
        line_count += len(lines)
    yield from _parsed([partial_line], line_count)


def _parsed(lines: Sequence[bytes], lines_before: int) -> Iterator[list[DataChangeEvent]]:
    """Yield the events of the lines as one batch.

    At an invalid line it yields the events before that line, and then raises.
    """
    events: list[DataChangeEvent] = []
    for number, line in enumerate(lines, start=lines_before + 1):
        if not line.strip():
            continue
        try:
            events.append(event_from_json(line))
        except InvalidEventError as error:
            if events:
                yield events
            raise InvalidEventError(
                f"line {number:,} of standard input: {error}. The lines before it are registered; "
                "correct the line, and send it and the lines after it"
            ) from error
    if events:
        yield events


def _count(counts: "Counter[str]", answers: Sequence["Registered"]) -> None:
    for answer in answers:
        if answer.duplicate:
            counts["known"] += 1
        else:
            counts["new"] += 1
            counts["gaps"] += answer.gap


def _line(registered: "Registered", style: Style) -> str:
    event = registered.event
    state = style.good("registered")
    if registered.duplicate:
        state = style.warn("was registered already")
    line = f"{state}: {escaped(event.table)} as seq {event.seq}"
    if registered.gap:
        predecessor = escaped(event.prev_snapshot_id or "")
        line += style.warn(f"; its predecessor {predecessor} is not registered")
    return line


def _summary(counts: "Counter[str]", style: Style) -> str:
    parts = [style.good(f"registered {count_text(counts['new'], 'event')}")]
    if counts["known"]:
        parts.append(f"{counts['known']:,} were registered already")
    if counts["gaps"]:
        gaps = count_text(counts["gaps"], "predecessor")
        parts.append(style.warn(f"{gaps} not registered"))
    return "; ".join(parts)
