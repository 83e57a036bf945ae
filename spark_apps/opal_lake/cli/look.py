"""The verbs that look at a table: they read its metadata."""

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from opal_lake.cli.command import (
    LOOK,
    Verb,
    Verbs,
    add_columns,
    add_command,
    column_names,
    store_options,
    whole_number,
)
from opal_lake.cli.explain import add_explain
from opal_lake.cli.flags import add_flags, operation_of
from opal_lake.cli.jobs import commands as job_commands
from opal_lake.cli.keep import commands as keep_commands
from opal_lake.cli.progress import LatestStep, ProgressLine
from opal_lake.cli.rejected import commands as rejected_commands
from opal_lake.cli.render import Style, output_width
from opal_lake.cli.run_job import add_engine, fits_spark, on_spark, spark_option
from opal_lake.cli.shown_rows import rows_lines
from opal_lake.cli.table_pages import (
    check_page,
    describe_page,
    files_page,
    history_page,
    segments_page,
)
from opal_lake.errors import ExpiredError, FormatError, NotFoundError
from opal_lake.exit_codes import FINDINGS, OK
from opal_lake.operations.job_spec import JobSpec
from opal_lake.operations.look import Check

if TYPE_CHECKING:
    from opal_lake.inspect.check.check import Checked
    from opal_lake.result import JobResult
    from opal_lake.table import Table

HISTORY_LIMIT = 20

# The name, the summary and the example of each verb
VERBS: tuple[tuple[str, str, str], ...] = (
    ("describe", "show the definition of a table, and its size", "opal describe lake/users"),
    ("history", "list the commits, newest first", "opal history lake/users --limit 5"),
    (
        "files",
        "list the data files, with the rows that are no longer visible",
        "opal files s3://lake/users --version 12",
    ),
    (
        "segments",
        "list the segments: rows that were ingested together, visible or pending",
        "opal segments lake/users --json",
    ),
    (
        "check",
        "verify every invariant of the format, and list what is broken",
        "opal check lake/users",
    ),
)


def commands(verbs: Verbs) -> None:
    """Register the verbs (an `opal.commands` entry point)."""
    runners = {
        "describe": describe,
        "history": history,
        "files": files,
        "segments": segments,
        "check": check,
    }
    parsers: dict[str, argparse.ArgumentParser] = {}
    for name, summary, example in VERBS:
        verb = Verb(name=name, group=LOOK, summary=summary, example=example, run=runners[name])
        parsers[name] = add_command(verbs, verb)
    parsers["history"].add_argument(
        "--limit",
        type=whole_number,
        default=HISTORY_LIMIT,
        metavar="N",
        help="how many commits, 0 for all (default: %(default)s)",
    )
    _add_check_options(parsers["check"])
    _add_versions_of(verbs)
    for name in ("files", "segments"):
        parsers[name].add_argument(
            "--version",
            type=whole_number,
            metavar="N",
            help="as of this version (default: the newest)",
        )
    add_explain(verbs)
    job_commands(verbs)
    keep_commands(verbs)
    rejected_commands(verbs)


def describe(args: argparse.Namespace) -> None:
    from opal_lake.inspect.describe import describe

    description = describe(_table(args))
    now = datetime.now(UTC)
    _show(args, description, lambda data, style: describe_page(data, style, now))


def history(args: argparse.Namespace) -> None:
    from opal_lake.inspect.describe import history_rows

    def page(rows: Any, style: Style) -> Iterable[str]:
        return history_page(rows, style, output_width(sys.stdout), args.limit)

    _show(args, history_rows(_table(args), args.limit), page)


def files(args: argparse.Namespace) -> None:
    from opal_lake.inspect.describe import file_rows

    rows = file_rows(_table(args), args.version)
    _show(args, rows, lambda data, style: files_page(data, style, output_width(sys.stdout)))


def segments(args: argparse.Namespace) -> None:
    from opal_lake.inspect.describe import segment_rows

    rows = segment_rows(_table(args), args.version)
    _show(args, rows, lambda data, style: segments_page(data, style, output_width(sys.stdout)))


def _add_versions_of(verbs: Verbs) -> None:
    verb = Verb(
        name="versions-of",
        group=LOOK,
        summary="list every row that a key has had, and when it was valid",
        example="opal versions-of lake/users 7",
        run=versions_of,
        operands="VALUE... ",
    )
    parser = add_command(verbs, verb)
    parser.add_argument(
        "paths", nargs="+", metavar="VALUE", help="one value for each key column, in their order"
    )
    add_columns(parser)
    parser.add_argument(
        "--version", type=whole_number, metavar="N", help="as of this version (default: the newest)"
    )


