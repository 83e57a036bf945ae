"""The verbs of `opal` that run on Spark alone, and Spark for the verbs of a table.

PySpark is imported when a verb runs, so that help costs nothing and works without it.
"""

import argparse
import importlib.util
import os
import re
from typing import Any

from opal_lake.cli.command import (
    BRING,
    Verb,
    Verbs,
    add_command,
    column_names,
    pairs,
    store_options,
)
from opal_lake.cli.flags import add_flags, add_token, operation_of
from opal_lake.cli.jobs import add_key, add_property, given_properties_of, show_results
from opal_lake.cli.progress import ProgressLine
from opal_lake.cli.run_job import NoSparkError, add_spark, spark_is_missing
from opal_lake.errors import InvalidInputError, NoRowsError, OpalError
from opal_lake.operations.bootstrap import Bootstrap
from opal_lake.operations.ingest import Ingest, IngestSource
from opal_lake.operations.job_spec import JobSpec
from opal_lake.operations.metagen import MetaGen
from opal_lake.operations.read import Changes, Read, ShowChanges, ShowRows
from opal_lake.operations.verb import Job
from opal_lake.result import JobResult
from opal_lake.s3a import spark_settings
from opal_lake.source import (
    DELTA_CONF,
    FILE_FORMATS,
    Files,
    Jdbc,
    no_file_message,
    source_from_json,
    source_to_json,
)
from opal_spark.cli.mutate import add_mutate
from opal_spark.engine.versions import check_installed_spark

# With these variables Spark may have another master, or another file system by default
_SPARK_VARIABLES = (
    "HADOOP_CONF_DIR",
    "MASTER",
    "PYSPARK_SUBMIT_ARGS",
    "SPARK_CONF_DIR",
    "SPARK_HOME",
    "SPARK_REMOTE",
)
_PATTERN_CHARACTER = re.compile(r"[\\*?\[\]{}]")
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")


def commands(verbs: Verbs) -> None:
    """Register the verbs, and add Spark to the verbs of a table.

    It is an `opal.commands` entry point.
    """
    add_spark(_add_ingest(verbs))
    add_spark(_add_bootstrap(verbs))
    add_spark(add_mutate(verbs, _run_one))
    for parser in verbs.choices.values():
        if parser.get_default("on_spark") is not None:
            parser.set_defaults(on_spark=_on_spark)


def _add_quarantine(parser: argparse.ArgumentParser) -> None:
    summary = "accept good rows and put bad rows aside (default: fail on a bad row)"
    parser.add_argument(
        "--quarantine", dest="on_bad_rows", action="store_const", const="quarantine", help=summary
    )


def _add_ingest(verbs: Verbs) -> argparse.ArgumentParser:
    example = "opal ingest lake/users in/*.csv --metagen"
    summary = "append the rows of files, or of a database's table or query"
    parser = add_command(
        verbs,
        Verb(
            name="ingest",
            group=BRING,
            summary=summary,
            example=example,
            run=ingest,
            operands="PATH... ",
        ),
    )
    parser.add_argument("paths", nargs="*", metavar="PATH", help="files, folders or patterns")
    parser.add_argument(
        "--format", choices=FILE_FORMATS, help="the files' format (default: by their extension)"
    )
    _add_file_options(parser)
    parser.add_argument(
        "--source-option",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="an option of Spark's reader, such as sep=;",
    )
    add_token(parser, "ingests")
    _add_quarantine(parser)
    add_flags(parser, Ingest, but=("metadata", "on_bad_rows", "on_empty"))
    empty = "accept a source without rows as no change (default: an error)"
    parser.add_argument(
        "--accept-empty", dest="on_empty", action="store_const", const="accept", help=empty
    )
    visible = parser.add_mutually_exclusive_group()
    visible.add_argument(
        "--metagen",
        action="store_true",
        help="run a metagen after the ingest; --json shows both results as a list",
    )
    inline = "make the rows visible in the same job and commit"
    visible.add_argument(
        "--inline", dest="metadata", action="store_const", const="inline", help=inline
    )
    jdbc = parser.add_argument_group("database")
    jdbc.add_argument(
        "--jdbc-url",
        metavar="URL",
        help="the database, such as jdbc:postgresql://host/db, without user and password",
    )
    jdbc.add_argument("--jdbc-table", metavar="NAME", help="the table of the database to read")
    jdbc.add_argument("--jdbc-query", metavar="SQL", help="the query to read, instead of a table")
    jdbc.add_argument(
        "--user-env", metavar="NAME", help="the environment variable that holds the user"
    )
    jdbc.add_argument(
        "--password-env", metavar="NAME", help="the environment variable that holds the password"
    )
    return parser


