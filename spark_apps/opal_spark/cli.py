"""The verbs of `opal` that run on Spark. PySpark is imported when one runs, so that help costs nothing and works without it."""

import argparse
import csv
import importlib.util
import json
import sys
from collections.abc import Iterable
from typing import Any

from opal_lake.cli.command import WORK, Verb, Verbs, add_command, pairs, store_options, whole_number
from opal_lake.cli.progress import ProgressLine
from opal_lake.cli.render import Style, output_width
from opal_lake.errors import InvalidInputError
from opal_lake.job import JobResult, JobSpec
from opal_lake.source import BATCH_MB, DELTA_CONF, FILE_FORMATS, SOURCE_TABLE_FORMATS, Files, Jdbc, source_to_json
from opal_spark.cli_explain import add_explain
from opal_spark.cli_pages import result_page, rows_page


def commands(verbs: Verbs) -> None:
    """Register the verbs (an `opal.commands` entry point)."""
    for add in (_add_create, _add_ingest, _add_metagen, _add_read, _add_bootstrap, _add_rebuild, _add_compact, _add_zorder, _add_maintain):
        parser = add(verbs)
        spark = parser.add_argument_group("Spark")
        spark.add_argument(
            "--conf", action="append", default=[], metavar="NAME=VALUE", help="a setting of Spark, as spark.driver.memory=8g"
        )
        spark.add_argument("--verbose", action="store_true", help="show what Spark says")
    add_explain(verbs)


def _add_create(verbs: Verbs) -> argparse.ArgumentParser:
    example = "opal create lake/users --schema 'id INT, at DATE, del BOOLEAN' --key id --delta at --deletes del"
    parser = add_command(verbs, Verb(name="create", group=WORK, summary="make a new, empty table", example=example, run=create))
    columns = parser.add_mutually_exclusive_group(required=True)
    columns.add_argument("--schema", metavar="SQL", help="the columns as in CREATE TABLE")
    columns.add_argument("--like", metavar="FILE", help="take the columns from a file")
    _add_layout(parser)
    parser.add_argument("--format", choices=("parquet", "orc"), default="parquet", help="of the data files (default: %(default)s)")
    parser.add_argument("--if-absent", action="store_true", help="no error if the same table is there already")
    return parser


