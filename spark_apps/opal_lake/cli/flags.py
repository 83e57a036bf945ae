"""Flags of operations: an argument whose declaration has a help text is a flag of its name."""

import argparse
from collections.abc import Collection, Sequence
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
from opal_lake.cli.command import whole_number

DeclaredT = TypeVar("DeclaredT", bound=Declared)


def add_flags(
    parser: Any, declared: type[Declared], *names: str, but: Collection[str] = ()
) -> None:
    """Those of a declaration, or of these arguments of it, to a parser or a group of one."""
    for name, member in declared.fields().items():
        if name in names or (not names and name not in but and help_of(member.type) is not None):
            parser.add_argument(f"--{name.replace('_', '-')}", **_options(member))


def add_token(parser: argparse.ArgumentParser, does: str = "runs") -> None:
    """What makes a repeat harmless."""
    parser.add_argument("--token", metavar="TEXT", help=f"the same token twice {does} once")


def add_job_token(parser: argparse.ArgumentParser, dest: str, does: str = "runs") -> None:
    """What makes a repeat harmless, of a command whose `--token` names an ingest."""
    parser.add_argument(
        "--job-token", dest=dest, metavar="TEXT", help=f"the same job token twice {does} once"
    )


def operation_of(args: argparse.Namespace, declared: type[DeclaredT], /, **more: Any) -> DeclaredT:
    """The operation that the flags describe, with what no flag says by its own name."""
    return declared.of({**declared.filled_in(declared.among(vars(args))), **more})


def _options(member: "Field[Any]") -> dict[str, Any]:
    """What argparse calls them."""
    help_text, kind, default = help_of(member.type), kind_of(member.type), default_of(member)
    assert help_text is not None, f"{member.name} is no flag without a help text"
    text = help_text.text.replace("%", "%%")
    if default is False:
        return {"action": "store_true", "help": text}
    options: dict[str, Any] = {"help": text, "required": is_required(member), "default": default}
    if default == []:
        return {**options, "action": "append", "metavar": "COLUMN"}
    if Sequence[str] in types_of(member.type):
        return {
            **options,
            "action": "append",
            "metavar": help_text.metavar or (kind.metavar if kind else "TEXT"),
        }
    if kind is not None and kind.choices:
        options["choices"] = kind.choices
    elif types_of(member.type) <= {int, type(None)}:
        options |= {"type": whole_number, "metavar": "N"}
    else:
        options["metavar"] = help_text.metavar or (kind.metavar if kind is not None else "TEXT")
    return options if default is None else {**options, "help": f"{text} (default: %(default)s)"}
