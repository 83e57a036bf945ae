"""`opal stream commit`: commits what the processes of a stream gathered, each of which reads with `--commit gathered`."""

import argparse
import logging
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from opal_lake.cli.command import store_options, whole_number
from opal_lake.duration import parse_duration

if TYPE_CHECKING:
    from opal_stream.flush.committer import Committer
    from opal_stream.tracking.events import Tracker


def add_commit(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--commit",
        choices=("direct", "gathered"),
        default="direct",
        help="by this process, or for many by one `opal stream commit` (default: %(default)s)",
    )
    parser.add_argument(
        "--gathered-mb",
        type=whole_number,
        default=1024,
        metavar="N",
        help="with --commit gathered: read no more while so many MiB of files wait for their commit; 0 for no limit (default: %(default)s)",
    )


def commit(
    args: argparse.Namespace,
    finish: "Callable[[argparse.Namespace, Committer], None]",
    tracker: "Tracker",
) -> None:
    from opal_lake.table import Table
    from opal_stream.flush.committer import Committer, CommitterOptions

    logging.basicConfig(
        level=logging.WARNING, format="opal stream commit: %(message)s", stream=sys.stderr
    )
    options = CommitterOptions(
        name=args.name,
        interval_s=parse_duration(args.flush_interval, name="--flush-interval") / 1e6,
        bytes=args.flush_mb << 20,
        until_empty=args.until_empty,
        give_up_s=parse_duration(args.give_up_after, name="--give-up-after") / 1e6,
    )
    finish(args, Committer(Table.open(args.table, store_options(args)), options, tracker))
