"""The magics `%opal` and `%%opal`: SQL in a notebook, after `%load_ext opal_spark`."""

import argparse
import shlex
from collections.abc import Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any, NoReturn

from opal_lake.cli.shown_rows import cell_text
from opal_lake.errors import InvalidInputError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SHOWN_ROWS = 20
_USAGE = "%%opal [-o NAME] [--arg NAME=EXPRESSION] [--limit N] [--token TOKEN]"


class _Parser(argparse.ArgumentParser):
    """A parser whose errors are exceptions: a notebook goes on."""

    def error(self, message: str) -> NoReturn:
        raise InvalidInputError(f"{message}; write {_USAGE}")


def register_magic(ipython: Any) -> None:
    """Register `%opal` for one statement, and `%%opal` for the statements of a cell."""

    def opal(line: str, cell: str | None = None) -> "DataFrame | None":
        """Run SQL on Opal tables in the active Spark session."""
        if cell is not None:
            _run_cell(ipython, line, cell)
            return None
        from opal_spark.spark_sql.run import sql

        return sql(_session(), line)

    ipython.register_magic_function(opal, "line_cell", "opal")


def _session() -> "SparkSession":
    from pyspark.sql import SparkSession

    spark = SparkSession.getActiveSession()
    if spark is None:
        raise InvalidInputError(
            "%opal needs a Spark session; create one with SparkSession.builder.getOrCreate()"
        )
    return spark


def _run_cell(ipython: Any, line: str, cell: str) -> None:
    """Run the statements of a cell, and show each result.

    With `-o NAME` the last result is not shown, but becomes the variable of this name.
    """
    from opal_spark.spark_sql.script import run_script

    parser = _Parser(add_help=False)
    parser.add_argument("-o", "--output")
    parser.add_argument("--arg", action="append", default=[])
    parser.add_argument("--limit", type=int, default=SHOWN_ROWS)
    parser.add_argument("--token")
    options = parser.parse_args(shlex.split(line))
    arguments = _arguments(ipython, options.arg)
    for step in run_script(_session(), cell, arguments, options.token):
        if step.number == step.total and options.output is not None:
            ipython.user_ns[options.output] = step.rows
        else:
            _display(step.rows, options.limit)


def _arguments(ipython: Any, texts: Sequence[str]) -> Mapping[str, Any]:
    """Return the values of parameters: expressions of Python, or variables."""
    values = {}
    for text in texts:
        name, equals, expression = text.partition("=")
        values[name] = ipython.ev(expression if equals else name)
    return values


def _display(rows: "DataFrame", limit: int) -> None:
    """Show the first rows of a result as a table."""
    from IPython.display import HTML, display

    from opal_lake.data.shown_values import json_rows

    if not rows.columns:
        return
    shown = json_rows(rows.limit(limit + 1).toArrow())
    lines = [_line("th", rows.columns)]
    lines += [_line("td", list(map(cell_text, row.values()))) for row in shown[:limit]]
    more = "<p>There are more rows.</p>" if len(shown) > limit else ""
    page = f"<table>{''.join(lines)}</table>{more}"
    display(HTML(page))  # type: ignore[no-untyped-call]  # IPython has no types


def _line(tag: str, cells: Sequence[str]) -> str:
    joined = "".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in cells)
    return f"<tr>{joined}</tr>"
