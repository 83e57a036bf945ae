"""Jobs of the command line, on the engine that the user chose or that fits.

`opal_spark` provides Spark: it sets `on_spark` of the verbs that may run on Spark.
"""

import argparse
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NoReturn

from opal_lake.cli.command import store_options
from opal_lake.cli.progress import LatestStep, ProgressLine
from opal_lake.errors import InvalidInputError
from opal_lake.operations.job_spec import JobSpec
from opal_lake.operations.verb import Operation

if TYPE_CHECKING:
    import pyarrow as pa

    from opal_lake.definition.table_spec import TableLayout
    from opal_lake.engine.in_process import InProcess
    from opal_lake.engine.open_table import OpenTable
    from opal_lake.operations.read import ShowChanges, ShowRows
    from opal_lake.result import JobResult
    from opal_lake.table import Table

SPARK_PACKAGE = "opal-lake[spark]"
_BY_SIZE = "if it reads more than the table's property local_mb"
AnyOperation = Operation[Any]
# A function of the parsed command, its job, and the command's name for an error without Spark
OnSpark = Callable[[argparse.Namespace, JobSpec[AnyOperation], str], "JobResult"]


class NoSparkError(InvalidInputError):
    """Spark, or the Java that it needs, is not installed."""


def add_spark(parser: argparse.ArgumentParser) -> None:
    """Add the options of Spark to a verb that runs on Spark alone."""
    _add_settings(parser.add_argument_group("Spark"), "")


def add_engine(parser: argparse.ArgumentParser, *, when: str = _BY_SIZE) -> None:
    """Add the options that choose the engine of a verb.

    `when` says in the help under which condition a verb without these options runs on Spark.
    """
    group = parser.add_argument_group("engine")
    engine = group.add_mutually_exclusive_group()
    engine.add_argument(
        "--spark", action="store_true", help=f"run it on Spark (default: only {when})"
    )
    local_help = "run it in this process"
    if when == _BY_SIZE:
        local_help += ", however much it reads"
    engine.add_argument("--local", action="store_true", help=local_help)
    _add_settings(group, "; runs it on Spark")
    parser.set_defaults(on_spark=_no_spark)


def _add_settings(group: Any, also: str) -> None:
    """Add the options of Spark to a group; `also` ends their help texts."""
    group.add_argument(
        "--conf",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help=f"a setting of Spark, for example spark.driver.memory=8g{also}",
    )
    group.add_argument("--verbose", action="store_true", help=f"show the output of Spark{also}")


def spark_is_missing(what: str) -> NoSparkError:
    """Return the error that `what` needs Spark, which is not installed."""
    return NoSparkError(
        f"{what} needs Spark, which is not installed: pip install '{SPARK_PACKAGE}'"
    )


def run_job(args: argparse.Namespace, operation: AnyOperation) -> "JobResult":
    """Run an operation on the engine that the user chose, or that fits the operation."""
    spec = JobSpec(operation=operation, table=args.table, token=getattr(args, "token", None))
    option = spark_option(args, operation)
    if option:
        return on_spark(args, spec, option)
    table = None
    if not args.local and operation.needs_table:
        table = _open(spec.table, store_options(args))
        if fits_spark(args, table, spec.job):
            return on_spark(args, spec)
    return _run_here(args, spec, table)


def spark_option(args: argparse.Namespace, operation: AnyOperation) -> str:
    """Return the option by which a command chooses Spark; an empty text without one.

    Raises InvalidInputError for a command that also has `--local`.
    """
    option = _first_spark_option(args, operation)
    if option and args.local:
        raise InvalidInputError(
            f"opal {args.command}: {option} runs on Spark, and --local in this process; "
            "leave one of them out"
        )
    return option


def _first_spark_option(args: argparse.Namespace, operation: AnyOperation) -> str:
    from opal_lake.operations.engine_choice import spark_only

    argument = spark_only(operation)
    if argument:
        return f"--{argument}"
    for name in ("conf", "verbose", "spark"):
        if getattr(args, name):
            return f"--{name}"
    return ""


def fits_spark(args: argparse.Namespace, table: "OpenTable", operation: AnyOperation) -> bool:
    """Return whether a job is large enough for Spark; print it to standard error."""
    from opal_lake.operations.engine_choice import choose_engine

    choice = choose_engine(table, operation)
    other = "--local runs it in this process" if choice.on_spark else "--spark runs it on Spark"
    print(f"{args.command}: {choice.why}; {other}", file=sys.stderr, flush=True)
    return choice.on_spark


