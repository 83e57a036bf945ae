"""The verbs that change or read a table, in this process or on Spark."""

import argparse
import json
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from opal_lake.arguments.declared import help_of
from opal_lake.cli.command import (
    TABLE_FORMS,
    WORK,
    Verb,
    Verbs,
    add_columns,
    add_command,
    check_property_names,
    column_names,
    pairs,
    store_options,
)
from opal_lake.cli.flags import add_flags, add_job_token, add_token, operation_of
from opal_lake.cli.render import Style, output_width
from opal_lake.cli.result_pages import result_page, rows_page
from opal_lake.cli.run_job import add_engine, run_job
from opal_lake.cli.shown_rows import rows_lines
from opal_lake.errors import InvalidInputError
from opal_lake.operations.compact import Compact
from opal_lake.operations.create import Create
from opal_lake.operations.maintain import Maintain
from opal_lake.operations.metagen import MetaGen
from opal_lake.operations.read import Get, ShowChanges, ShowRows
from opal_lake.operations.rebuild_key_store import RebuildKeyStore
from opal_lake.operations.verb import Job
from opal_lake.operations.zorder import ZOrder
from opal_lake.result import JobResult


def commands(verbs: Verbs) -> None:
    """Register the verbs, in the order of the help page."""
    add_engine(_add_create(verbs), when="with --like")
    add_engine(_add_metagen(verbs))
    add_engine(_add_read(verbs))
    add_engine(_add_changes(verbs))
    _add_get(verbs)
    add_engine(_add_compact(verbs))
    add_engine(_add_zorder(verbs))
    add_engine(_add_maintain(verbs))
    add_engine(_add_rebuild(verbs))


def _add_create(verbs: Verbs) -> argparse.ArgumentParser:
    example = (
        "opal create lake/users --schema 'id INT, at DATE, del BOOLEAN' "
        "--key id --delta at --deletes del"
    )
    summary = "create a new, empty table"
    parser = add_command(
        verbs, Verb(name="create", group=WORK, summary=summary, example=example, run=create)
    )
    columns = parser.add_mutually_exclusive_group(required=True)
    add_flags(columns, Create, "schema")
    columns.add_argument("--like", metavar="FILE", help="take the columns from a file")
    add_key(parser)
    add_flags(parser, Create, but=("keys", "schema", "file_format", "properties"))
    add_property(parser)
    parser.add_argument(
        "--format",
        dest="file_format",
        choices=("parquet", "orc"),
        default="parquet",
        help="the format of the data files (default: %(default)s)",
    )
    return parser


def add_key(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--key",
        action="append",
        dest="keys",
        required=True,
        metavar="COLUMN",
        help="a column of the primary key; repeat for more",
    )


def add_property(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--property",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a table property; repeat for more",
    )


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
    selections = parser.add_mutually_exclusive_group()
    add_flags(selections, MetaGen, "partition_key", "all")
    # Its name is not that of the argument, since it is repeated
    tokens = help_of(MetaGen.fields()["tokens"].type)
    assert tokens is not None
    selections.add_argument(
        "--token", dest="tokens", action="append", metavar=tokens.metavar, help=tokens.text
    )
    add_job_token(parser, "token")
    return parser


def _add_read(verbs: Verbs) -> argparse.ArgumentParser:
    example = "opal read lake/users --where 'id < 100' --event-time 2026-01-31T12:00:00+00:00"
    summary = "show or export rows, as they are now or were at a past moment"
    parser = add_command(
        verbs, Verb(name="read", group=WORK, summary=summary, example=example, run=read)
    )
    add_columns(parser)
    add_flags(parser, ShowRows, "where", "limit")
    past = parser.add_argument_group("past moments")
    add_flags(
        past.add_mutually_exclusive_group(), ShowRows, "version", "timestamp", "business_snapshot"
    )
    add_flags(past, ShowRows, "event_time", "newest_columns")
    add_flags(parser.add_argument_group("part of the rows"), ShowRows, "partition_key", "net")
    add_flags(parser.add_argument_group("export"), ShowRows, "to", "format", "overwrite")
    return parser


def _add_changes(verbs: Verbs) -> argparse.ArgumentParser:
    example = "opal changes lake/users --start 8 --end 12 --where 'id < 100'"
    summary = "show or export the rows that versions inserted, updated or deleted"
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
        help="show an update as a delete and an insert",
    )
    add_flags(parser.add_argument_group("export"), ShowChanges, "to", "format", "overwrite")
    return parser


