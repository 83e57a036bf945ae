"""The verbs `lakechime consumers`, which shows progress, and `lakechime forget`."""

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from lakechime.cli.command import KEEP, add_verb, moment_text, open_client, show
from lakechime.errors import InvalidEventError
from opal_lake.cli.command import Verb, Verbs, whole_number
from opal_lake.cli.render import Column, Style, escaped, output_width, text_table
from opal_lake.errors import count_text

if TYPE_CHECKING:
    from lakechime.answers import Consumer


def commands(verbs: Verbs) -> None:
    """Register the verbs."""
    summary, example = (
        "show the progress of each consumer, the furthest behind first",
        "lakechime consumers --limit 5",
    )
    parser = add_verb(
        verbs, Verb(name="consumers", group=KEEP, summary=summary, example=example, run=consumers)
    )
    parser.add_argument(
        "--limit",
        type=whole_number,
        default=20,
        metavar="N",
        help="show at most N consumers (default: %(default)s)",
    )
    summary, example = (
        "delete the watermarks of a consumer that is permanently gone",
        "lakechime forget nightly.report --yes",
    )
    parser = add_verb(
        verbs,
        Verb(
            name="forget",
            group=KEEP,
            summary=summary,
            example=example,
            run=forget,
            operands="CONSUMER ",
        ),
    )
    parser.add_argument(
        "consumer", metavar="CONSUMER", help="the name that `lakechime consumers` shows"
    )
    parser.add_argument(
        "--yes",
        action="store_true",
        help="delete the watermarks; if the consumer comes back, it begins again",
    )


def consumers(args: argparse.Namespace) -> None:
    with open_client(args) as client:
        listed = client.consumers(max(args.limit, 1))
        head = client.head()
    rows = [consumer_json(consumer, head) for consumer in listed]
    show(args, rows, lambda style: _page(rows, style))


def consumer_json(consumer: "Consumer", head: int) -> dict[str, Any]:
    """Return the progress of a consumer as JSON."""
    # The head may have been read before the consumer moved on
    return {**asdict(consumer), "behind": max(head - consumer.seq, 0)}


def _page(rows: Sequence[dict[str, Any]], style: Style) -> Iterator[str]:
    if not rows:
        yield style.faint("no consumer has a watermark, so retention waits for none")
        return
    columns = [
        Column(key="consumer", title="consumer", show=escaped, shrinks=True),
        Column(key="seq", title="is at", right=True),
        Column(key="behind", title="behind", right=True),
        Column(key="moved_ts", title="moved", show=moment_text),
    ]
    yield from text_table(columns, rows, style, output_width(sys.stdout))


def forget(args: argparse.Namespace) -> None:
    with open_client(args) as client:
        if not args.yes:
            keys = ", ".join(client.watermarks(args.consumer)) or "none"
            raise InvalidEventError(
                f"consumer {args.consumer} would begin again if it came back "
                f"(its watermarks: {keys}); add --yes to delete them"
            )
        deleted = client.forget(args.consumer)
    text = f"deleted {count_text(len(deleted), 'watermark')} of {args.consumer}"
    show(
        args,
        {"consumer": args.consumer, "deleted": deleted},
        lambda style: [style.good(escaped(text))],
    )
