"""The verb `opal rejected`: list the rows that ingests put aside, or replay them."""

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from opal_lake.cli.command import (
    KEEP,
    OpalParser,
    Verb,
    Verbs,
    add_command,
    exit_code_lines,
    sentence,
    store_options,
)
from opal_lake.cli.flags import add_flags, operation_of
from opal_lake.cli.keep import show_result
from opal_lake.cli.render import Column, Style, escaped, output_width, text_table, time_text
from opal_lake.errors import InvalidInputError, count_text
from opal_lake.operations.rejected import Replay

if TYPE_CHECKING:
    from opal_lake.table import Table

LIST_EXAMPLE = "opal rejected list lake/users"
REPLAY_EXAMPLE = "opal rejected replay lake/users"


def commands(verbs: Verbs) -> None:
    """Register the verb."""
    summary = "list rows that ingests put aside, or ingest again those that can be read now"
    parser: argparse.ArgumentParser = verbs.add_parser(
        "rejected",
        help=summary,
        description=sentence(summary),
        epilog=f"example:\n  {LIST_EXAMPLE}\n\n{exit_code_lines()}",
    )
    parser.set_defaults(group=KEEP, example=LIST_EXAMPLE, run=_no_action, traceback=False)
    actions = parser.add_subparsers(dest="action", metavar="ACTION", parser_class=OpalParser)
    list_verb = Verb(
        name="list",
        group=KEEP,
        summary="list the rejected rows of each job, newest first: state, reasons, files, examples",
        example=LIST_EXAMPLE,
        run=list_rejected,
    )
    add_command(actions, list_verb)
    replay_verb = Verb(
        name="replay",
        group=KEEP,
        summary="ingest again the rejected rows that can be read now, each once",
        example=REPLAY_EXAMPLE,
        run=replay,
    )
    add_flags(add_command(actions, replay_verb), Replay)


def _no_action(_: argparse.Namespace) -> None:
    raise InvalidInputError(
        "opal rejected needs an action; write opal rejected list TABLE, "
        "or opal rejected replay TABLE"
    )


def list_rejected(args: argparse.Namespace) -> None:
    """Print the jobs that rejected rows."""
    rejected = _table(args).rejected()
    if args.json:
        print(json.dumps(rejected, indent=2, ensure_ascii=False))
        return
    for line in _page(rejected, Style.of(sys.stdout)):
        print(line)


def _page(rejected: Sequence[Mapping[str, Any]], style: Style) -> Iterator[str]:
    """Yield a table of the jobs, then the files, reasons and examples of each job."""
    if not rejected:
        yield style.faint("no rejected row")
        return
    columns = [
        Column(key="job", title="job", right=True),
        Column(key="version", title="version", right=True),
        Column(key="committed_at", title="committed (UTC)", show=_moment, optional=True),
        Column(key="state", title="state"),
        Column(key="can_replay", title="can be replayed"),
        Column(key="rows", title="rows", right=True),
        Column(key="partition_key", title="partition key", shrinks=True, optional=True),
    ]
    yield from text_table(columns, rejected, style, output_width(sys.stdout))
    for job in rejected:
        yield ""
        files = ", ".join(map(escaped, job["files"]))
        yield style.strong(f"job {job['job']}: {files}")
        for reason, rows in job["reasons"].items():
            yield f"  {count_text(rows, 'row')}: {style.warn(escaped(reason))}"
        for row in job["sample"]:
            text = escaped(row["row"] or "no text")
            if row["source"]:
                text = f"{escaped(row['source'])}: {text}"
            yield style.faint(f"  {text}")


def _moment(text: str | None) -> str:
    return "-" if text is None else time_text(text)


def replay(args: argparse.Namespace) -> None:
    """Replay the rows that can be read, and print what stays rejected."""
    job = operation_of(args, Replay)
    result = job.run(_table(args))
    done = "replayed" if result.counts["rows"] else "nothing replayed,"
    show_result(args, result, done)


def _table(args: argparse.Namespace) -> "Table":
    from opal_lake.table import Table

    return Table.open(args.table, store_options(args))
