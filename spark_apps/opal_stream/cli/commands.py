"""The verbs of `opal stream`, with the flags of their declarations (`operations/`)."""

import argparse

from opal_lake.cli.command import (
    OpalParser,
    Verb,
    Verbs,
    add_command,
    exit_code_lines,
    sentence,
)
from opal_lake.cli.flags import add_flags
from opal_stream.cli.commit import commit
from opal_stream.cli.monitoring import add_monitoring
from opal_stream.cli.plan import plan
from opal_stream.cli.run import run
from opal_stream.cli.status import status
from opal_stream.operations.verbs import Commit, Plan, Run, Status

GROUP = "Streams from Kafka (no Spark)"
_KAFKA = "--bootstrap-servers localhost:9092"
EXAMPLE = f"opal stream run lake/orders {_KAFKA} --topic orders --until-empty"
_VERBS = (
    (
        Run,
        Verb(
            name="run",
            group=GROUP,
            summary="read topics of Kafka into a table",
            example=EXAMPLE,
            run=run,
        ),
    ),
    (
        Commit,
        Verb(
            name="commit",
            group=GROUP,
            summary="commit the files that a stream's processes gathered (run --commit gathered)",
            example="opal stream commit lake/orders --flush-interval 1s",
            run=commit,
        ),
    ),
    (
        Status,
        Verb(
            name="status",
            group=GROUP,
            summary="show positions and lag of a table's streams; alarms are findings",
            example=f"opal stream status lake/orders {_KAFKA} --alarm-lag 100000",
            run=status,
        ),
    ),
    (
        Plan,
        Verb(
            name="plan",
            group=GROUP,
            summary="plan which process reads which partitions, from known traffic",
            example=f"opal stream plan lake/orders {_KAFKA} --topic orders --processes 3",
            run=plan,
            needs_table=False,
        ),
    ),
)


def commands(verbs: Verbs) -> None:
    """Register the verbs (an `opal.commands` entry point)."""
    summary = "read topics of Kafka into a table: run, commit, status, plan, dashboard, alerts"
    parser: argparse.ArgumentParser = verbs.add_parser(
        "stream",
        help=summary,
        description=sentence(summary),
        epilog=f"example:\n  {EXAMPLE}\n\n{exit_code_lines()}",
    )
    parser.set_defaults(group=GROUP, example=EXAMPLE)
    subparsers = parser.add_subparsers(
        dest="verb", metavar="VERB", required=True, parser_class=OpalParser
    )
    for declared, verb in _VERBS:
        verb_parser = add_command(subparsers, verb)
        verb_parser.set_defaults(parser=verb_parser)
        add_flags(verb_parser, declared)
    add_monitoring(subparsers)
