"""The command lines of a stream's processes, which get the flags of the supervisor."""

import argparse

from opal_lake.cli.command import OpalParser
from opal_lake.cli.flags import operation_of
from opal_stream.cli.commands import commands
from opal_stream.cli.run import options_of
from opal_stream.cli.supervised import _OF_METRICS, _OF_SUPERVISOR, child_words
from opal_stream.operations.verbs import Run


def value_for(action: argparse.Action) -> list[str]:
    """Return words that set a flag to another value than its default."""
    flag = action.option_strings[-1]
    if action.nargs == 0:
        return [flag]
    if action.choices:
        value = [*action.choices][-1]
    else:
        value = "7" if action.type else "-x=y"
    return [f"{flag}={value}"] * (2 if isinstance(action.default, list) else 1)


def test_a_flush_may_be_due_after_a_part_of_a_second() -> None:
    parser = OpalParser(prog="opal")
    commands(parser.add_subparsers(dest="command", parser_class=OpalParser))
    words = ["stream", "run", "lake/orders", "--topic", "t", "--flush-interval", "200ms"]
    options = options_of(operation_of(parser.parse(words), Run))
    assert options.limits.interval_s == 0.2


def test_a_process_gets_every_option_that_is_not_the_supervisor_s() -> None:
    parser = OpalParser(prog="opal")
    commands(parser.add_subparsers(dest="command", parser_class=OpalParser))
    stream = parser.verbs()["stream"]
    assert isinstance(stream, OpalParser)
    run = stream.verbs()["run"]
    options = [action for action in run._actions if action.option_strings and action.dest != "help"]
    given = parser.parse(
        [
            "stream",
            "run",
            "lake/orders",
            *(word for action in options for word in value_for(action)),
        ]
    )
    own = {*_OF_SUPERVISOR, *_OF_METRICS}
    assert own <= {action.dest for action in options}
    child = parser.parse(child_words(given)[3:])
    assert {name: value for name, value in vars(child).items() if name not in own} == {
        name: value for name, value in vars(given).items() if name not in own
    }
    assert {name: getattr(child, name) for name in own} == {
        action.dest: action.default for action in options if action.dest in own
    } | {
        "json": True,
        "watched": "60s",
    }
