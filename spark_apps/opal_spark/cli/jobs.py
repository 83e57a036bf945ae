"""The verbs of `opal` that run on Spark. PySpark is imported when one runs, so that help costs nothing and works without it."""

import argparse
import importlib.util
import json
import sys
from collections.abc import Iterable
from typing import Any

from opal_lake.arguments.declared import help_of
from opal_lake.cli.command import (
    WORK,
    Verb,
    Verbs,
    add_columns,
    add_command,
    column_names,
    pairs,
    store_options,
)
from opal_lake.cli.flags import add_flags, add_job_token, add_token, operation_of
from opal_lake.cli.progress import ProgressLine
from opal_lake.cli.render import Style, output_width
from opal_lake.errors import InvalidInputError, OpalError
from opal_lake.operations.bootstrap import Bootstrap
from opal_lake.operations.compact import Compact
from opal_lake.operations.create import Create
from opal_lake.operations.ingest import Ingest, IngestSource
from opal_lake.operations.job_spec import JobSpec
from opal_lake.operations.maintain import Maintain
from opal_lake.operations.metagen import MetaGen
from opal_lake.operations.read import Changes, Read, ShowChanges, ShowRows
from opal_lake.operations.rebuild_key_store import RebuildKeyStore
from opal_lake.operations.verb import Job
from opal_lake.operations.zorder import ZOrder
from opal_lake.result import JobResult
from opal_lake.s3a import spark_settings
from opal_lake.source import DELTA_CONF, FILE_FORMATS, Files, Jdbc, source_to_json
from opal_spark.cli.check import add_check
from opal_spark.cli.explain import add_explain
from opal_spark.cli.mutate import add_mutate
from opal_spark.cli.result_pages import result_page, rows_page
from opal_spark.engine.versions import check_installed_spark


def commands(verbs: Verbs) -> None:
    """Register the verbs (an `opal.commands` entry point)."""
    for add in (_add_create, _add_ingest, _add_metagen, _add_read, _add_changes, _add_bootstrap):
        _add_spark(add(verbs))
    for add in (_add_rebuild, _add_compact, _add_zorder, _add_maintain):
        _add_spark(add(verbs))
    _add_spark(add_mutate(verbs, _run_one))
    add_explain(verbs)
    add_check(verbs, _run, _add_spark)


def _add_spark(parser: argparse.ArgumentParser) -> Any:
    spark = parser.add_argument_group("Spark")
    spark.add_argument(
        "--conf",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a setting of Spark, as spark.driver.memory=8g",
    )
    spark.add_argument("--verbose", action="store_true", help="show what Spark says")
    return spark


def _add_create(verbs: Verbs) -> argparse.ArgumentParser:
    example = "opal create lake/users --schema 'id INT, at DATE, del BOOLEAN' --key id --delta at --deletes del"
    parser = add_command(
        verbs,
        Verb(
            name="create",
            group=WORK,
            summary="make a new, empty table",
            example=example,
            run=create,
        ),
    )
    columns = parser.add_mutually_exclusive_group(required=True)
    add_flags(columns, Create, "schema")
    columns.add_argument("--like", metavar="FILE", help="take the columns from a file")
    _add_key(parser)
    add_flags(parser, Create, but=("keys", "schema", "file_format", "properties"))
    _add_property(parser)
    parser.add_argument(
        "--format",
        dest="file_format",
        choices=("parquet", "orc"),
        default="parquet",
        help="of the data files (default: %(default)s)",
    )
    return parser


def _add_key(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--key",
        action="append",
        dest="keys",
        required=True,
        metavar="COLUMN",
        help="a primary key column; repeat for more",
    )


def _add_property(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--property",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a table property; repeat for more",
    )


def _add_quarantine(parser: argparse.ArgumentParser) -> None:
    summary = "let good rows in and put bad ones aside (default: fail on a bad row)"
    parser.add_argument(
        "--quarantine", dest="on_bad_rows", action="store_const", const="quarantine", help=summary
    )


