"""Flags of operations: each argument that has a help text is a flag."""

import argparse
from collections.abc import Collection, Mapping, Sequence
from dataclasses import Field
from typing import Any, TypeVar

from opal_lake.arguments.declared import (
    Declared,
    default_of,
    help_of,
    is_required,
    kind_of,
    types_of,
)
from opal_lake.cli.command import pairs, whole_number

DeclaredT = TypeVar("DeclaredT", bound=Declared)


def add_flags(
    parser: Any, declared: type[Declared], *names: str, but: Collection[str] = ()
) -> None:
    """Add the flags of a declaration to a parser.

    Without `names` these are all arguments with a help text, except those of `but`.
    """
    for name, member in declared.fields().items():
        if names:
            is_wanted = name in names
        else:
            is_wanted = name not in but and help_of(member.type) is not None
        if is_wanted:
            parser.add_argument(flag_of(member), dest=name, **_options(member))


def add_token(parser: argparse.ArgumentParser, does: str = "runs") -> None:
    """Add `--token`, which makes a repeat of the command harmless.

    `does` says in the help what the command does only once.
    """
    parser.add_argument("--token", metavar="TEXT", help=f"the same token twice {does} once")


def add_job_token(parser: argparse.ArgumentParser, dest: str, does: str = "runs") -> None:
    """Add `--job-token`, for verbs whose `--token` names an ingest."""
    parser.add_argument(
        "--job-token", dest=dest, metavar="TEXT", help=f"the same job token twice {does} once"
    )


def flag_of(member: "Field[Any]") -> str:
    """Return the flag of an argument."""
    help_text = help_of(member.type)
    name = member.name
    if help_text is not None and help_text.flag:
        name = help_text.flag
    return f"--{name.replace('_', '-')}"


def operation_of(args: argparse.Namespace, declared: type[DeclaredT], /, **more: Any) -> DeclaredT:
    """Return the operation that the flags describe; `more` are further arguments."""
    given = declared.filled_in(declared.among(vars(args)))
    for name, member in declared.fields().items():
        value = given.get(name)
        if isinstance(value, list) and _is_mapping(member):
            given[name] = pairs(value, flag_of(member))
    return declared.of({**given, **more})


def flag_words(declared: type[Declared], arguments: Mapping[str, Any]) -> list[str]:
    """Return the words of a command line for arguments that differ from the default."""
    changed = declared.changed(arguments)
    words: list[str] = []
    for name, member in declared.fields().items():
        if name in changed:
            words += _words_of(member, arguments[name])
    return words


def _words_of(member: "Field[Any]", value: Any) -> list[str]:
    """Return the words of a command line for the value of one argument."""
    flag = flag_of(member)
    if value is True:
        return [flag]
    if value is None or value is False:
        return []
    if isinstance(value, Mapping):
        return [f"{flag}={name}={text}" for name, text in value.items()]
    if isinstance(value, list | tuple):
        if _is_repeated(member):
            return [f"{flag}={text}" for text in value]
        joined = ",".join(map(str, value))
        return [f"{flag}={joined}"]
    return [f"{flag}={value}"]


def _is_mapping(member: "Field[Any]") -> bool:
    """Return whether an argument maps names to texts, given as --flag NAME=VALUE."""
    return Mapping[str, str] in types_of(member.type)


def _is_repeated(member: "Field[Any]") -> bool:
    return Sequence[str] in types_of(member.type)


def _options(member: "Field[Any]") -> dict[str, Any]:
    """Return the keyword arguments of `add_argument` for the flag of an argument."""
    help_text, kind, default = help_of(member.type), kind_of(member.type), default_of(member)
    assert help_text is not None, f"{member.name} has no help text and so no flag"
    text = help_text.text.replace("%", "%%")  # argparse formats it
    if default is False:
        return {"action": "store_true", "help": text}
    options: dict[str, Any] = {"help": text, "required": is_required(member), "default": default}
    kind_name = "TEXT" if kind is None else kind.metavar
    metavar = help_text.metavar or kind_name
    if _is_mapping(member):
        return {**options, "action": "append", "default": [], "metavar": metavar}
    if _is_repeated(member):
        return {**options, "action": "append", "metavar": metavar}
    if kind is not None and kind.choices:
        options["choices"] = kind.choices
    elif types_of(member.type) <= {int, type(None)}:
        options["type"] = whole_number
        options["metavar"] = "N" if kind is None else kind.metavar
    else:
        options["metavar"] = metavar
    if default is not None:
        options["help"] = f"{text} (default: %(default)s)"
    return options
