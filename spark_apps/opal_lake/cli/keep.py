"""The verbs that keep a table: its properties, its savepoints, and retention.

They write metadata only and need no Spark.
"""

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING

from opal_lake.cli.alter import add_changes, alter_arguments
from opal_lake.cli.command import (
    KEEP,
    Verb,
    Verbs,
    add_command,
    check_property_names,
    pairs,
    store_options,
    whole_number,
)
from opal_lake.cli.flags import add_flags, add_job_token, add_token, operation_of
from opal_lake.cli.progress import ProgressLine, Step
from opal_lake.cli.render import (
    Column,
    Style,
    escaped,
    facts,
    output_width,
    size_text,
    text_table,
)
from opal_lake.cli.result_pages import took_text
from opal_lake.cli.table_pages import counts_text
from opal_lake.errors import InvalidInputError
from opal_lake.operations.discard import Discard
from opal_lake.operations.erase import Erase
from opal_lake.operations.restore import Restore
from opal_lake.operations.retain import Retain
from opal_lake.operations.spec_changes import Alter
from opal_lake.result import JobResult

if TYPE_CHECKING:
    from opal_lake.table import Table


def commands(verbs: Verbs) -> None:
    """Register the verbs."""
    _add_set(verbs)
    _add_columns(verbs)
    _add_alter(verbs)
    _add_savepoint(verbs)
    _add_finish(verbs)
    _add_discard(verbs)
    _add_restore(verbs)
    _add_retain(verbs)
    _add_erase(verbs)
    _add_repair_clock(verbs)


def _add_set(verbs: Verbs) -> None:
    example = "opal set lake/users window=30d zorder=country,at"
    summary = "change properties of a table, or list them all"
    parser = add_command(
        verbs,
        Verb(
            name="set",
            group=KEEP,
            summary=summary,
            example=example,
            run=change,
            operands="NAME=VALUE... ",
        ),
    )
    parser.add_argument(
        "paths",
        nargs="*",
        metavar="NAME=VALUE",
        help="a property and its value; an empty value removes a text",
    )
    parser.add_argument(
        "--default",
        action="append",
        default=[],
        metavar="NAME",
        help="reset this property to its default; repeat for more",
    )
    add_token(parser, "changes")


def change(args: argparse.Namespace) -> None:
    from opal_lake.definition.properties import given_properties

    if not args.paths and not args.default:
        _list_properties(args)
        return
    for text in args.paths:
        if "=" not in text:
            raise InvalidInputError(f"opal set: {text!r} has no value; write {text}=VALUE")
    values = pairs(args.paths, "opal set")
    for name in args.default:
        if name in values:
            raise InvalidInputError(
                f"opal set: {name!r} has a value and --default {name}; leave out one of them"
            )
    check_property_names([*values, *args.default])
    changes = {**given_properties(values), **dict.fromkeys(args.default)}
    show_result(args, _table(args).set_properties(changes, token=args.token), "changed")


def _add_columns(verbs: Verbs) -> None:
    example = "opal add-columns lake/users discount:double note:string"
    summary = "add columns to a table; existing rows have null in them"
    verb = Verb(
        name="add-columns",
        group=KEEP,
        summary=summary,
        example=example,
        run=add_columns,
        operands="NAME:TYPE... ",
    )
    parser = add_command(verbs, verb)
    parser.add_argument(
        "paths",
        nargs="+",
        metavar="NAME:TYPE",
        help="a new column, with a type as in a schema: BIGINT, DECIMAL(10,2), TIMESTAMP, ...",
    )
    add_token(parser, "adds")


def add_columns(args: argparse.Namespace) -> None:
    columns: dict[str, str] = {}
    for text in args.paths:
        name, _, kind = text.rpartition(":")
        if not name:
            raise InvalidInputError(
                f"opal add-columns: {text!r} has no type; write NAME:TYPE such as discount:double"
            )
        if name in columns:
            raise InvalidInputError(
                f"opal add-columns: column {name!r} is named twice; name it once"
            )
        columns[name] = kind
    show_result(args, _table(args).add_columns(columns, token=args.token), "added")