def _add_layout(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--key", action="append", required=True, metavar="COLUMN", help="a primary key column; repeat for more")
    parser.add_argument("--delta", required=True, metavar="COLUMN", help="when the change happened at the source; the latest one wins")
    parser.add_argument("--tie-break", action="append", default=[], metavar="COLUMN", help="decides among equal deltas; repeat for more")
    parser.add_argument("--deletes", metavar="SQL", help="a condition: rows that fulfil it delete their key")
    parser.add_argument("--partition-by", action="append", default=[], metavar="COLUMN", help="repeat for more")
    parser.add_argument("--property", action="append", default=[], metavar="NAME=VALUE", help="a table property; repeat for more")


def _add_ingest(verbs: Verbs) -> argparse.ArgumentParser:
    example = "opal ingest lake/users in/*.csv --metagen"
    summary = "append the rows of files, or of a table of a database"
    parser = add_command(verbs, Verb(name="ingest", group=WORK, summary=summary, example=example, run=ingest, operands="PATH... "))
    parser.add_argument("paths", nargs="*", metavar="PATH", help="files, folders or patterns")
    parser.add_argument("--format", choices=FILE_FORMATS, help="of the files (default: by their extension)")
    parser.add_argument("--source-option", action="append", default=[], metavar="NAME=VALUE", help="an option of Spark's reader, as sep=;")
    parser.add_argument("--token", metavar="TEXT", help="the same token twice ingests once")
    parser.add_argument("--quarantine", action="store_true", help="let good rows in and put bad ones aside (default: fail on a bad row)")
    parser.add_argument("--accept-empty", action="store_true", help="a source without a row is no change (default: it is an error)")
    visible = parser.add_mutually_exclusive_group()
    visible.add_argument("--metagen", action="store_true", help="run a metagen right after it; --json shows both results as a list")
    visible.add_argument("--inline", action="store_true", help="make the rows visible in the same job and commit")
    jdbc = parser.add_argument_group("database")
    jdbc.add_argument("--jdbc-url", metavar="URL", help="jdbc:postgresql://host/db; without user and password")
    jdbc.add_argument("--jdbc-table", metavar="NAME", help="a table of the database")
    jdbc.add_argument("--jdbc-query", metavar="SQL", help="or a query")
    jdbc.add_argument("--user-env", metavar="NAME", help="the environment variable that holds the user")
    jdbc.add_argument("--password-env", metavar="NAME", help="the environment variable that holds the password")
    return parser


def _add_metagen(verbs: Verbs) -> argparse.ArgumentParser:
    summary = "make ingested rows visible: decide which row of each key is the valid one"
    parser = add_command(verbs, Verb(name="metagen", group=WORK, summary=summary, example="opal metagen lake/users", run=metagen))
    parser.add_argument("--token", metavar="TEXT", help="the same token twice runs once")
    return parser


def _add_read(verbs: Verbs) -> argparse.ArgumentParser:
    example = "opal read lake/users --where 'id < 100' --event-time 2026-01-31T12:00:00+00:00"
    summary = "show or export rows, as they are now or were at any past moment"
    parser = add_command(verbs, Verb(name="read", group=WORK, summary=summary, example=example, run=read))
    parser.add_argument("--columns", metavar="A,B", help="which columns; names with commas in `backticks` (default: all)")
    parser.add_argument("--where", metavar="SQL", help="a condition on rows")
    parser.add_argument("--limit", type=whole_number, metavar="N", help="most rows (default: 20 shown, all exported)")
    moment = parser.add_argument_group("past moments")
    moment.add_argument("--version", type=whole_number, metavar="N", help="what was committed up to this version")
    moment.add_argument("--timestamp", metavar="TIME", help="what was committed up to this time, as 2026-01-31T12:00:00+00:00")
    moment.add_argument("--event-time", metavar="VALUE", help="what was valid at the source, by the delta column; late rows included")
    export = parser.add_argument_group("export")
    export.add_argument("--to", metavar="PATH", help="write the rows to this folder instead of showing them")
    export.add_argument("--format", choices=FILE_FORMATS, default="parquet", help="of the exported files (default: %(default)s)")
    export.add_argument("--overwrite", action="store_true", help="replace what is in the folder")
    return parser


def _add_bootstrap(verbs: Verbs) -> argparse.ArgumentParser:
    example = "opal bootstrap lake/users old/users --format parquet --key id --delta at"
    summary = "take over a Parquet or ORC folder, or a Delta or Iceberg table; a repeat goes on after a failure"
    parser = add_command(verbs, Verb(name="bootstrap", group=WORK, summary=summary, example=example, run=bootstrap, operands="SOURCE "))
    parser.add_argument("source", metavar="SOURCE", help="a folder; of Iceberg also a name in a catalog")
    parser.add_argument("--format", choices=SOURCE_TABLE_FORMATS, required=True, help="of the source")
    parser.add_argument("--schema", metavar="SQL", help="the columns as in CREATE TABLE (default: those of the source)")
    _add_layout(parser)
    parser.add_argument("--file-format", choices=("parquet", "orc"), default="parquet", help="of the table (default: %(default)s)")
    parser.add_argument("--source-version", type=whole_number, metavar="N", help="of Delta, or an Iceberg snapshot id (default: newest)")
    parser.add_argument("--batch-mb", type=whole_number, default=BATCH_MB, metavar="N", help="ingested at once (default: %(default)s)")
    parser.add_argument("--quarantine", action="store_true", help="let good rows in and put bad ones aside (default: fail on a bad row)")
    return parser


def _add_rebuild(verbs: Verbs) -> argparse.ArgumentParser:
    example = "opal rebuild-key-store lake/users"
    summary = "make the key store anew from the data files, when `opal check` found runs of it lost or damaged"
    parser = add_command(verbs, Verb(name="rebuild-key-store", group=WORK, summary=summary, example=example, run=rebuild_key_store))
    parser.add_argument("--token", metavar="TEXT", help="the same token twice runs once")
    return parser


def _add_compact(verbs: Verbs) -> argparse.ArgumentParser:
    summary = "make fewer, larger files of small ones; with --look-back also drop old history"
    parser = add_command(verbs, Verb(name="compact", group=WORK, summary=summary, example="opal compact lake/users", run=compact))
    parser.add_argument(
        "--look-back", metavar="SPAN", help="drop what no event time since then shows, as 30d; a number if the delta is one"
    )
    parser.add_argument("--target-mb", type=whole_number, metavar="N", help="size of the files (default: property target_mb)")
    parser.add_argument("--only-if-due", action="store_true", help="do nothing while the properties small_files and dead_share allow it")
    parser.add_argument("--token", metavar="TEXT", help="the same token twice runs once")
    return parser


def _add_zorder(verbs: Verbs) -> argparse.ArgumentParser:
    example = "opal zorder lake/orders customer_id created_at"
    summary = "put rows that are close in all these columns into the same files, so that reads skip the others"
    parser = add_command(verbs, Verb(name="zorder", group=WORK, summary=summary, example=example, run=zorder, operands="COLUMN... "))
    parser.add_argument("paths", nargs="+", metavar="COLUMN", help="1 to 8 columns that queries filter by")
    parser.add_argument("--whole", action="store_true", help="what is in this order already is ordered anew too (default: what is new)")
    parser.add_argument("--only-if-due", action="store_true", help="only when enough is new: property unclustered_share")
    parser.add_argument("--target-mb", type=whole_number, metavar="N", help="size of the files (default: property target_mb)")
    parser.add_argument("--token", metavar="TEXT", help="the same token twice runs once")
    return parser


def _add_maintain(verbs: Verbs) -> argparse.ArgumentParser:
    summary = "look whether compaction, Z-order or retention are due by the table's properties, and do what is"
    example = "opal maintain lake/users --dry-run"
    parser = add_command(verbs, Verb(name="maintain", group=WORK, summary=summary, example=example, run=maintain))
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="instead of a property; repeat for more")
    parser.add_argument("--keep-files", action="store_true", help="without retention: delete nothing")
    parser.add_argument("--dry-run", action="store_true", help="only say what is due, and why")
    parser.add_argument("--token", metavar="TEXT", help="the same token twice runs once")
    return parser


