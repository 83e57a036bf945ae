"""The verbs that look at a table: they read its metadata and need no Spark."""

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from opal_lake.cli.command import LOOK, Verb, Verbs, add_command, store_options, whole_number
from opal_lake.cli.pages import check_page, describe_page, files_page, history_page, segments_page
from opal_lake.cli.progress import ProgressLine, Step
from opal_lake.cli.render import Style, output_width
from opal_lake.cli.upkeep import commands as upkeep_commands
from opal_lake.exit_codes import FINDINGS, OK

if TYPE_CHECKING:
    from opal_lake.table import Table

HISTORY_LIMIT = 20

VERBS: tuple[tuple[str, str, str], ...] = (
    ("describe", "what a table is, and how much it holds", "opal describe lake/users"),
    ("history", "its commits, newest first", "opal history lake/users --limit 5"),
    ("files", "its data files, with the rows that are no longer visible", "opal files s3://lake/users --version 12"),
    ("segments", "what was ingested together, and what is pending", "opal segments lake/users --json"),
    ("check", "verify every invariant of the format, and name what is broken", "opal check lake/users"),
)


def commands(verbs: Verbs) -> None:
    """Register the verbs (an `opal.commands` entry point)."""
    runners = {"describe": describe, "history": history, "files": files, "segments": segments, "check": check}
    parsers = {
        name: add_command(verbs, Verb(name=name, group=LOOK, summary=summary, example=example, run=runners[name]))
        for name, summary, example in VERBS
    }
    parsers["history"].add_argument(
        "--limit", type=whole_number, default=HISTORY_LIMIT, metavar="N", help="how many, 0 for all (default: %(default)s)"
    )
    parsers["check"].add_argument("--quick", action="store_true", help="metadata only: read no data file, and use little memory")
    for name in ("files", "segments"):
        parsers[name].add_argument("--version", type=whole_number, metavar="N", help="as of this version (default: the newest)")
    upkeep_commands(verbs)


def describe(args: argparse.Namespace) -> None:
    from opal_lake.describe import describe

    _show(args, describe(_table(args)), lambda found, style: describe_page(found, style, datetime.now(UTC)))


def history(args: argparse.Namespace) -> None:
    from opal_lake.describe import history_rows

    rows = history_rows(_table(args), args.limit or None)
    _show(args, rows, lambda found, style: history_page(found, style, output_width(sys.stdout), args.limit))


def files(args: argparse.Namespace) -> None:
    from opal_lake.describe import file_rows

    _show(args, file_rows(_table(args), args.version), lambda found, style: files_page(found, style, output_width(sys.stdout)))


def segments(args: argparse.Namespace) -> None:
    from opal_lake.describe import segment_rows

    _show(args, segment_rows(_table(args), args.version), lambda found, style: segments_page(found, style, output_width(sys.stdout)))


def check(args: argparse.Namespace) -> int:
    from opal_lake.check import check_table
    from opal_lake.storage import open_storage
    from opal_lake.table import table_on

    started_s = time.monotonic()
    table = table_on(open_storage(args.table, store_options(args)))  # not opened: what cannot be opened is what check is for
    step = Step(name=f"reading the metadata of {table.uri}")

    def at_file(done: int, total: int) -> None:
        nonlocal step
        step = Step(name="reading rows", done=done, total=total, noun="file")

    with ProgressLine("check", lambda: step):
        findings = check_table(table, deep=not args.quick, at_file=at_file)
    passed_s = time.monotonic() - started_s
    found = [{"invariant": finding.invariant, "path": finding.path, "message": finding.message} for finding in findings]
    _show(args, found, lambda found, style: check_page(table.uri, found, style, passed_s))
    return FINDINGS if findings else OK


def _table(args: argparse.Namespace) -> "Table":
    from opal_lake.table import Table

    return Table.open(args.table, store_options(args))


def _show(args: argparse.Namespace, found: Any, page: Callable[[Any, Style], Iterable[str]]) -> None:
    if args.json:
        print(json.dumps(found, indent=2, ensure_ascii=False))
        return
    for line in page(found, Style.of(sys.stdout)):
        print(line)