def _add_file_options(parser: argparse.ArgumentParser) -> None:
    """Add the flags that describe the rows of files: columns, deletes and their order."""
    parser.add_argument(
        "--no-header",
        dest="header",
        action="store_const",
        const=False,
        help="the files are CSV without a header",
    )
    parser.add_argument(
        "--columns",
        metavar="COLUMN,...",
        help="the columns of CSV files without a header (default: the table's columns)",
    )
    deletes = "files with matching names, such as 'del*', hold deletes: whole rows, or only keys"
    parser.add_argument("--delete-files", dest="deletes", metavar="PATTERN", help=deletes)
    order = (
        "what decides which row of a key is later: the name of the delta column, or file_suffix "
        "or file_position, from which the delta column is filled"
    )
    parser.add_argument("--order", metavar="COLUMN", help=order)


def _add_bootstrap(verbs: Verbs) -> argparse.ArgumentParser:
    example = "opal bootstrap lake/users old/users --format parquet --key id --delta at"
    summary = (
        "import a Parquet or ORC folder, or a Delta or Iceberg table; "
        "after a failure, a repeat continues"
    )
    parser = add_command(
        verbs,
        Verb(
            name="bootstrap",
            group=BRING,
            summary=summary,
            example=example,
            run=bootstrap,
            operands="SOURCE ",
        ),
    )
    parser.add_argument(
        "source",
        metavar="SOURCE",
        help="a folder; an Iceberg table may also be a name in a catalog",
    )
    add_key(parser)
    add_flags(parser, Bootstrap, but=("keys", "properties"))
    add_property(parser)
    _add_quarantine(parser)
    return parser


def bootstrap(args: argparse.Namespace) -> None:
    """Run `opal bootstrap`."""
    if any("delta-spark" in setting for setting in args.conf):
        # In front, because a later setting of the user overrides an earlier one
        delta_conf = [f"{name}={value}" for name, value in DELTA_CONF.items()]
        args.conf = [*delta_conf, *args.conf]
    operation = operation_of(args, Bootstrap, properties=given_properties_of(args))
    _check_source_folder(args, operation)
    _run_one(args, operation)


def ingest(args: argparse.Namespace) -> None:
    """Run `opal ingest`, and with --metagen a MetaGen after it."""
    operation = operation_of(args, IngestSource, source=_source(args))
    _check_source_files(args, operation)
    specs: list[JobSpec[Any]] = [JobSpec(operation=operation, table=args.table, token=args.token)]
    if args.metagen:
        # A token names one commit, so the second job needs a token of its own
        token = f"{args.token}/metagen" if args.token else None
        specs.append(JobSpec(operation=MetaGen(), table=args.table, token=token))
    show_results(args, _run(args, specs), as_list=args.metagen)


def _source(args: argparse.Namespace) -> dict[str, Any]:
    flags = {
        "url": "jdbc_url",
        "table": "jdbc_table",
        "query": "jdbc_query",
        "user_env": "user_env",
        "password_env": "password_env",
    }
    jdbc: dict[str, Any] = {}
    for name, flag in flags.items():
        if getattr(args, flag) is not None:
            jdbc[name] = getattr(args, flag)
    if bool(args.paths) == bool(jdbc):
        raise InvalidInputError(
            "opal ingest needs one source: give PATH..., "
            "or --jdbc-url with --jdbc-table or --jdbc-query"
        )
    options = pairs(args.source_option, "--source-option")
    named: dict[str, Any] = {}
    for name in ("header", "deletes", "order"):
        if getattr(args, name) is not None:
            named[name] = getattr(args, name)
    columns = column_names(args.columns)
    if columns is not None and not any(columns):
        raise InvalidInputError(
            f"--columns {args.columns!r} names no column; name at least one, or leave it out for "
            "the table's columns"
        )
    if columns:
        named["columns"] = columns
    if jdbc and named:
        raise InvalidInputError(
            "--no-header, --columns, --delete-files and --order apply only to files; "
            "leave them out with --jdbc-url"
        )
    if jdbc:
        return source_to_json(Jdbc(**{"url": "", **jdbc}, options=options))
    return source_to_json(Files(paths=args.paths, format=args.format, options=options, **named))