def maintain(args: argparse.Namespace) -> None:
    from opal_lake.properties import given_properties

    policy = given_properties(pairs(args.set, "--set"))
    arguments = {"dry_run": args.dry_run, "delete": not args.keep_files}
    _show(args, _run(args, [_spec("maintain", args, policy | arguments, args.token)]))


def create(args: argparse.Namespace) -> None:
    arguments = {
        "schema": args.schema,
        "like": args.like and {"files": [args.like]},
        **_layout(args),
        "file_format": args.format,
        "if_absent": args.if_absent,
    }
    _show(args, _run(args, [_spec("create", args, arguments)]))


def _layout(args: argparse.Namespace) -> dict[str, Any]:
    from opal_lake.properties import given_properties

    return {
        "keys": args.key,
        "delta": args.delta,
        "tie_break": args.tie_break,
        "deletes": args.deletes,
        "partition_by": args.partition_by,
        "properties": given_properties(pairs(args.property, "--property")),
    }


def bootstrap(args: argparse.Namespace) -> None:
    names = ("source", "format", "schema", "file_format", "source_version", "batch_mb")
    arguments = {name: getattr(args, name) for name in names} | _layout(args)
    arguments["on_bad_rows"] = "quarantine" if args.quarantine else "fail"
    if any("delta-spark" in setting for setting in args.conf):
        args.conf = [*(f"{name}={value}" for name, value in DELTA_CONF.items()), *args.conf]
    _show(args, _run(args, [_spec("bootstrap", args, arguments)]))


def rebuild_key_store(args: argparse.Namespace) -> None:
    _show(args, _run(args, [_spec("rebuild_key_store", args, {}, args.token)]))


def compact(args: argparse.Namespace) -> None:
    mode = "minor" if args.look_back is None else "major"
    arguments = {"mode": mode, "look_back": args.look_back, "target_mb": args.target_mb, "only_if_due": args.only_if_due}
    _show(args, _run(args, [_spec("compact", args, arguments, args.token)]))


