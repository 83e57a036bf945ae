"""The verbs that keep a table: its properties, its savepoints, and what may go. They write metadata only and need no Spark."""

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from opal_lake.cli.command import KEEP, Verb, Verbs, add_command, pairs, store_options
from opal_lake.cli.pages import counts_text
from opal_lake.cli.render import Style, duration_text, escaped
from opal_lake.errors import InvalidInputError
from opal_lake.job import JobResult

if TYPE_CHECKING:
    from opal_lake.table import Table


def commands(verbs: Verbs) -> None:
    """Register the verbs."""
    _add_set(verbs)


def _add_set(verbs: Verbs) -> None:
    example = "opal set lake/users window=30d zorder=country,at"
    summary = "change properties of a table, or list them all"
    parser = add_command(verbs, Verb(name="set", group=KEEP, summary=summary, example=example, run=change, operands="NAME=VALUE... "))
    parser.add_argument("paths", nargs="*", metavar="NAME=VALUE", help="an empty value: none, where a text is wanted")
    parser.add_argument("--default", action="append", default=[], metavar="NAME", help="give this one its default again; repeat for more")
    parser.add_argument("--token", metavar="TEXT", help="the same token twice changes once")


def change(args: argparse.Namespace) -> None:
    from opal_lake.properties import given_properties

    if not args.paths and not args.default:
        _list_properties(args)
        return
    if unset := [text for text in args.paths if "=" not in text]:
        raise InvalidInputError(f"opal set: {unset[0]!r} has no value; write {unset[0]}=VALUE")
    changes = {**given_properties(pairs(args.paths, "opal set")), **dict.fromkeys(args.default)}
    _show(args, _table(args).set_properties(changes, token=args.token), "changed")


def _list_properties(args: argparse.Namespace) -> None:
    from opal_lake.cli.render import facts
    from opal_lake.properties import PROPERTIES

    set_here = _table(args).snapshot_at().spec.properties
    found = {name: set_here.get(name, PROPERTIES[name].kind.default) for name in PROPERTIES}
    if args.json:
        print(json.dumps(found, indent=2))
        return
    style = Style.of(sys.stdout)
    said = [(name, f"{value if value != '' else '-'}   {style.faint(PROPERTIES[name].summary)}") for name, value in found.items()]
    _print(facts(said, style))


def _table(args: argparse.Namespace) -> "Table":
    from opal_lake.table import Table

    return Table.open(args.table, store_options(args))


def _show(args: argparse.Namespace, result: JobResult, done: str, more: Callable[[Style], Iterable[str]] | None = None) -> None:
    if args.json:
        print(json.dumps(result.to_dict(), indent=2, ensure_ascii=False))
        return
    style = Style.of(sys.stdout)
    _print(_page(result, done, style))
    _print(more(style) if more else ())


def _page(result: JobResult, done: str, style: Style) -> Iterator[str]:
    """One line that says what happened, then what people should know."""
    counts = counts_text(result.counts)
    at = escaped(result.table) if result.version is None else f"version {result.version:,} of {escaped(result.table)}"
    if result.repeated:
        yield f"{style.good('done before')}: {at}; nothing was changed now"
    elif result.version is None and not counts:
        yield f"{style.good('nothing to do')} in {at}"
    else:
        total_ms = result.timings_ms.get("total")
        took = "" if total_ms is None else style.faint(f" ({duration_text(total_ms / 1000)})")
        yield f"{style.good(f'{done} {counts}'.strip())}, {at}{took}"
    for note in result.notes:
        yield f"{style.warn('note')}  {escaped(note)}"


def _print(lines: Iterable[str]) -> None:
    for line in lines:
        print(line)