def _add_alter(verbs: Verbs) -> None:
    example = "opal alter lake/users --rename mail=email --drop fax --add 'age int after email'"
    summary = "change columns, defaults and constraints, without a rewrite of files"
    parser = add_command(
        verbs, Verb(name="alter", group=KEEP, summary=summary, example=example, run=alter)
    )
    add_changes(parser)
    add_flags(parser, Alter, "schema")
    add_token(parser, "changes")


def alter(args: argparse.Namespace) -> None:
    job = Alter.of({**alter_arguments(args), "token": args.token})
    show_result(args, job.run(_table(args)), "changed:")


def _add_savepoint(verbs: Verbs) -> None:
    example = "opal savepoint lake/users before-the-move"
    summary = "give a version a name, by which it stays readable until it is released"
    parser = add_command(
        verbs,
        Verb(
            name="savepoint",
            group=KEEP,
            summary=summary,
            example=example,
            run=savepoint,
            operands="NAME ",
        ),
    )
    parser.add_argument(
        "name",
        metavar="NAME",
        help="letters, digits, '_', '.' and '-'; `opal describe` lists savepoints",
    )
    actions = parser.add_mutually_exclusive_group()
    actions.add_argument(
        "--version",
        type=whole_number,
        metavar="N",
        help="the version to name (default: the newest)",
    )
    actions.add_argument("--release", action="store_true", help="release the savepoint")


def savepoint(args: argparse.Namespace) -> None:
    table = _table(args)
    if args.release:
        show_result(args, table.release(args.name), "released")
    else:
        show_result(args, table.savepoint(args.name, args.version), "kept")


def _add_finish(verbs: Verbs) -> None:
    example = "opal finish-snapshot lake/users 2022-07-15"
    summary = "finish the open business snapshot: name its version, and open the next one"
    verb = Verb(
        name="finish-snapshot",
        group=KEEP,
        summary=summary,
        example=example,
        run=finish,
        operands="NAME ",
    )
    add_command(verbs, verb).add_argument(
        "name", metavar="NAME", help="the open business snapshot, which `opal describe` shows"
    )


def finish(args: argparse.Namespace) -> None:
    show_result(args, _table(args).finish_business_snapshot(args.name), "finished")


def _add_discard(verbs: Verbs) -> None:
    example = "opal discard lake/users --token 2026-11-24T06:00"
    summary = "withdraw ingested rows that no metagen has made visible yet"
    parser = add_command(
        verbs, Verb(name="discard", group=KEEP, summary=summary, example=example, run=discard)
    )
    selections = parser.add_mutually_exclusive_group(required=True)
    add_flags(selections, Discard)
    add_job_token(parser, "job_token", "discards")


def discard(args: argparse.Namespace) -> None:
    job = operation_of(args, Discard)
    show_result(args, job.run(_table(args)), "discarded")


def _add_restore(verbs: Verbs) -> None:
    example = "opal restore lake/users --version 7 --dry-run"
    summary = "show again what an older version showed, as a new version"
    parser = add_command(
        verbs, Verb(name="restore", group=KEEP, summary=summary, example=example, run=restore)
    )
    selections = ("version", "timestamp", "savepoint")
    add_flags(parser.add_mutually_exclusive_group(required=True), Restore, *selections)
    add_flags(parser, Restore, but=selections)
    add_token(parser)


def restore(args: argparse.Namespace) -> None:
    job = operation_of(args, Restore)
    done = "would change" if job.dry_run else "changed"
    show_result(args, job.run(_table(args)), done)


def _add_retain(verbs: Verbs) -> None:
    example = "opal retain lake/users --window 30d --dry-run"
    summary = "let old versions expire, and delete files that nothing needs any more"
    parser = add_command(
        verbs, Verb(name="retain", group=KEEP, summary=summary, example=example, run=retain)
    )
    add_flags(parser, Retain)
    add_token(parser)