def _check_source_files(args: argparse.Namespace, operation: IngestSource) -> None:
    """Raise NoRowsError before Spark starts if a local file of the source is missing.

    With a token or `on_empty` there may be no error: an earlier ingest may have had the token, and
    a source without rows may be accepted.
    """
    source = source_from_json(operation.source)
    if args.token is not None or not operation.refuses_empty or not isinstance(source, Files):
        return
    if not _reads_local_files(args) or not _table_exists(args):
        return
    missing = [_is_missing(path) for path in source.paths]
    # In an order by name a path may have no files
    has_no_files = all(missing) if source.is_by_name else any(missing)
    if has_no_files:
        raise NoRowsError(no_file_message(source))


def _check_source_folder(args: argparse.Namespace, operation: Bootstrap) -> None:
    """Raise NoRowsError before Spark starts if a local folder of files does not exist.

    A table that exists may need no further files of its source.
    """
    has_files = operation.format in ("parquet", "orc")
    if not has_files or not _reads_local_files(args) or _table_exists(args):
        return
    if _is_missing(operation.source):
        folder = Files(paths=(os.path.abspath(operation.source),), format=operation.format)
        raise NoRowsError(no_file_message(folder))


def _reads_local_files(args: argparse.Namespace) -> bool:
    """Return whether Spark surely looks for a path without a scheme on this machine."""
    conf = pairs(args.conf, "--conf")
    if not conf.get("spark.master", "local").startswith("local"):
        return False
    is_configured = "spark.remote" in conf or "spark.hadoop.fs.defaultFS" in conf
    return not is_configured and not any(name in os.environ for name in _SPARK_VARIABLES)


def _is_missing(path: str) -> bool:
    """Return whether a path, without a pattern, of this machine does not exist."""
    if path.startswith("file:"):
        path = "/" + path.removeprefix("file:").lstrip("/")
    if _SCHEME.match(path) or _PATTERN_CHARACTER.search(path):
        return False
    return not os.path.exists(path)


def _table_exists(args: argparse.Namespace) -> bool:
    """Return whether the table can be opened without Spark."""
    from opal_lake.table import Table

    try:
        Table.open(args.table, store_options(args))
    except OpalError:
        return False
    return True


def _check_versions(args: argparse.Namespace, operation: ShowRows | ShowChanges) -> None:
    """Raise an error before Spark starts if the table lacks a version or snapshot.

    Spark takes seconds to start, and would raise the same error. A table that cannot be opened here
    is not an error: Spark's own settings may give access to its store.
    """
    from opal_lake.read.change_range import version_range
    from opal_lake.table import Table

    try:
        table = Table.open(args.table, store_options(args))
    except OpalError:
        return
    if isinstance(operation, Changes):
        versions = version_range(table.log, operation.start, operation.end)
        versions.head.spec.require_keys("a change feed")
    if isinstance(operation, Read):
        table.snapshot_at(operation.version, operation.timestamp, operation.business_snapshot)


def _run_one(args: argparse.Namespace, operation: Job) -> None:
    spec = JobSpec(operation=operation, table=args.table, token=getattr(args, "token", None))
    show_results(args, _run(args, [spec]))


def _on_spark(args: argparse.Namespace, spec: JobSpec[Any], what: str) -> JobResult:
    """Run a job of a verb that may also run without Spark."""
    if isinstance(spec.operation, ShowRows | ShowChanges):
        _check_versions(args, spec.operation)
    return _run(args, [spec], what)[0]


def _run(
    args: argparse.Namespace, specs: list[JobSpec[Any]], what: str | None = None
) -> list[JobResult]:
    """Run specs one after the other in one session, with a progress line."""
    require_spark(what or f"opal {args.command}")
    from opal_spark.cli.launch import launched, own_stderr
    from opal_spark.engine.progress import SparkSteps
    from opal_spark.submit.runner import perform

    conf = {**spark_settings(store_options(args)), **pairs(args.conf, "--conf")}
    steps, results = SparkSteps(), []
    with (
        own_stderr() as stream,
        ProgressLine(args.command, steps.where, stream) as line,
        launched(f"opal {args.command} {args.table}", conf, verbose=args.verbose) as spark,
    ):
        steps.watch(spark)
        for spec in specs:
            line.title = spec.operation.title
            results.append(perform(spark, spec))
    return results


def require_spark(what: str) -> None:
    """Raise NoSparkError if PySpark or Java is missing, or its version is unsupported."""
    if importlib.util.find_spec("pyspark") is None:
        raise spark_is_missing(what)
    from opal_spark.engine.java import ensure_java

    try:
        check_installed_spark()
        ensure_java()
    except InvalidInputError as error:
        raise NoSparkError(str(error)) from error
