"""The command `lakechime`, which registers events, shows, serves and maintains them."""

from importlib import import_module

from lakechime.cli.command import exit_code, overview
from opal_lake.cli.command import Verbs
from opal_lake.cli.program import Program

# Each module has a function `commands(verbs)` that registers its verbs. The dependencies of a verb
# are imported when it runs.
MODULES = (
    "lakechime.cli.register",
    "lakechime.cli.sync",
    "lakechime.cli.events",
    "lakechime.cli.serve",
    "lakechime.cli.token",
    "lakechime.cli.consumers",
    "lakechime.cli.keep",
)


def add_verbs(verbs: Verbs) -> None:
    """Register the verbs of all modules."""
    for module in MODULES:
        import_module(module).commands(verbs)


LAKECHIME = Program(
    name="lakechime",
    exit_code=exit_code,
    when_stopped="registered events stay, and the same command may be run again",
    add_verbs=add_verbs,
    overview=overview,
)
main, build_parser = LAKECHIME.main, LAKECHIME.build_parser