def _add_ingest(verbs: Verbs) -> argparse.ArgumentParser:
    example = "opal ingest lake/users in/*.csv --metagen"
    summary = "append the rows of files, or of a table of a database"
    parser = add_command(
        verbs,
        Verb(
            name="ingest",
            group=WORK,
            summary=summary,
            example=example,
            run=ingest,
            operands="PATH... ",
        ),
    )
    parser.add_argument("paths", nargs="*", metavar="PATH", help="files, folders or patterns")
    parser.add_argument(
        "--format", choices=FILE_FORMATS, help="of the files (default: by their extension)"
    )
    _add_names(parser)
    parser.add_argument(
        "--source-option",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="an option of Spark's reader, as sep=;",
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
        help="run a metagen right after it; --json shows both results as a list",
    )
    inline = "make the rows visible in the same job and commit"
    visible.add_argument(
        "--inline", dest="metadata", action="store_const", const="inline", help=inline
    )
    jdbc = parser.add_argument_group("database")
    jdbc.add_argument(
        "--jdbc-url", metavar="URL", help="jdbc:postgresql://host/db; without user and password"
    )
    jdbc.add_argument("--jdbc-table", metavar="NAME", help="a table of the database")
    jdbc.add_argument("--jdbc-query", metavar="SQL", help="or a query")
    jdbc.add_argument(
        "--user-env", metavar="NAME", help="the environment variable that holds the user"
    )
    jdbc.add_argument(
        "--password-env", metavar="NAME", help="the environment variable that holds the password"
    )
    return parser


def _add_names(parser: argparse.ArgumentParser) -> None:
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
        help="the cells of CSV files without a header (default: the table's columns)",
    )
    deletes = "files whose names match hold deletes, as 'del*': rows, or keys alone"
    parser.add_argument("--delete-files", dest="deletes", metavar="PATTERN", help=deletes)
    order = "what is later: the delta column; or file_suffix or file_position, which then gives the delta column its values"
    parser.add_argument("--order", metavar="COLUMN", help=order)


def _add_metagen(verbs: Verbs) -> argparse.ArgumentParser:
    summary = "make ingested rows visible: decide which row of each key is the valid one"
    parser = add_command(
        verbs,
        Verb(
            name="metagen",
            group=WORK,
            summary=summary,
            example="opal metagen lake/users --partition-key 2026-11-24",
            run=metagen,
        ),
    )
    which = parser.add_mutually_exclusive_group()
    add_flags(which, MetaGen, "partition_key", "all")
    tokens = help_of(MetaGen.fields()["tokens"].type)
    assert tokens is not None
    which.add_argument(
        "--token", dest="tokens", action="append", metavar=tokens.metavar, help=tokens.text
    )
    add_job_token(parser, "token")
    return parser


def _add_read(verbs: Verbs) -> argparse.ArgumentParser:
    example = "opal read lake/users --where 'id < 100' --event-time 2026-01-31T12:00:00+00:00"
    summary = "show or export rows, as they are now or were at any past moment"
    parser = add_command(
        verbs, Verb(name="read", group=WORK, summary=summary, example=example, run=read)
    )
    add_columns(parser)
    add_flags(parser, ShowRows, "where", "limit")
    add_flags(
        parser.add_argument_group("past moments"),
        ShowRows,
        "version",
        "timestamp",
        "business_snapshot",
        "event_time",
    )
    add_flags(parser.add_argument_group("part of the rows"), ShowRows, "partition_key", "net")
    add_flags(parser.add_argument_group("export"), ShowRows, "to", "format", "overwrite")
    return parser


def _add_changes(verbs: Verbs) -> argparse.ArgumentParser:
    example = "opal changes lake/users --start 8 --end 12 --where 'id < 100'"
    summary = "show or export what versions changed: rows that were inserted, updated or deleted"
    parser = add_command(
        verbs, Verb(name="changes", group=WORK, summary=summary, example=example, run=changes)
    )
    add_flags(parser, ShowChanges, "start", "end")
    add_columns(parser)
    add_flags(parser, ShowChanges, "where", "limit", "mode", "axis")
    parser.add_argument(
        "--no-updates",
        dest="compute_updates",
        action="store_false",
        help="an update as a delete and an insert",
    )
    add_flags(parser.add_argument_group("export"), ShowChanges, "to", "format", "overwrite")
    return parser


