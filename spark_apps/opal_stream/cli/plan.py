"""`opal stream plan`: which process should read which partitions in the coming hours."""

import argparse
import json
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from opal_lake.cli.command import store_options, whole_number
from opal_lake.cli.render import Column, Style, output_width, text_table
from opal_lake.errors import InvalidInputError, count_text

if TYPE_CHECKING:
    from opal_stream.kafka.connection import Connection
    from opal_stream.kafka.topics import Partition
    from opal_stream.plan.spread import Spread
    from opal_stream.traffic.hours import Volume


def add_plan(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--hours",
        type=whole_number,
        default=1,
        metavar="N",
        help="after `plan`: for N hours (default: %(default)s)",
    )
    parser.add_argument(
        "--current",
        metavar="FILE",
        help="after `plan`: what --json wrote before; only what makes it even moves",
    )


def plan(args: argparse.Namespace, connection: "Connection | None") -> None:
    """Print it."""
    from opal_lake.table import Table
    from opal_stream.kafka.topics import Topics, chosen_partitions
    from opal_stream.plan.known import KnownTraffic, counted_traffic
    from opal_stream.plan.load import predict_rates, weigh
    from opal_stream.plan.spread import plan_spread, processes_for
    from opal_stream.traffic.hours import HOUR_MS

    if connection is None or not args.topic:
        raise InvalidInputError(
            "a plan needs Kafka and topics: --bootstrap-servers localhost:9092 --topic orders"
        )
    if bool(args.processes) == bool(args.capacity):
        raise InvalidInputError("a plan needs one of --processes N and --capacity N")
    topics = Topics(connection).describe(args.topic).values()
    partitions = chosen_partitions(topics, ())
    now_hour = time.time_ns() // 1_000_000 // HOUR_MS
    counted = (
        counted_traffic(Table.open(args.paths[0], store_options(args)), args.name, topics)
        if args.paths
        else {}
    )
    traffic = KnownTraffic(connection).complete(counted, partitions, now_hour)
    rates = predict_rates(traffic, partitions, now_hour, args.hours)
    loads = weigh(rates)
    current = _read_current(args.current) if args.current else ()
    spread = plan_spread(loads, args.processes or processes_for(loads, args.capacity), current)
    unknown = [str(partition) for partition in partitions if partition not in traffic]
    if args.json:
        print(json.dumps(_document(spread, loads, rates, unknown), indent=2))
        return
    style = Style.of(sys.stdout)
    for line in _lines(spread, unknown, style):
        print(line)


def _document(
    spread: "Spread",
    loads: "Mapping[Partition, float]",
    rates: "Mapping[Partition, Volume]",
    unknown: list[str],
) -> dict[str, object]:
    def entry(part: "Partition") -> dict[str, object]:
        rate = rates[part]
        sizes = {"messages": round(rate.messages, 3), "bytes": round(rate.bytes)}
        return {
            "topic": part.topic,
            "partition": part.number,
            "load": round(loads[part], 3),
            **sizes,
        }

    processes = [
        {
            "load": round(load, 3),
            "changed": number in spread.changed,
            "partitions": [entry(part) for part in sorted(share)],
        }
        for number, (share, load) in enumerate(zip(spread.shares, spread.loads, strict=True))
    ]
    moved = [{"topic": part.topic, "partition": part.number} for part in spread.moved]
    return {
        "skew": round(spread.skew, 3),
        "processes": processes,
        "moved": moved,
        "without_history": unknown,
    }


def _read_current(path: str) -> "list[frozenset[Partition]]":
    from opal_stream.kafka.topics import Partition

    try:
        found = json.loads(Path(path).read_text(encoding="utf-8"))["processes"]
        return [
            frozenset(
                Partition(topic=str(one["topic"]), number=int(one["partition"]))
                for one in process["partitions"]
            )
            for process in found
        ]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InvalidInputError(
            f"--current {path!r} is no plan that opal stream plan --json wrote: {error}"
        ) from error


def _lines(spread: "Spread", unknown: list[str], style: Style) -> Iterator[str]:
    rows = [
        {
            "process": number,
            "load": load,
            "count": len(share),
            "partitions": " ".join(map(str, sorted(share))) or "-",
            "restart": "yes" if number in spread.changed else "",
        }
        for number, (share, load) in enumerate(zip(spread.shares, spread.loads, strict=True))
    ]
    columns = [
        Column(key="process", title="process", right=True),
        Column(key="load", title="messages/s", right=True, show=lambda value: f"{value:,.1f}"),
        Column(key="count", title="count", right=True, optional=True),
        Column(key="restart", title="restart"),
        Column(key="partitions", title="partitions", shrinks=True),
    ]
    yield from text_table(columns, rows, style, output_width(sys.stdout))
    yield f"the fullest process by the mean: {spread.skew:.2f}; {count_text(len(spread.moved), 'partition')} moved"
    if unknown:
        yield style.warn(f"no history yet: {', '.join(unknown)}")