def on_spark(
    args: argparse.Namespace, spec: JobSpec[AnyOperation], option: str = ""
) -> "JobResult":
    """Run a job on Spark.

    `option` is the option that chose Spark. Without it the size of the job did.
    """
    run: OnSpark = args.on_spark
    try:
        return run(args, spec, f"opal {args.command} {option}".rstrip())
    except NoSparkError as error:
        if option:
            raise
        raise NoSparkError(f"{error}; or add --local to run it in this process") from error


def _no_spark(_: argparse.Namespace, __: JobSpec[AnyOperation], what: str) -> NoReturn:
    raise spark_is_missing(what)


def _run_here(
    args: argparse.Namespace, spec: JobSpec[AnyOperation], opened: "Table[pa.Table] | None"
) -> "JobResult":
    """Run a job in this process, with a progress line.

    `opened` is the table if the caller has opened it.
    """
    from opal_lake.engine.in_process import InProcess

    started_s = time.monotonic()
    step = LatestStep()
    target = LocalPlace(
        uri=spec.table,
        options=store_options(args),
        executor=InProcess(at_step=step.at_step),
        opened=opened,
    )
    with ProgressLine(args.command, step.where):
        result = _result(target, spec)
    if result.repeated:  # it has the duration of the job that did the work
        return result
    return result.timed(time.monotonic() - started_s)


def _result(target: "LocalPlace", spec: JobSpec[AnyOperation]) -> "JobResult":
    """Run a job at a place, and return its result."""
    from opal_lake.operations.read import ShowChanges, ShowRows

    operation = spec.operation
    if isinstance(operation, ShowRows):
        return _show_rows(target, operation, spec.token)
    if isinstance(operation, ShowChanges):
        return _show_changes(target.open(), operation, spec.token)
    run: Callable[[Any], JobResult] = spec.job.run
    if operation.needs_table:
        return run(target.open())
    return run(target)


def _show_rows(target: "LocalPlace", job: "ShowRows", token: str | None) -> "JobResult":
    from opal_lake.cli.shown_rows import shown_result
    from opal_lake.result import JobResult

    table = target.open()
    view = job.view(table)
    # One row beyond the limit shows whether more exist
    rows = target.executor.rows(view, limit=job.shown_rows + 1)
    result = JobResult(
        operation="read", table=table.uri, version=view.snapshot.version, token=token
    )
    return shown_result(result, rows, job.shown_rows)


def _show_changes(table: "Table[pa.Table]", job: "ShowChanges", token: str | None) -> "JobResult":
    from opal_lake.cli.shown_rows import shown_result
    from opal_lake.read.change_range import version_range
    from opal_lake.read.changed_rows import in_shown_order
    from opal_lake.result import JobResult

    versions = version_range(table.log, job.start, job.end)
    rows = in_shown_order(job.of_versions(table, versions), versions.head.spec)
    result = JobResult(operation="changes", table=table.uri, version=versions.last, token=token)
    return shown_result(result, rows.slice(0, job.shown_rows + 1), job.shown_rows)


def _open(uri: str, options: Mapping[str, str]) -> "Table[pa.Table]":
    from opal_lake.table import Table

    return Table.open(uri, options)


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalPlace:
    """A URI where a table exists or will be created, for jobs of this process."""

    uri: str
    options: Mapping[str, str]
    executor: "InProcess"
    opened: "Table[pa.Table] | None" = None

    def open(self) -> "Table[pa.Table]":
        """Open the table; raise NotFoundError if it does not exist."""
        table = self.opened or _open(self.uri, self.options)
        return replace(table, executor=self.executor)

    def create(self, columns: "pa.Schema", layout: "TableLayout") -> "Table[pa.Table]":
        """Create a table; raise TableExistsError if one exists."""
        from opal_lake.definition.table_spec import plan_spec
        from opal_lake.storage.open import open_storage
        from opal_lake.table import create_on

        return create_on(open_storage(self.uri, self.options), plan_spec(columns, layout))

    def sql_columns(self, schema: str) -> "pa.Schema":
        """Return the columns of a schema that is written as in CREATE TABLE."""
        from opal_lake.definition.sql_schema import arrow_of_sql

        return arrow_of_sql(schema)

    def source_columns(self, *_: object) -> NoReturn:
        """Raise NoSparkError: only Spark reads the columns of a source."""
        raise spark_is_missing("reading a source")

    def source_reader(self, *_: object) -> NoReturn:
        """Raise NoSparkError: only Spark reads tables of other formats."""
        raise spark_is_missing("reading a table of another format")

    def merge(self, _: object) -> NoReturn:
        """Raise NoSparkError: only Spark merges folders."""
        raise spark_is_missing("merging a folder")