def zorder(args: argparse.Namespace) -> None:
    arguments = {"columns": args.paths, "whole": args.whole, "only_if_due": args.only_if_due, "target_mb": args.target_mb}
    _show(args, _run(args, [_spec("zorder", args, arguments, args.token)]))


def ingest(args: argparse.Namespace) -> None:
    on_bad_rows = "quarantine" if args.quarantine else "fail"
    on_empty = "accept" if args.accept_empty else "fail"
    arguments = {
        "source": _source(args),
        "on_bad_rows": on_bad_rows,
        "on_empty": on_empty,
        "metadata": "inline" if args.inline else "batch",
    }
    specs = [_spec("ingest", args, arguments, args.token)]
    if args.metagen:  # a token names one commit: the second gets one of its own
        specs.append(_spec("metagen", args, {}, args.token and f"{args.token}/metagen"))
    _show(args, _run(args, specs))


def _source(args: argparse.Namespace) -> dict[str, Any]:
    flags = {"url": "jdbc_url", "table": "jdbc_table", "query": "jdbc_query", "user_env": "user_env", "password_env": "password_env"}
    jdbc = {name: value for name, flag in flags.items() if (value := getattr(args, flag)) is not None}
    if bool(args.paths) == bool(jdbc):
        raise InvalidInputError("ingest needs one source: PATH..., or --jdbc-url with --jdbc-table or --jdbc-query")
    options = pairs(args.source_option, "--source-option")
    if jdbc:
        return source_to_json(Jdbc(**{"url": "", **jdbc}, options=options))
    return source_to_json(Files(paths=args.paths, format=args.format, options=options))


def metagen(args: argparse.Namespace) -> None:
    _show(args, _run(args, [_spec("metagen", args, {}, args.token)]))


def read(args: argparse.Namespace) -> None:
    names = ("where", "limit", "version", "timestamp", "event_time", "to", "format", "overwrite")
    columns = next(csv.reader([args.columns], quotechar="`", skipinitialspace=True)) if args.columns else None
    results = _run(args, [_spec("read", args, {"columns": columns} | {name: getattr(args, name) for name in names})])
    if args.to is not None:
        _show(args, results)
    elif args.json:
        print(json.dumps(results[0].examples, indent=2, ensure_ascii=False))
    else:
        _print(rows_page(results[0], Style.of(sys.stdout), output_width(sys.stdout)))


def _spec(operation: str, args: argparse.Namespace, arguments: dict[str, Any], token: str | None = None) -> JobSpec:
    given = {name: value for name, value in arguments.items() if value is not None}
    return JobSpec(operation=operation, table=args.table, arguments=given, token=token)


def _run(args: argparse.Namespace, specs: list[JobSpec]) -> list[JobResult]:
    """The specs one after the other in one session, with a progress line."""
    if importlib.util.find_spec("pyspark") is None:
        raise InvalidInputError(f"opal {args.command} needs Spark, which is not installed: pip install 'airflow-provider-opal[spark]'")
    from opal_spark import operations
    from opal_spark.app import perform
    from opal_spark.launch import launched, own_stderr, s3a_conf
    from opal_spark.progress import SparkSteps

    conf = {**s3a_conf(store_options(args)), **pairs(args.conf, "--conf")}
    steps, results = SparkSteps(), []
    with (
        own_stderr() as stream,
        ProgressLine(args.command, steps.where, stream) as line,
        launched(f"opal {args.command} {args.table}", conf, verbose=args.verbose) as spark,
    ):
        steps.watch(spark)
        for spec in specs:
            line.title = spec.operation
            results.append(perform(spark, spec, getattr(operations, spec.operation)))
    return results


def _show(args: argparse.Namespace, results: list[JobResult]) -> None:
    if args.json:
        found = [result.to_dict() for result in results]
        print(json.dumps(found if getattr(args, "metagen", False) else found[0], indent=2, ensure_ascii=False))
        return
    for at, result in enumerate(results):
        _print(result_page(result, Style.of(sys.stdout), output_width(sys.stdout), last=at == len(results) - 1))


def _print(lines: Iterable[str]) -> None:
    for line in lines:
        print(line)
