"""`opal alter`: changes of a definition, one flag each, in the order in which they are given."""

import argparse
import re
from collections.abc import Sequence
from typing import Any

from opal_lake.errors import InvalidInputError

_PATH = r"(?:`(?:[^`]|``)+`|[^`\s=])+"
_PLACE = rf"(?:\s+(?:(?P<first>first)|after\s+(?P<after>{_PATH})))"
# A literal of SQL, such as 5, 'a text' or DATE '2026-01-31'
_LITERAL = r"(?:[A-Za-z_]+\s*)?'(?:[^']|'')*'|[^'\s]+"
# For each flag: the form of its text, the help and an example
_FLAGS: dict[str, tuple[re.Pattern[str], str, str]] = {
    "add": (
        re.compile(
            rf"(?P<add>{_PATH})\s+(?P<type>.+?)(?:\s+default\s+(?P<default>{_LITERAL}))?{_PLACE}?",
            re.IGNORECASE | re.DOTALL,
        ),
        "add a column, maybe with DEFAULT and a literal, or a member of a struct",
        "discount decimal(10,2) after price",
    ),
    "rename": (
        re.compile(rf"(?P<rename>{_PATH})\s*=\s*(?P<to>{_PATH})"),
        "give a column another name",
        "a.b=c",
    ),
    "drop": (re.compile(rf"(?P<drop>{_PATH})"), "drop a column", "note"),
    "move": (
        re.compile(rf"(?P<move>{_PATH}){_PLACE}", re.IGNORECASE),
        "move a column to the front or behind another one",
        "price after id",
    ),
    "widen": (
        re.compile(rf"(?P<widen>{_PATH})\s+(?P<type>.+)", re.DOTALL),
        "give a column a wider type",
        "n bigint",
    ),
    "set_default": (
        re.compile(rf"(?P<set_default>{_PATH})\s*=\s*(?P<value>.+)", re.DOTALL),
        "give a column a value in new rows that lack it",
        "discount=0",
    ),
    "drop_default": (
        re.compile(rf"(?P<drop_default>{_PATH})"),
        "leave a column null in new rows that lack it",
        "discount",
    ),
    "set_not_null": (
        re.compile(rf"(?P<set_not_null>{_PATH})"),
        "refuse new rows with a null in a column",
        "price",
    ),
    "drop_not_null": (
        re.compile(rf"(?P<drop_not_null>{_PATH})"),
        "accept new rows with a null in a column",
        "price",
    ),
    "add_constraint": (
        re.compile(r"(?P<add_constraint>[^\s=]+)\s*=\s*(?P<check>.+)", re.DOTALL),
        "refuse new rows for which a condition is false",
        "positive=price > 0",
    ),
    "drop_constraint": (
        re.compile(r"(?P<drop_constraint>\S+)"),
        "drop a constraint by its name",
        "positive",
    ),
}


def add_changes(parser: argparse.ArgumentParser) -> None:
    """Add the flags of changes, which may be repeated."""
    for verb, (_, help_text, form) in _FLAGS.items():
        parser.add_argument(
            _flag(verb),
            dest="changes",
            action=_Append,
            metavar="CHANGE",
            help=f"{help_text}: '{form}'",
        )


def _flag(verb: str) -> str:
    return f"--{verb.replace('_', '-')}"


class _Append(argparse.Action):
    """An action that collects the changes of all flags in one list, in their order."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,
    ) -> None:
        changes = getattr(namespace, self.dest) or []
        verb = str(option_string).removeprefix("--").replace("-", "_")
        setattr(namespace, self.dest, [*changes, (verb, str(values))])


def alter_arguments(args: argparse.Namespace) -> dict[str, Any]:
    """Return the arguments of `Alter`: the changes of all flags, or a schema.

    With a schema, the flags of renames and drops say what a schema cannot say.
    """
    # Imported only here: it loads Arrow, for which the help should not wait
    from opal_lake.definition.changes.paths import path_of, path_text

    given = args.changes or []
    changes = [_change_of(verb, text) for verb, text in given]
    if args.schema is None:
        if not changes:
            flags = ", ".join(map(_flag, _FLAGS))
            raise InvalidInputError(
                f"opal alter needs a change: one of {flags}; repeat for more. Or give the columns "
                "that the table should have with --schema"
            )
        return {"changes": changes}
    renamed: dict[str, str] = {}
    dropped: list[str] = []
    for (verb, text), change in zip(given, changes, strict=True):
        if verb == "rename":
            *parents, former = path_of(change["rename"])
            renamed[path_text([*parents, *path_of(change["to"])])] = path_text([former])
        elif verb == "drop":
            dropped.append(change["drop"])
        else:
            raise InvalidInputError(
                f"opal alter: {_flag(verb)} {text!r} stands next to --schema; leave out one of "
                "them, or alter twice. Only --rename and --drop go with --schema"
            )
    return {"schema": args.schema, "renamed": renamed, "dropped": dropped}


def _change_of(verb: str, text: str) -> dict[str, Any]:
    """Return the change that the text of a flag means, as a JSON object."""
    pattern, _, form = _FLAGS[verb]
    match = pattern.fullmatch(text.strip())
    if match is None:
        raise InvalidInputError(
            f"opal alter: {_flag(verb)} {text!r} is not valid; write {_flag(verb)} '{form}'"
        )
    change: dict[str, Any] = {}
    for name, value in match.groupdict().items():
        if value is not None:
            change[name] = True if name == "first" else value
    return change
