"""The command `opal`. Its verbs are plugins: entry points of the group `opal.commands`, each a callable that registers subcommands."""

import argparse
import importlib.metadata
import sys
from collections.abc import Sequence

from opal_lake.cli.command import OpalParser
from opal_lake.cli.overview import overview, version
from opal_lake.cli.program import Program
from opal_lake.cli.render import Style
from opal_lake.job.exit_codes import OK, exit_code

PLUGINS = "opal.commands"
OPAL = Program(
    name="opal",
    exit_code=exit_code,
    when_stopped="what was not committed is not visible, and the same command may be run again",
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
    return OPAL.run(args)


def build_parser() -> OpalParser:
    """The parser with the verbs of all plugins."""
    parser = OpalParser(prog="opal", add_help=False)
    parser.add_argument("-h", "--help", action=_Overview, nargs=0)
    parser.add_argument("--version", action="version", version=f"opal {version()}")
    verbs = parser.add_subparsers(dest="command", metavar="COMMAND", parser_class=OpalParser)
    for plugin in sorted(importlib.metadata.entry_points(group=PLUGINS), key=lambda plugin: plugin.name):
        try:
            plugin.load()(verbs)
        except Exception as error:  # noqa: BLE001  # a broken plugin must not take the others with it
            print(f"opal: the commands of {plugin.value} cannot be loaded: {error!r}; reinstall their package", file=sys.stderr)
    return parser


class _Overview(argparse.Action):
    """All verbs, by what they are for; argparse has no groups of subcommands."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        assert isinstance(parser, OpalParser)
        print(overview(parser.verbs(), Style.of(sys.stdout)))
        parser.exit()
