"""Flags of the command line, as they follow from a declaration."""

import argparse
from typing import Annotated, ClassVar

import pytest

from opal_lake.arguments.declared import declaration
from opal_lake.arguments.values import Columns, Count, Help, Span, one_of
from opal_lake.cli.command import OpalParser, with_flags
from opal_lake.cli.flags import add_flags, add_token, operation_of
from opal_lake.errors import InvalidInputError
from opal_lake.operations.verb import Operation


@declaration
class Paint(Operation):
    """Has an argument of each kind."""

    name: ClassVar[str] = "paint"

    wall: Annotated[str, Help("which one", "WALL")]
    colours: Annotated[Columns | None, Help("no flag repeats this one")] = None
    coats: Annotated[Count, Help("how many, at least 50% of them white")] = 2
    brush: Annotated[str, one_of("wide", "thin"), Help("which one")] = "wide"
    dry_for: Annotated[Span | None, Help("between two coats")] = None
    twice: Annotated[bool, Help("do it again")] = False
    quietly: bool = False


def parsed(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(exit_on_error=False)
    add_flags(parser, Paint, but=("colours",))
    add_token(parser, "paints")
    return parser.parse_args(words)


def test_flags_become_arguments_and_others_have_their_default() -> None:
    args = parsed("--wall", "north", "--coats", "3", "--dry-for", "1h30m", "--twice")
    assert operation_of(args, Paint) == Paint(wall="north", coats=3, dry_for="1h30m", twice=True)
    assert operation_of(parsed("--wall", "east"), Paint) == Paint(wall="east")
    assert operation_of(args, Paint, colours=["red"], coats=1).to_arguments() == {
        "wall": "north", "colours": ["red"], "coats": 1, "dry_for": "1h30m", "twice": True,
    }  # fmt: skip


def test_help_names_values_and_defaults_and_arguments_without_help_have_no_flag(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit):
        parsed("--help")
    shown = " ".join(capsys.readouterr().out.split())
    for line in (
        "--wall WALL which one",
        "--coats N how many, at least 50% of them white (default: 2)",
        "--brush {wide,thin}",
    ):
        assert line in shown
    assert "--dry-for SPAN between two coats" in shown
    assert "the same token twice paints once" in shown
    assert "quietly" not in shown
    assert "colours" not in shown


def test_argparse_checks_presence_and_choices_and_the_declaration_checks_values() -> None:
    with pytest.raises((SystemExit, argparse.ArgumentError)):
        parsed()
    with pytest.raises(argparse.ArgumentError, match="invalid choice"):
        parsed("--wall", "north", "--brush", "round")
    with pytest.raises(InvalidInputError, match="dry_for='a while' is not a duration"):
        operation_of(parsed("--wall", "north", "--dry-for", "a while"), Paint)


def test_arguments_may_be_called_as_the_parameters_of_the_function() -> None:
    with pytest.raises(InvalidInputError, match="paint has no argument args, declared"):
        operation_of(parsed("--wall", "north"), Paint, args=1, declared=2)


@pytest.mark.parametrize(
    "message,shown",
    [
        ("look_back='90x' is not a span", "--look-back='90x' is not a span"),
        ("limit must be at least 1", "--limit must be at least 1"),
        ("timestamp: 'x' is not a moment", "--timestamp: 'x' is not a moment"),
        ("whole=True excludes look_back", "--whole excludes --look-back"),
        ("the limit is reached", "the limit is reached"),
        ("look_back='' (--look-back) is empty", "look_back='' (--look-back) is empty"),
        ("look_back='9d' (--look-back 9d)", "look_back='9d' (--look-back 9d)"),
        ("by the property look_back", "by the property look_back"),
        ("where 'limit=3' has a fault", "where 'limit=3' has a fault"),
        ("the table's 'limit=3'", "the table's 'limit=3'"),
        ("read(limit=3) and other=4", "read(limit=3) and other=4"),
        ("a fault:\n    limit=3\n    ^", "a fault:\n    limit=3\n    ^"),
    ],
)
def test_errors_name_flags_instead_of_arguments(message: str, shown: str) -> None:
    names = ("look_back", "limit", "timestamp", "whole", "where")
    flags = {name: "--" + name.replace("_", "-") for name in names}
    assert with_flags(message, flags) == shown


def test_errors_name_flags_instead_of_words_that_the_error_calls_arguments() -> None:
    error = InvalidInputError("limit excludes where", arguments=("limit",))
    assert with_flags(str(error), {"limit": "--limit"}, error.arguments) == "--limit excludes where"


def test_advice_about_an_argument_is_not_turned_into_a_flag_that_does_the_opposite() -> None:
    parser = OpalParser(prog="opal ingest")
    parser.add_argument("--no-header", dest="header", action="store_const", const=False)
    parser.add_argument("--whole", action="store_true")
    parser.add_argument("--limit", type=int)
    assert parser.value_flags() == {"whole": "--whole", "limit": "--limit"}
