"""The command `lakechime`: its verbs register events, show them, serve them, and keep the database."""

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module

from lakechime.cli.command import LAKECHIME, overview
from opal_lake.cli.command import OpalParser
from opal_lake.cli.overview import version
from opal_lake.cli.render import Style
from opal_lake.job.exit_codes import OK

# Each has a function `commands(verbs)` that registers its verbs; what they need is imported when one runs.
MODULES = (
    "lakechime.cli.register",
    "lakechime.cli.sync",
    "lakechime.cli.events",
    "lakechime.cli.serve",
    "lakechime.cli.token",
    "lakechime.cli.keep",
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code. Wrong usage raises SystemExit, as argparse does."""
    words = sys.argv[1:] if argv is None else argv
    parser = build_parser()
    parser.check_command(words)
    args = parser.parse(words)
    if args.command is None:
        print(overview(parser.verbs(), Style.of(sys.stdout)))
        return OK
    return LAKECHIME.run(args)


def build_parser() -> OpalParser:
    """The parser with all verbs."""
    parser = OpalParser(prog="lakechime", add_help=False)
    parser.add_argument("-h", "--help", action=_Overview, nargs=0)
    parser.add_argument("--version", action="version", version=f"lakechime {version()}")
    verbs = parser.add_subparsers(dest="command", metavar="COMMAND", parser_class=OpalParser)
    for module in MODULES:
        import_module(module).commands(verbs)
    return parser


class _Overview(argparse.Action):
    """All verbs, by what they are for; argparse has no groups of subcommands."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        assert isinstance(parser, OpalParser)
        print(overview(parser.verbs(), Style.of(sys.stdout)))
        parser.exit()
