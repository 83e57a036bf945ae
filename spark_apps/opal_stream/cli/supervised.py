"""`opal stream --processes`: the command line of each process, and of what watches them."""

import argparse
import logging
import sys
from collections.abc import Collection
from typing import TYPE_CHECKING

from opal_lake.cli.command import whole_number
from opal_lake.duration import parse_duration
from opal_lake.errors import InvalidInputError
from opal_stream.cli.uses import COMMIT, SHARED, TAKES

if TYPE_CHECKING:
    from opal_lake.table import Table
    from opal_stream.flush.options import StreamOptions
    from opal_stream.kafka.connection import Connection
    from opal_stream.kafka.topics import Partition
    from opal_stream.supervise.supervisor import Supervisor

# What is its own, and what each process gets in another way
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
_OF_READERS = ("until_empty",)  # which the committer outlives


def add_supervised(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--processes",
        type=whole_number,
        metavar="N",
        help="read by so many processes, or after `plan`: spread over so many",
    )
    parser.add_argument(
        "--capacity",
        type=whole_number,
        metavar="N",
        help="or by so many that each has N messages/s at most",
    )
    parser.add_argument(
        "--replan-interval",
        default="10m",
        metavar="SPAN",
        help="of several processes: look so often who reads what (default: %(default)s)",
    )
    parser.add_argument(
        "--stall-after",
        default="5m",
        metavar="SPAN",
        help="of several processes: restart one of which a partition does not move for so long (default: %(default)s)",
    )
    parser.add_argument(
        "--no-committer",
        action="store_true",
        help="of several processes with --commit gathered: `opal stream commit` runs elsewhere",
    )
    parser.set_defaults(parser=parser)


def is_supervised(args: argparse.Namespace) -> bool:
    return args.processes is not None or args.capacity is not None


def has_committer(args: argparse.Namespace) -> bool:
    """Whether the supervisor is to run the committer, too."""
    if args.no_committer and not (is_supervised(args) and args.commit == "gathered"):
        raise InvalidInputError(
            "--no-committer is for several processes whose commits are gathered; leave it out"
        )
    return is_supervised(args) and args.commit == "gathered" and not args.no_committer


def supervisor_of(
    args: argparse.Namespace, table: "Table", connection: "Connection", options: "StreamOptions"
) -> "Supervisor":
    from opal_stream.supervise.metrics import FleetMetrics
    from opal_stream.supervise.supervisor import FleetOptions, Supervisor

    fleet = FleetOptions(
        processes=args.processes or 0,
        capacity=args.capacity or 0,
        replan_s=parse_duration(args.replan_interval, name="--replan-interval") / 1e6,
        stall_s=parse_duration(args.stall_after, name="--stall-after") / 1e6,
    )
    shared = child_words(args)
    logging.getLogger("opal_stream.supervise").setLevel(logging.INFO)

    def words(share: "Collection[Partition]") -> list[str]:
        return [*shared, f"--partitions={','.join(map(str, sorted(share)))}"]

    metrics = FleetMetrics(path=args.metrics_file, port=args.metrics_port, host=args.metrics_host)
    committer = (lambda: committer_words(args)) if has_committer(args) else None
    return Supervisor(
        table, connection, options, fleet, words, metrics=metrics, committer=committer
    )


def child_words(args: argparse.Namespace) -> list[str]:
    """What was given to the whole is given to each, whatever options there are."""
    return [
        *_watched_words(args.table),
        *args.parser.given_words(args, without=(*_OF_SUPERVISOR, *_OF_METRICS)),
    ]


def committer_words(args: argparse.Namespace) -> list[str]:
    """Also to the committer, as far as it has a use for it."""
    without = (*_OF_SUPERVISOR, *_OF_METRICS, *_OF_READERS)
    return [
        *_watched_words(COMMIT, args.table),
        *args.parser.given_words(args, without=without, only=TAKES[COMMIT] | SHARED),
    ]


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
