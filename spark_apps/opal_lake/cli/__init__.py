"""The command `opal`. Its verbs are plugins: entry points of the group `opal.commands`, each a callable that registers subcommands."""

import importlib.metadata
import sys

from opal_lake.cli.command import Verbs
from opal_lake.cli.help_page import overview
from opal_lake.cli.program import Program
from opal_lake.exit_codes import exit_code

PLUGINS = "opal.commands"


def add_verbs(verbs: Verbs) -> None:
    """Those of all plugins."""
    for plugin in sorted(
        importlib.metadata.entry_points(group=PLUGINS), key=lambda plugin: plugin.name
    ):
        try:
            plugin.load()(verbs)
        except Exception as error:  # noqa: BLE001  # a broken plugin must not take the others with it
            print(
                f"opal: the commands of {plugin.value} cannot be loaded: {error!r}; reinstall their package",
                file=sys.stderr,
            )


OPAL = Program(
    name="opal",
    exit_code=exit_code,
    when_stopped="what was not committed is not visible, and the same command may be run again",
    add_verbs=add_verbs,
    overview=overview,
)
main, build_parser = OPAL.main, OPAL.build_parser