def _add_get(verbs: Verbs) -> None:
    parser = add_command(
        verbs,
        Verb(
            name="get",
            group=WORK,
            summary="show the row of a key, found by the key store",
            example="opal get lake/users 7 --columns name",
            run=get,
            operands="VALUE... ",
        ),
    )
    parser.add_argument(
        "paths", nargs="+", metavar="VALUE", help="one value for each key column, in their order"
    )
    add_columns(parser)
    add_flags(parser, Get, "where")
    past = parser.add_argument_group("past moments")
    add_flags(past.add_mutually_exclusive_group(), Get, "version", "timestamp")
    add_flags(past, Get, "event_time")


def _add_rebuild(verbs: Verbs) -> argparse.ArgumentParser:
    example = "opal rebuild-key-store lake/users"
    summary = (
        "rebuild the key store from the data files, after `opal check` found lost or damaged runs"
    )
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
    summary = "merge small files into larger ones; with --look-back also drop old history"
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
    summary = "sort rows so that each file holds close values of some columns, and reads skip files"
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
        "--keep-files", action="store_true", help="leave retention out: delete nothing"
    )
    add_flags(parser, Maintain)
    add_token(parser)
    return parser


def maintain(args: argparse.Namespace) -> None:
    _run_one(args, operation_of(args, Maintain, delete=not args.keep_files))


def create(args: argparse.Namespace) -> None:
    from opal_lake.storage.uris import split_scheme

    scheme, _ = split_scheme(args.table)
    if scheme == "memory":
        raise InvalidInputError(
            f"{args.table} would be lost when this command ends; give {TABLE_FORMS}"
        )
    if args.like is not None:
        args.like = {"files": [args.like]}
    _run_one(args, operation_of(args, Create, properties=given_properties_of(args)))


def given_properties_of(args: argparse.Namespace) -> dict[str, int | str]:
    from opal_lake.definition.properties import given_properties

    texts = pairs(args.property, "--property")
    check_property_names(texts)
    return given_properties(texts)


def rebuild_key_store(args: argparse.Namespace) -> None:
    _run_one(args, RebuildKeyStore())


def compact(args: argparse.Namespace) -> None:
    mode = "minor" if args.look_back is None else "major"
    _run_one(args, operation_of(args, Compact, mode=mode))


def zorder(args: argparse.Namespace) -> None:
    _run_one(args, operation_of(args, ZOrder, columns=args.paths))


def metagen(args: argparse.Namespace) -> None:
    _run_one(args, operation_of(args, MetaGen))


def read(args: argparse.Namespace) -> None:
    _show_rows(args, ShowRows)


def changes(args: argparse.Namespace) -> None:
    _show_rows(args, ShowChanges)


def get(args: argparse.Namespace) -> None:
    from opal_lake.data.shown_values import json_rows
    from opal_lake.read.get import key_of_texts
    from opal_lake.table import Table

    table = Table.open(args.table, store_options(args))
    args.columns = column_names(args.columns)
    key = key_of_texts(args.paths, table.snapshot_at(args.version, args.timestamp).spec)
    rows = json_rows(operation_of(args, Get, keys=[key]).run(table))
    if args.json:
        print(json.dumps(rows, indent=2, ensure_ascii=False))
        return
    style = Style.of(sys.stdout)
    if rows:
        _print(rows_lines(rows, style, output_width(sys.stdout)))
    else:
        print(style.faint("no row"))


def _show_rows(args: argparse.Namespace, declared: type[ShowRows] | type[ShowChanges]) -> None:
    args.columns = column_names(args.columns)
    result = run_job(args, operation_of(args, declared))
    if args.to is not None:
        show_results(args, [result])
    elif args.json:
        print(json.dumps(result.examples, indent=2, ensure_ascii=False))
    else:
        _print(rows_page(result, Style.of(sys.stdout), output_width(sys.stdout)))


def _run_one(args: argparse.Namespace, operation: Job) -> None:
    show_results(args, [run_job(args, operation)])


def show_results(
    args: argparse.Namespace, results: Sequence[JobResult], *, as_list: bool = False
) -> None:
    """Print the results of jobs.

    With `--json` it is a list `as_list`, otherwise the one result.
    """
    if args.json:
        printed: Any = [result.to_dict() for result in results]
        if not as_list:
            [printed] = printed
        print(json.dumps(printed, indent=2, ensure_ascii=False))
        return
    style, width = Style.of(sys.stdout), output_width(sys.stdout)
    dry_run = getattr(args, "dry_run", False)
    for position, result in enumerate(results, start=1):
        is_last = position == len(results)
        _print(result_page(result, style, width, last=is_last, dry_run=dry_run))


def _print(lines: Iterable[str]) -> None:
    for line in lines:
        print(line)
