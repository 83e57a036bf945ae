"""The verb `opal stream status`: the status of a table's streams, and their alarms."""

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


# {0} is the table, {1} the stream, {2} its topics
_NOTHING = (
    "no stream has committed to {0} yet: check that a stream runs, and that this is its table; to "
    "see the messages that wait in a topic, add --topic NAME"
)
_NOTHING_OF_TOPICS = (
    "stream {1} has committed nothing of {2} to {0}; to see the messages that wait there, add "
    "--bootstrap-servers"
)


def status(args: argparse.Namespace) -> int:
    """Print the status and the alarms.

    Return the exit code FINDINGS if there are alarms.
    """
    given = operation_of(args, Status)
    check_kafka()
    from opal_lake.table import Table
    from opal_stream.tracking.alarms import AlarmLimits, find_alarms
    from opal_stream.tracking.event_files import EventReader
    from opal_stream.tracking.status import read_status

    stall_s: float | None = None
    if given.alarm_stall is not None:
        stall_s = span_of("alarm_stall", given.alarm_stall).total_seconds()
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
        note = f"left out {broken} of tracking events in {given.tracking}"
        print(f"opal stream status: {note}", file=sys.stderr)
    _print(args, [asdict(entry) for entry in statuses], alarms)
    # With limits of alarms, a stream that never began is an alarm, too: it is not healthy
    has_not_begun = limits.are_given and not statuses
    if not statuses:
        template = _NOTHING_OF_TOPICS if topics else _NOTHING
        text = template.format(args.table, given.name, ", ".join(topics))
        if has_not_begun:
            text = f"start: {text}"
        print(text, file=sys.stderr if args.json else sys.stdout)
    if alarms or has_not_begun:
        return FINDINGS
    return OK


def _print(
    args: argparse.Namespace, entries: list[dict[str, Any]], alarms: "Sequence[Alarm]"
) -> None:
    if args.json:
        document = [entry | {"alarms": _alarms_of(entry, alarms)} for entry in entries]
        print(json.dumps(document, indent=2))
        return
    style = Style.of(sys.stdout)
    if entries:
        for line in _lines(entries, style):
            print(line)
    lines = [f"{style.bad(alarm.kind)}: {alarm.message}" for alarm in alarms]
    # Several partitions may have the same alarm: it is printed once
    for line in dict.fromkeys(lines):
        print(line)


def _alarms_of(entry: dict[str, Any], alarms: "Sequence[Alarm]") -> list[dict[str, str]]:
    name = entry["stream"], entry["topic"], entry["partition"]
    own = [alarm for alarm in alarms if alarm.name == name]
    return [{"kind": alarm.kind, "message": alarm.message} for alarm in own]


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
    rows = [entry | {"last": _last_commit(entry)} for entry in entries]
    yield from text_table(columns, rows, style, output_width(sys.stdout))


def _last_commit(entry: dict[str, Any]) -> str | None:
    """Return the time of the last commit.

    `before TIME` if only a bound of it is known.
    """
    committed: str | None = entry["committed"]
    before = entry["committed_before"]
    if committed or before is None:
        return committed
    return f"before {before}"
