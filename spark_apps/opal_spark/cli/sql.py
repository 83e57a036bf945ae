"""`opal sql`: statements at the shell, from the command line or from a file."""

import argparse
import csv
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from opal_lake.cli.command import WORK, Verb, Verbs, add_everywhere, begin_verb, pairs
from opal_lake.cli.flags import add_token
from opal_lake.cli.progress import ProgressLine
from opal_lake.cli.render import Style, output_width
from opal_lake.cli.run_job import add_spark
from opal_lake.cli.shown_rows import rows_lines
from opal_lake.errors import InvalidInputError, count_text
from opal_lake.operations.sql import SHOWN_ROWS
from opal_spark.cli.jobs import require_spark

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

FORMATS = ("table", "json", "csv")


def commands(verbs: Verbs) -> None:
    """Register the verb; it is an `opal.commands` entry point."""
    example = 'opal sql "SELECT * FROM lake.shop.orders" --catalog lake=s3://lake'
    parser = begin_verb(
        verbs,
        Verb(
            name="sql",
            group=WORK,
            summary="run SQL statements on tables, on Spark",
            example=example,
            run=sql,
            operands="[TEXT] ",
            needs_table=False,
        ),
    )
    parser.add_argument(
        "text", metavar="TEXT", nargs="?", help="one or more statements, with semicolons between"
    )
    parser.add_argument(
        "-f", "--file", metavar="FILE", help="read the statements from a file; - is standard input"
    )
    parser.add_argument(
        "--catalog",
        action="append",
        default=[],
        metavar="NAME=ROOT",
        help="name the folder of a lake: lake.shop.orders is the table ROOT/shop/orders",
    )
    parser.add_argument(
        "--arg",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="the value of a parameter :NAME, as a text; repeat for more",
    )
    parser.add_argument(
        "--format", choices=FORMATS, help="the form of results (default: table; json with --json)"
    )
    parser.add_argument(
        "--limit",
        type=_limit,
        metavar="N",
        help=f"at most N rows of a result, or 0 for all (default: {SHOWN_ROWS} in a table)",
    )
    add_token(parser)
    add_spark(parser)
    add_everywhere(parser, "opal")


def _limit(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"expected a whole number, got {text!r}")
    return int(text)


def sql(args: argparse.Namespace) -> None:
    """Run `opal sql`."""
    text = _text(args)
    form = args.format or ("json" if args.json else FORMATS[0])
    if args.json and form != "json":
        raise InvalidInputError(f"--json and --format {form} exclude each other; leave one out")
    arguments = pairs(args.arg, "--arg")
    catalogs = pairs(args.catalog, "--catalog")
    conf = pairs(args.conf, "--conf")
    require_spark("opal sql")
    from opal_lake.sql.script import ScriptStep, read_script
    from opal_spark.cli.launch import launched, own_stderr
    from opal_spark.engine.progress import SparkSteps
    from opal_spark.spark_sql.catalog import catalog
    from opal_spark.spark_sql.script import run_script

    # Spark takes seconds to start, and would raise the same error
    read_script(text)
    steps = SparkSteps()
    with (
        own_stderr() as stream,
        ProgressLine("sql", steps.where, stream) as line,
        launched("opal sql", conf, verbose=args.verbose) as spark,
    ):
        for name, root in catalogs.items():
            catalog(spark, name, root)
        steps.watch(spark)

        def started(step: ScriptStep) -> None:
            line.title = f"sql {step.number}/{step.total}"

        for step in run_script(spark, text, arguments, args.token, started):
            _show(step.rows, form, args.limit, is_first=step.number == 1)


def _text(args: argparse.Namespace) -> str:
    if (args.text is None) == (args.file is None):
        raise InvalidInputError(
            "opal sql needs statements from one place: give TEXT, or --file FILE"
        )
    if args.text is not None:
        return str(args.text)
    if args.file == "-":
        return sys.stdin.read()
    try:
        return Path(args.file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInputError(
            f"--file {args.file!r} cannot be read ({error}); correct the path"
        ) from error


def _show(rows: "DataFrame", form: str, limit: int | None, *, is_first: bool) -> None:
    """Print the result of a statement."""
    from opal_lake.data.shown_values import json_rows

    if limit is None and form == FORMATS[0]:
        limit = SHOWN_ROWS
    columns = rows.columns
    limited = rows.limit(limit + 1) if limit else rows
    shown = json_rows(limited.toArrow())
    has_more = bool(limit) and len(shown) > (limit or 0)
    if has_more:
        shown = shown[:limit]
    if form == "json":
        print(json.dumps(shown, ensure_ascii=False))
    elif form == "csv":
        _print_csv(columns, shown, is_first=is_first)
    else:
        for text in _table_lines(columns, shown, has_more=has_more):
            print(text)
    if has_more and form != FORMATS[0]:
        print(f"sql: there are more than {limit} rows; --limit 0 shows all", file=sys.stderr)
    sys.stdout.flush()


def _print_csv(
    columns: Sequence[str], rows: Sequence[Mapping[str, Any]], *, is_first: bool
) -> None:
    """Print rows as CSV with a header; an empty line separates results."""
    if not columns:
        return
    if not is_first:
        print()
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(columns)
    for row in rows:
        writer.writerow([_csv_cell(value) for value in row.values()])


def _csv_cell(value: Any) -> Any:
    """Return a value as CSV has it: an empty cell for null, JSON for nested values."""
    if value is None:
        return ""
    if isinstance(value, bool | dict | list):
        return json.dumps(value, ensure_ascii=False)
    return value


def _table_lines(
    columns: Sequence[str], rows: Sequence[Mapping[str, Any]], *, has_more: bool
) -> Iterator[str]:
    style = Style.of(sys.stdout)
    yield from rows_lines(rows, style, output_width(sys.stdout))
    if not columns:
        yield style.faint("done")
        return
    summary = count_text(len(rows), "row")
    if has_more:
        summary += "; there are more rows, a higher --limit shows them"
    yield style.faint(summary)