def _add_bootstrap(verbs: Verbs) -> argparse.ArgumentParser:
    example = "opal bootstrap lake/users old/users --format parquet --key id --delta at"
    summary = "import a Parquet or ORC folder, or a Delta or Iceberg table; after a failure, a repeat continues"
    parser = add_command(
        verbs,
        Verb(
            name="bootstrap",
            group=WORK,
            summary=summary,
            example=example,
            run=bootstrap,
            operands="SOURCE ",
        ),
    )
    parser.add_argument(
        "source", metavar="SOURCE", help="a folder; of Iceberg also a name in a catalog"
    )
    _add_key(parser)
    add_flags(parser, Bootstrap, but=("keys", "properties"))
    _add_property(parser)
    _add_quarantine(parser)
    return parser


def _add_rebuild(verbs: Verbs) -> argparse.ArgumentParser:
    example = "opal rebuild-key-store lake/users"
    summary = "rebuild the key store from the data files, if `opal check` found runs of it lost or damaged"
    parser = add_command(
        verbs,
        Verb(
            name="rebuild-key-store",
            group=WORK,
            summary=summary,
            example=example,
            run=rebuild_key_store,
        ),
    )
    add_token(parser)
    return parser


def _add_compact(verbs: Verbs) -> argparse.ArgumentParser:
    summary = "make fewer, larger files of small ones; with --look-back also drop old history"
    parser = add_command(
        verbs,
        Verb(
            name="compact",
            group=WORK,
            summary=summary,
            example="opal compact lake/users",
            run=compact,
        ),
    )
    add_flags(parser, Compact)
    add_token(parser)
    return parser


def _add_zorder(verbs: Verbs) -> argparse.ArgumentParser:
    example = "opal zorder lake/orders customer_id created_at"
    summary = "put rows that are close in all these columns into the same files, so that reads skip the others"
    parser = add_command(
        verbs,
        Verb(
            name="zorder",
            group=WORK,
            summary=summary,
            example=example,
            run=zorder,
            operands="COLUMN... ",
        ),
    )
    parser.add_argument(
        "paths", nargs="+", metavar="COLUMN", help="1 to 8 columns that queries filter by"
    )
    add_flags(parser, ZOrder)
    add_token(parser)
    return parser


def _add_maintain(verbs: Verbs) -> argparse.ArgumentParser:
    summary = "run compaction, Z-order and retention, each if it is due by the table's properties"
    example = "opal maintain lake/users --dry-run"
    parser = add_command(
        verbs, Verb(name="maintain", group=WORK, summary=summary, example=example, run=maintain)
    )
    parser.add_argument(
        "--keep-files", action="store_true", help="without retention: delete nothing"
    )
    add_flags(parser, Maintain)
    add_token(parser)
    return parser


def maintain(args: argparse.Namespace) -> None:
    _run_one(args, operation_of(args, Maintain, delete=not args.keep_files))


def create(args: argparse.Namespace) -> None:
    args.like = args.like and {"files": [args.like]}
    _run_one(args, operation_of(args, Create, properties=_properties(args)))


def _properties(args: argparse.Namespace) -> dict[str, int | str]:
    from opal_lake.definition.properties import given_properties

    return given_properties(pairs(args.property, "--property"))


def bootstrap(args: argparse.Namespace) -> None:
    if any("delta-spark" in setting for setting in args.conf):
        args.conf = [*(f"{name}={value}" for name, value in DELTA_CONF.items()), *args.conf]
    _run_one(args, operation_of(args, Bootstrap, properties=_properties(args)))


def rebuild_key_store(args: argparse.Namespace) -> None:
    _run_one(args, RebuildKeyStore())


def compact(args: argparse.Namespace) -> None:
    _run_one(args, operation_of(args, Compact, mode="minor" if args.look_back is None else "major"))


def zorder(args: argparse.Namespace) -> None:
    _run_one(args, operation_of(args, ZOrder, columns=args.paths))


def ingest(args: argparse.Namespace) -> None:
    specs: list[JobSpec[Any]] = [
        JobSpec(
            operation=operation_of(args, IngestSource, source=_source(args)),
            table=args.table,
            token=args.token,
        )
    ]
    if args.metagen:  # a token names one commit: the second gets one of its own
        specs.append(
            JobSpec(
                operation=MetaGen(), table=args.table, token=args.token and f"{args.token}/metagen"
            )
        )
    _show(args, _run(args, specs))


