"""`opal stream run --processes`: the supervisor, and the command lines of its processes."""

import argparse
import logging
import sys
from collections.abc import Collection
from typing import TYPE_CHECKING

from opal_lake.arguments.values import span_of
from opal_stream.operations.verbs import Commit, Run

if TYPE_CHECKING:
    from opal_lake.table import Table
    from opal_stream.flush.options import StreamOptions
    from opal_stream.kafka.connection import Connection
    from opal_stream.kafka.topics import Partition
    from opal_stream.supervise.supervisor import Supervisor

# Arguments that are not passed on: they are the supervisor's own, or each process gets its own
# value
_OF_SUPERVISOR = (
    "processes",
    "capacity",
    "replan_interval",
    "stall_after",
    "no_committer",
    "json",
    "watched",
    "partitions",
)
_OF_METRICS = ("metrics_file", "metrics_port", "metrics_host")
EVERY_VERB = frozenset({"json", "option", "traceback"})
_OF_READERS = ("until_empty",)  # not for the committer, which outlives the readers


def supervisor_of(
    args: argparse.Namespace,
    given: Run,
    table: "Table",
    connection: "Connection",
    options: "StreamOptions",
) -> "Supervisor":
    """Return the supervisor of a stream's processes."""
    from opal_stream.supervise.metrics import FleetMetrics
    from opal_stream.supervise.supervisor import FleetOptions, Supervisor

    fleet_options = FleetOptions(
        processes=given.processes or 0,
        capacity=given.capacity or 0,
        replan_s=span_of("replan_interval", given.replan_interval).total_seconds(),
        stall_s=span_of("stall_after", given.stall_after).total_seconds(),
    )
    shared = child_words(args)
    logging.getLogger("opal_stream.supervise").setLevel(logging.INFO)

    def command(share: "Collection[Partition]") -> list[str]:
        partitions = ",".join(map(str, sorted(share)))
        return [*shared, f"--partitions={partitions}"]

    metrics = FleetMetrics(
        path=given.metrics_file, port=given.metrics_port, host=given.metrics_host
    )
    committer = (lambda: committer_words(args)) if given.has_committer else None
    return Supervisor(
        table, connection, options, fleet_options, command, metrics=metrics, committer=committer
    )


def child_words(args: argparse.Namespace) -> list[str]:
    """Return the command line of each process, without its partitions and metrics.

    It has the flags that were given, except for the supervisor's own.
    """
    given = args.parser.given_words(args, without=(*_OF_SUPERVISOR, *_OF_METRICS))
    return [*_watched_words("run", args.table), *given]


def committer_words(args: argparse.Namespace) -> list[str]:
    """Return the command line of the committer, with the given flags that it knows."""
    without = (*_OF_SUPERVISOR, *_OF_METRICS, *_OF_READERS)
    known = EVERY_VERB | {*Commit.fields()}
    given = args.parser.given_words(args, without=without, only=known)
    return [*_watched_words("commit", args.table), *given]


def _watched_words(*operands: str) -> list[str]:
    from opal_stream.supervise.process import WATCHED_S

    return [
        sys.executable,
        "-m",
        "opal_lake.cli",
        "stream",
        *operands,
        "--json",
        "--watched",
        f"{WATCHED_S}s",
    ]
