"""Flags of operations: an argument whose declaration has a help text is a flag of its name."""

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
    """Those of a declaration, or of these arguments of it, to a parser or a group of one."""
    for name, member in declared.fields().items():
        if name in names or (not names and name not in but and help_of(member.type) is not None):
            parser.add_argument(flag_of(member), dest=name, **_options(member))


def add_token(parser: argparse.ArgumentParser, does: str = "runs") -> None:
    """What makes a repeat harmless."""
    parser.add_argument("--token", metavar="TEXT", help=f"the same token twice {does} once")


def add_job_token(parser: argparse.ArgumentParser, dest: str, does: str = "runs") -> None:
    """What makes a repeat harmless, of a command whose `--token` names an ingest."""
    parser.add_argument(
        "--job-token", dest=dest, metavar="TEXT", help=f"the same job token twice {does} once"
    )


def flag_of(member: "Field[Any]") -> str:
    """Return the flag of an argument."""
    help_text = help_of(member.type)
    name = (help_text and help_text.flag) or member.name
    return f"--{name.replace('_', '-')}"


def operation_of(args: argparse.Namespace, declared: type[DeclaredT], /, **more: Any) -> DeclaredT:
    """The operation that the flags describe, with what no flag says by its own name."""
    given = declared.filled_in(declared.among(vars(args)))
    for name, member in declared.fields().items():
        value = given.get(name)
        if isinstance(value, list) and _is_mapping(member):
            given[name] = pairs(value, flag_of(member))
    return declared.of({**given, **more})


def flag_words(declared: type[Declared], arguments: Mapping[str, Any]) -> list[str]:
    """Return the flags by which another process gets the arguments that differ from the default."""
    fields = declared.fields()
    words: list[str] = []
    for name in (name for name in fields if name in declared.changed(arguments)):
        value, flag = arguments[name], flag_of(fields[name])
        if value is True:
            words.append(flag)
        elif value is None or value is False:
            continue
        elif isinstance(value, Mapping):
            words += [f"{flag}={member}={text}" for member, text in value.items()]
        elif isinstance(value, list | tuple) and _is_repeated(fields[name]):
            words += [f"{flag}={member}" for member in value]
        elif isinstance(value, list | tuple):
            words.append(f"{flag}={','.join(map(str, value))}")
        else:
            words.append(f"{flag}={value}")
    return words


def _is_mapping(member: "Field[Any]") -> bool:
    """Whether the argument maps names to texts: its flag is repeated, each time NAME=VALUE."""
    return Mapping[str, str] in types_of(member.type)


def _is_repeated(member: "Field[Any]") -> bool:
    return Sequence[str] in types_of(member.type)


def _options(member: "Field[Any]") -> dict[str, Any]:
    """What argparse calls them."""
    help_text, kind, default = help_of(member.type), kind_of(member.type), default_of(member)
    assert help_text is not None, f"{member.name} is no flag without a help text"
    text = help_text.text.replace("%", "%%")
    if default is False:
        return {"action": "store_true", "help": text}
    options: dict[str, Any] = {"help": text, "required": is_required(member), "default": default}
    metavar = help_text.metavar or (kind.metavar if kind is not None else "TEXT")
    if _is_mapping(member):
        return {**options, "action": "append", "default": [], "metavar": metavar}
    if _is_repeated(member):
        return {**options, "action": "append", "metavar": metavar}
    if kind is not None and kind.choices:
        options["choices"] = kind.choices
    elif types_of(member.type) <= {int, type(None)}:
        options |= {"type": whole_number, "metavar": kind.metavar if kind is not None else "N"}
    else:
        options["metavar"] = metavar
    return options if default is None else {**options, "help": f"{text} (default: %(default)s)"}