def _source(args: argparse.Namespace) -> dict[str, Any]:
    flags = {
        "url": "jdbc_url",
        "table": "jdbc_table",
        "query": "jdbc_query",
        "user_env": "user_env",
        "password_env": "password_env",
    }
    jdbc = {
        name: value for name, flag in flags.items() if (value := getattr(args, flag)) is not None
    }
    if bool(args.paths) == bool(jdbc):
        raise InvalidInputError(
            "ingest needs one source: PATH..., or --jdbc-url with --jdbc-table or --jdbc-query"
        )
    options = pairs(args.source_option, "--source-option")
    named = {
        name: value
        for name in ("header", "deletes", "order")
        if (value := getattr(args, name)) is not None
    }
    named |= {"columns": columns} if (columns := column_names(args.columns)) else {}
    if jdbc and named:
        raise InvalidInputError(
            "--no-header, --columns, --delete-files and --order are about files; leave them out with --jdbc-url"
        )
    if jdbc:
        return source_to_json(Jdbc(**{"url": "", **jdbc}, options=options))
    return source_to_json(Files(paths=args.paths, format=args.format, options=options, **named))


def metagen(args: argparse.Namespace) -> None:
    _run_one(args, operation_of(args, MetaGen))


def read(args: argparse.Namespace) -> None:
    _show_rows(args, ShowRows)


def changes(args: argparse.Namespace) -> None:
    _show_rows(args, ShowChanges)


def _show_rows(args: argparse.Namespace, declared: type[ShowRows] | type[ShowChanges]) -> None:
    args.columns = column_names(args.columns)
    operation = operation_of(args, declared)
    _check_versions(args, operation)
    results = _run(args, [JobSpec(operation=operation, table=args.table)])
    if args.to is not None:
        _show(args, results)
    elif args.json:
        print(json.dumps(results[0].examples, indent=2, ensure_ascii=False))
    else:
        _print(rows_page(results[0], Style.of(sys.stdout), output_width(sys.stdout)))


def _check_versions(args: argparse.Namespace, operation: ShowRows | ShowChanges) -> None:
    """That the table has what is asked for: Spark, which takes seconds to start, would say so no better.

    A table that cannot be opened here is left to Spark, whose own settings may reach its store.
    """
    from opal_lake.read.change_range import version_range
    from opal_lake.table import Table

    try:
        table = Table.open(args.table, store_options(args))
    except OpalError:
        return
    if isinstance(operation, Changes):
        version_range(table.log, operation.start, operation.end)
    if isinstance(operation, Read):
        table.snapshot_at(operation.version, operation.timestamp, operation.business_snapshot)


def _run_one(args: argparse.Namespace, operation: Job) -> None:
    _show(
        args,
        _run(
            args,
            [JobSpec(operation=operation, table=args.table, token=getattr(args, "token", None))],
        ),
    )


def _run(args: argparse.Namespace, specs: list[JobSpec[Any]]) -> list[JobResult]:
    """The specs one after the other in one session, with a progress line."""
    if importlib.util.find_spec("pyspark") is None:
        from opal_spark.cli.without_spark import LocalPlace, run_without_spark

        options = store_options(args)
        if args.conf or args.verbose:
            option = "--conf" if args.conf else "--verbose"
            LocalPlace(uri=args.table, options=options, command=args.command).refuse(option)
        return [run_without_spark(spec, options, args.command) for spec in specs]
    check_installed_spark()
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


def _show(args: argparse.Namespace, results: list[JobResult]) -> None:
    if args.json:
        printed = [result.to_dict() for result in results]
        print(
            json.dumps(
                printed if getattr(args, "metagen", False) else printed[0],
                indent=2,
                ensure_ascii=False,
            )
        )
        return
    dry_run = getattr(args, "dry_run", False)
    for at, result in enumerate(results):
        _print(
            result_page(
                result,
                Style.of(sys.stdout),
                output_width(sys.stdout),
                last=at == len(results) - 1,
                dry_run=dry_run,
            )
        )


def _print(lines: Iterable[str]) -> None:
    for line in lines:
        print(line)
