"""The verb `opal stream plan`: a plan of which process reads which partitions."""

import argparse
import json
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from opal_lake.cli.command import store_options
from opal_lake.cli.flags import operation_of
from opal_lake.cli.render import Column, Style, output_width, text_table
from opal_lake.errors import InvalidInputError, count_text
from opal_stream.cli.run import check_kafka, connection_of
from opal_stream.operations.verbs import Plan

if TYPE_CHECKING:
    from opal_stream.kafka.topics import Partition
    from opal_stream.plan.spread import Spread
    from opal_stream.traffic.hours import Traffic, Volume


def plan(args: argparse.Namespace) -> None:
    """Print the plan for the coming hours."""
    given = operation_of(args, Plan)
    check_kafka()
    from opal_lake.table import Table
    from opal_stream.kafka.topics import Topics, chosen_partitions
    from opal_stream.plan.known import KnownTraffic, counted_traffic
    from opal_stream.plan.load import predict_rates, weighted_loads
    from opal_stream.plan.spread import plan_spread, processes_for
    from opal_stream.traffic.hours import HOUR_MS

    connection = connection_of(given)
    if connection is None:
        raise InvalidInputError(
            "opal stream plan needs --bootstrap-servers, for example "
            "--bootstrap-servers localhost:9092"
        )
    topics = Topics(connection).describe(list(given.topics)).values()
    partitions = chosen_partitions(topics, ())
    now_hour = time.time_ns() // 1_000_000 // HOUR_MS
    counted: dict[Partition, Traffic] = {}
    if args.table:
        table = Table.open(args.table, store_options(args))
        counted = counted_traffic(table, given.name, topics)
    traffic = KnownTraffic(connection).complete(counted, partitions, now_hour)
    rates = predict_rates(traffic, partitions, now_hour, given.hours)
    loads = weighted_loads(rates)
    current = _read_current(given.current) if given.current else ()
    processes = given.processes or processes_for(loads, given.capacity or 0)
    spread = plan_spread(loads, processes, current)
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
    """Return the plan as --json prints it.

    `unknown` are the partitions without known traffic.
    """

    def entry(partition: "Partition") -> dict[str, object]:
        rate = rates[partition]
        return {
            "topic": partition.topic,
            "partition": partition.number,
            "load": round(loads[partition], 3),
            "messages": round(rate.messages, 3),
            "bytes": round(rate.bytes),
        }

    processes: list[dict[str, object]] = []
    for number, (share, load) in enumerate(zip(spread.shares, spread.loads, strict=True)):
        processes.append(
            {
                "load": round(load, 3),
                "changed": number in spread.changed,
                "partitions": [entry(partition) for partition in sorted(share)],
            }
        )
    moved = [{"topic": part.topic, "partition": part.number} for part in spread.moved]
    return {
        "skew": round(spread.skew, 3),
        "processes": processes,
        "moved": moved,
        "without_history": unknown,
    }


def _read_current(path: str) -> "list[frozenset[Partition]]":
    """Return the shares of the processes in a file that --json wrote before."""
    from opal_stream.kafka.topics import Partition

    def share_of(entries: "list[Mapping[str, Any]]") -> "frozenset[Partition]":
        return frozenset(
            Partition(topic=str(entry["topic"]), number=int(entry["partition"]))
            for entry in entries
        )

    try:
        processes = json.loads(Path(path).read_text(encoding="utf-8"))["processes"]
        return [share_of(process["partitions"]) for process in processes]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InvalidInputError(
            f"--current {path!r} is not a plan: {error}; give a file with the output of "
            "`opal stream plan --json`"
        ) from error


def _lines(spread: "Spread", unknown: list[str], style: Style) -> Iterator[str]:
    rows: list[dict[str, object]] = []
    for number, (share, load) in enumerate(zip(spread.shares, spread.loads, strict=True)):
        restart = "yes" if number in spread.changed else ""
        rows.append(
            {
                "process": number,
                "load": load,
                "count": len(share),
                "partitions": " ".join(map(str, sorted(share))) or "-",
                "restart": restart,
            }
        )
    columns = [
        Column(key="process", title="process", right=True),
        Column(key="load", title="messages/s", right=True, show=lambda value: f"{value:,.1f}"),
        Column(key="count", title="count", right=True, optional=True),
        Column(key="restart", title="restart"),
        Column(key="partitions", title="partitions", shrinks=True),
    ]
    yield from text_table(columns, rows, style, output_width(sys.stdout))
    moved = count_text(len(spread.moved), "partition")
    yield f"skew {spread.skew:.2f} (load of the fullest process / mean load), {moved} moved"
    if unknown:
        yield style.warn(f"partitions without known traffic yet: {', '.join(unknown)}")
