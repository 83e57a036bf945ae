"""The command `opal`. Its verbs are plugins: entry points `opal.commands`.

Each entry point is a function that registers verbs.
"""

import importlib.metadata
import sys

from opal_lake.cli.command import Verbs
from opal_lake.cli.help_page import overview
from opal_lake.cli.program import Program
from opal_lake.exit_codes import exit_code

PLUGINS = "opal.commands"


def add_verbs(verbs: Verbs) -> None:
    """Register the verbs of all plugins."""
    plugins = importlib.metadata.entry_points(group=PLUGINS)
    for plugin in sorted(plugins, key=lambda plugin: plugin.name):
        try:
            plugin.load()(verbs)
        except Exception as error:  # noqa: BLE001  # the other plugins stay usable
            print(
                f"opal: the commands of {plugin.value} cannot be loaded: {error!r}; "
                "reinstall their package",
                file=sys.stderr,
            )


OPAL = Program(
    name="opal",
    exit_code=exit_code,
    when_stopped="uncommitted work is not visible; run the same command again",
    add_verbs=add_verbs,
    overview=overview,
)
main, build_parser = OPAL.main, OPAL.build_parser
