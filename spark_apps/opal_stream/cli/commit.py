"""The verb `opal stream commit`: commit the files that a stream's processes gathered."""

import argparse
import logging
import sys

from opal_lake.arguments.values import span_of
from opal_lake.cli.command import store_options
from opal_lake.cli.flags import operation_of
from opal_stream.cli.run import check_kafka, connection_of, finish, tracker_of
from opal_stream.operations.verbs import Commit


def commit(args: argparse.Namespace) -> None:
    """Commit gathered files until stopped, or with --until-empty until none is left."""
    given = operation_of(args, Commit)
    check_kafka()
    from opal_lake.table import Table
    from opal_stream.flush.committer import Committer, CommitterOptions

    tracker = tracker_of(args, given, connection_of(given))
    logging.basicConfig(
        level=logging.WARNING, format="opal stream commit: %(message)s", stream=sys.stderr
    )
    options = CommitterOptions(
        name=given.name,
        interval_s=span_of("flush_interval", given.flush_interval).total_seconds(),
        bytes=given.flush_mb << 20,
        until_empty=given.until_empty,
        give_up_s=span_of("give_up_after", given.give_up_after).total_seconds(),
    )
    table = Table.open(args.table, store_options(args))
    finish(args, given, Committer(table, options, tracker))