def versions_of(args: argparse.Namespace) -> None:
    from opal_lake.data.shown_values import json_rows
    from opal_lake.read.get import key_of_texts

    table = _table(args)
    key = key_of_texts(args.paths, table.snapshot_at().spec)
    columns = column_names(args.columns)
    view = table.history_view(keys=[key], version=args.version, columns=columns)

    def page(rows: Any, style: Style) -> Iterable[str]:
        if not rows:
            return [style.faint("no row")]
        return rows_lines(rows, style, output_width(sys.stdout))

    _show(args, json_rows(view), page)


def _add_check_options(parser: argparse.ArgumentParser) -> None:
    add_flags(parser.add_mutually_exclusive_group(), Check, "sample", "quick")
    add_flags(parser, Check, "all")
    parser.add_argument(
        "--memory",
        metavar="SIZE",
        default="1g",
        help="memory to use, for example 2g (default: %(default)s). More data goes to disk "
        "(TMPDIR), about 50 bytes for a row and 50 for a key-store entry, in unnamed files that "
        "disappear with the process. It has no effect on Spark",
    )
    add_engine(parser)


def check(args: argparse.Namespace) -> int:
    from opal_lake.inspect.check.check import check as run_check
    from opal_lake.storage import open_storage
    from opal_lake.table import table_on

    started_s = time.monotonic()
    # Not by `Table.open`: tables that it cannot open are checked, too
    table = table_on(open_storage(args.table, store_options(args)))
    job = operation_of(args, Check)
    option = spark_option(args, job)
    is_on_spark = bool(option)
    if not option and not args.local:
        is_on_spark = check_fits_spark(args, table, job)
    if is_on_spark:
        return _check_on_spark(args, job, option, started_s)
    step = LatestStep(lambda noun: f"reading the {noun} of {table.uri}")
    with ProgressLine("check", step.where):
        checked = run_check(table, job, memory=args.memory, at_step=step.at_step)
    passed_s = time.monotonic() - started_s
    return show_check(args, table.uri, checked, checked.looked_text, passed_s)


def check_fits_spark(args: argparse.Namespace, table: "Table", job: Check) -> bool:
    """Return whether the table is large enough that Spark should check it.

    A table whose metadata is damaged or has expired is checked in this process. If the store fails,
    the error is raised.
    """
    try:
        return fits_spark(args, table, job)
    except (ExpiredError, FormatError, NotFoundError):
        return False


def _check_on_spark(args: argparse.Namespace, job: Check, option: str, started_s: float) -> int:
    from opal_lake.inspect.check.check import LEFT_OUT, LEFT_OVER, LOOKED_AT, Checked
    from opal_lake.inspect.check.finding import Finding

    result = on_spark(args, JobSpec(operation=job, table=args.table), option)
    findings = tuple(Finding(**finding) for finding in result.examples)
    checked = Checked(
        findings=findings,
        left_out=_notes_after(LEFT_OUT, result),
        left_over=_notes_after(LEFT_OVER, result),
    )
    looked_at = "".join(_notes_after(LOOKED_AT, result))
    return show_check(args, result.table, checked, looked_at, time.monotonic() - started_s)


def _notes_after(prefix: str, result: "JobResult") -> tuple[str, ...]:
    """Return the notes of a result that begin with a prefix, without it."""
    notes = [note for note in result.notes if note.startswith(prefix)]
    return tuple(note.removeprefix(prefix) for note in notes)


def show_check(
    args: argparse.Namespace, uri: str, checked: "Checked", looked_at: str, passed_s: float
) -> int:
    """Print the findings of a check; return the exit code.

    With `--json` only the findings go to standard output. What was checked, and what was not, goes
    to standard error.
    """
    findings = [
        {"invariant": finding.invariant, "path": finding.path, "message": finding.message}
        for finding in checked.findings
    ]
    if args.json:
        if looked_at:
            print(f"looked at: {looked_at}", file=sys.stderr)
        for line in checked.left_out:
            print(f"not looked at: {line}", file=sys.stderr)
        for line in checked.left_over:
            print(f"left over: {line}", file=sys.stderr)

    def page(rows: Any, style: Style) -> Iterable[str]:
        return check_page(uri, rows, style, passed_s, checked, looked_at=looked_at)

    _show(args, findings, page)
    return FINDINGS if findings else OK


def _table(args: argparse.Namespace) -> "Table":
    from opal_lake.table import Table

    return Table.open(args.table, store_options(args))


def _show(args: argparse.Namespace, data: Any, page: Callable[[Any, Style], Iterable[str]]) -> None:
    """Print data as JSON, or the lines that `page` makes of it."""
    if args.json:
        print(json.dumps(data, indent=2, ensure_ascii=False))
        return
    for line in page(data, Style.of(sys.stdout)):
        print(line)
