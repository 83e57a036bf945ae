"""`opal stream status`: where the streams of a table stand, and what is wrong with them."""

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from opal_lake.arguments.values import span_of
from opal_lake.cli.command import store_options
from opal_lake.cli.flags import operation_of
from opal_lake.cli.render import Column, Style, output_width, text_table
from opal_lake.errors import count_text
from opal_lake.exit_codes import FINDINGS, OK
from opal_stream.cli.run import check_kafka, connection_of
from opal_stream.operations.verbs import Status

if TYPE_CHECKING:
    from opal_stream.tracking.alarms import Alarm


_NOTHING = "no stream has committed to {0} yet: see whether one runs, and whether this is its table; --topic NAME asks for what waits there"
_NOTHING_OF = "stream {1} has committed nothing of {2} to {0}; with --bootstrap-servers Kafka says what waits there"


def status(args: argparse.Namespace) -> int:
    """Print it; return the exit code: alarms are findings."""
    given = operation_of(args, Status)
    check_kafka()
    from opal_lake.table import Table
    from opal_stream.tracking.alarms import AlarmLimits, find_alarms
    from opal_stream.tracking.event_files import EventReader
    from opal_stream.tracking.status import read_status

    stall_s = (
        None
        if given.alarm_stall is None
        else span_of("alarm_stall", given.alarm_stall).total_seconds()
    )
    limits = AlarmLimits(lag=given.alarm_lag, stall_s=stall_s)
    topics = list(given.topics or ())
    statuses = read_status(
        Table.open(args.table, store_options(args)),
        connection_of(given),
        stall_s=stall_s,
        gathered_bytes=given.gathered_mb << 20,
        topics=topics,
        stream=given.name,
    )
    events = EventReader(given.tracking) if given.tracking else None
    alarms = find_alarms(statuses, limits, events.read() if events else ())
    if events and events.broken:
        broken = count_text(events.broken, "broken line")
        print(
            f"opal stream status: {broken} of tracking events in {given.tracking} left out",
            file=sys.stderr,
        )
    _print(args, [asdict(entry) for entry in statuses], alarms)
    is_unknown = limits.are_given and not statuses
    if not statuses:
        text = (_NOTHING_OF if topics else _NOTHING).format(
            args.table, given.name, ", ".join(topics)
        )
        print(
            f"{'start: ' if is_unknown else ''}{text}", file=sys.stderr if args.json else sys.stdout
        )
    return FINDINGS if alarms or is_unknown else OK


def _print(
    args: argparse.Namespace, entries: list[dict[str, Any]], alarms: "Sequence[Alarm]"
) -> None:
    if args.json:
        print(
            json.dumps(
                [entry | {"alarms": _alarms_of(entry, alarms)} for entry in entries], indent=2
            )
        )
        return
    style = Style.of(sys.stdout)
    told = dict.fromkeys(
        f"{style.bad(alarm.kind)}: {alarm.message}" for alarm in alarms
    )  # partitions may have one in common
    for line in (*(_lines(entries, style) if entries else ()), *told):
        print(line)


def _alarms_of(entry: dict[str, Any], alarms: "Sequence[Alarm]") -> list[dict[str, str]]:
    place = entry["stream"], entry["topic"], entry["partition"]
    return [
        {"kind": alarm.kind, "message": alarm.message} for alarm in alarms if alarm.place == place
    ]


def _lines(entries: list[dict[str, Any]], style: Style) -> Iterator[str]:
    columns = [
        Column(key="stream", title="stream"),
        Column(key="topic", title="topic", shrinks=True),
        Column(key="partition", title="partition", right=True),
        Column(key="position", title="position", right=True),
        Column(key="end", title="end", right=True),
        Column(key="lag", title="lag", right=True),
        Column(key="gathered", title="gathered", right=True, optional=True),
        Column(key="rate", title="messages/s", right=True, show=lambda value: f"{value:,.1f}"),
        Column(key="last", title="last commit", optional=True),
        Column(key="note", title="note", shrinks=True),
    ]
    rows = [
        entry | {"last": entry["committed"] or _before(entry["committed_before"])}
        for entry in entries
    ]
    yield from text_table(columns, rows, style, output_width(sys.stdout))


def _before(moment: str | None) -> str | None:
    return None if moment is None else f"before {moment}"