def retain(args: argparse.Namespace) -> None:
    job, table = operation_of(args, Retain), _table(args)
    step = Step(name="finding needed files")

    def at_file(done: int, total: int) -> None:
        nonlocal step
        step = Step(name="deleting", done=done, total=total, noun="file")

    with ProgressLine("retain", lambda: step):
        result = job.run_with(table, at_file)
    done = "would delete" if job.dry_run else "deleted"
    show_result(args, result, done, partial(_garbage, result))


def _add_erase(verbs: Verbs) -> None:
    example = "opal erase lake/users --where 'id = 7' --dry-run"
    summary = "remove all rows of some keys from every file; older versions become unreadable"
    parser = add_command(
        verbs, Verb(name="erase", group=KEEP, summary=summary, example=example, run=erase)
    )
    add_flags(parser, Erase)
    add_token(parser)


def erase(args: argparse.Namespace) -> None:
    job = operation_of(args, Erase)
    done = "would erase" if job.dry_run else "erased"
    show_result(args, job.run(_table(args)), done)


def _add_repair_clock(verbs: Verbs) -> None:
    example = "opal repair-clock lake/users --dry-run"
    summary = "correct the commit times of versions, after a writer's clock was ahead"
    parser = add_command(
        verbs, Verb(name="repair-clock", group=KEEP, summary=summary, example=example, run=repair)
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="change nothing; report the corrected times"
    )


def repair(args: argparse.Namespace) -> None:
    done = "would correct" if args.dry_run else "corrected"
    show_result(args, _table(args).repair_clock(dry_run=args.dry_run), done)


def _garbage(result: JobResult, style: Style) -> Iterator[str]:
    """Yield the files that a dry run would delete, as a table."""
    if not result.examples:
        return
    columns = [
        Column(key="path", title="file", shrinks=True, tail=True),
        Column(key="size", title="size", show=size_text, right=True),
        Column(key="why", title="why", shrinks=True),
    ]
    yield from text_table(columns, result.examples, style, output_width(sys.stdout))


def _list_properties(args: argparse.Namespace) -> None:
    from opal_lake.definition.properties import PROPERTIES

    set_here = _table(args).snapshot_at().spec.properties
    values: dict[str, int | str] = {}
    for name, known in PROPERTIES.items():
        values[name] = set_here.get(name, known.kind.default)
    if args.json:
        print(json.dumps(values, indent=2))
        return
    style = Style.of(sys.stdout)
    lines = []
    for name, value in values.items():
        shown = "-" if value == "" else value
        summary = style.faint(PROPERTIES[name].summary)
        lines.append((name, f"{shown}   {summary}"))
    _print(facts(lines, style))


def _table(args: argparse.Namespace) -> "Table":
    from opal_lake.table import Table

    return Table.open(args.table, store_options(args))


def show_result(
    args: argparse.Namespace,
    result: JobResult,
    done: str,
    more: Callable[[Style], Iterable[str]] | None = None,
) -> None:
    """Print the result of an operation, and its notes.

    `done` is the verb for the counts, such as `deleted`. `more` yields lines to print after them.
    """
    if args.json:
        print(json.dumps(result.to_dict(), indent=2, ensure_ascii=False))
        return
    style = Style.of(sys.stdout)
    _print(_page(result, done, style))
    if more is not None:
        _print(more(style))


def _page(result: JobResult, done: str, style: Style) -> Iterator[str]:
    """Yield a line with the outcome, then a line for each note."""
    counts = counts_text(result.counts)
    target = escaped(result.table)
    if result.version is not None:
        target = f"version {result.version:,} of {target}"
    if result.repeated:
        yield f"{style.good('done before')}: {target}; nothing was changed now"
    elif result.version is None and not counts:
        yield f"{style.good('nothing to do')} in {target}"
    else:
        outcome = style.good(f"{done} {counts}".strip())
        yield f"{outcome}, {target}{took_text(result, style)}"
    for note in result.notes:
        yield f"{style.warn('note')}  {escaped(note)}"


def _print(lines: Iterable[str]) -> None:
    for line in lines:
        print(line)
