"""What all subcommands share: the table, where it lies, `--json`, and help with an example. Plugins use `add_command`."""

import argparse
import csv
import difflib
import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NoReturn

from opal_lake.errors import InvalidInputError
from opal_lake.exit_codes import INPUT, MEANINGS

WORK, BRING, KEEP, LOOK = (
    "Work on a table",
    "Bring in rows and files (on Spark)",
    "Keep a table",
    "Look at a table",
)
STORE_OPTIONS = ("endpoint_url", "region_name", "path_style", "hard_links")
STORE_OPTIONS_TEXT = (
    "endpoint_url, region_name, path_style (S3); hard_links=false (a folder without them)"
)
EVERYWHERE = "everywhere"
_BROUGHT_BY = {"dag": "airflow-provider-opal"}  # commands of other packages
TABLE_FORMS = "a local path, file:///path or s3://bucket/path"

# Checked by duck: argparse's own class of `add_subparsers` is private
Verbs = Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Verb:
    """A subcommand: what its help says, and what runs."""

    name: str
    group: str
    summary: str
    example: str
    run: Callable[[argparse.Namespace], int | None]
    operands: str = ""
    needs_table: bool = True


class OpalParser(argparse.ArgumentParser):
    """argparse with one-line errors."""

    def __init__(self, **kwargs: Any) -> None:
        kwargs.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        super().__init__(allow_abbrev=False, **kwargs)

    def verbs(self) -> Mapping[str, argparse.ArgumentParser]:
        """The subcommands by name."""
        actions = (action for action in self._actions if isinstance(action.choices, Mapping))
        return next((action.choices for action in actions), {})  # type: ignore[misc]  # argparse types choices as any iterable

    def format_help(self) -> str:
        self._action_groups.sort(
            key=lambda group: group.title == EVERYWHERE
        )  # last, below what is the verb's own
        return super().format_help()

    def parse(self, words: Sequence[str]) -> argparse.Namespace:
        """Like `parse_args`, and takes PATH... also after options, which argparse does not."""
        args, rest = self.parse_known_args(words)
        if unknown := [word for word in rest if word.startswith("-") or not hasattr(args, "paths")]:
            parser = self._parser_of(words)
            parser.error(f"{unknown[0]!r} is not known to {parser.prog}")
        if rest:
            args.paths += rest
        return args

    def given(self, args: argparse.Namespace) -> dict[str, str]:
        """The options that are not as by default: how each is written, by name."""
        options = [action for action in self._actions if action.option_strings]
        return {
            action.dest: action.option_strings[-1]
            for action in options
            if getattr(args, action.dest, action.default) not in (None, action.default)
        }

    def given_words(
        self,
        args: argparse.Namespace,
        without: Collection[str] = (),
        only: Collection[str] | None = None,
    ) -> list[str]:
        """The options that are not as by default, as another process of the same verb takes them."""
        words: list[str] = []
        for name, flag in self.given(args).items():
            if name not in without and (only is None or name in only):
                value = getattr(args, name)
                values = value if isinstance(value, list) else [value]
                words += [flag] if value is True else [f"{flag}={one}" for one in values]
        return words

    def error(self, message: str) -> NoReturn:
        program = self.prog.split()[0]
        self.exit(INPUT, f"{program}: {message}; see {self.prog} --help\n")

    def check_command(self, argv: Sequence[str]) -> None:
        """Say which command was probably meant, also of a verb that has verbs of its own."""
        verbs = self.verbs()
        words = [argument for argument in argv if not argument.startswith("-")]
        if not verbs or not words:
            return
        first = words[0]
        if first not in verbs:
            verb = self.prog.partition(" ")[2]
            known = f"; {self.prog} has {', '.join(verbs)}" if verb else ""
            command = f"{verb} {first}".strip()
            brings = f"; {package} brings it" if (package := _BROUGHT_BY.get(command)) else ""
            self.error(f"there is no command {command!r}{brings or meant(first, verbs) or known}")
        below = verbs[first]
        if isinstance(below, OpalParser):
            below.check_command(words[1:])

    def _parser_of(self, words: Sequence[str]) -> argparse.ArgumentParser:
        """Return the parser of the verb that the first words name."""
        parser: argparse.ArgumentParser = self
        for word in words:
            if not isinstance(parser, OpalParser) or word not in parser.verbs():
                break
            parser = parser.verbs()[word]
        return parser


def meant(word: str, known: Iterable[str]) -> str:
    """What a misspelt word is probably meant to be, for the end of a message; empty if it is like none."""
    near = difflib.get_close_matches(word, known, n=1)
    return f", did you mean {near[0]!r}?" if near else ""


def begin_verb(
    verbs: Verbs, verb: Verb, meanings: Mapping[int, str] = MEANINGS
) -> argparse.ArgumentParser:
    """Register a verb of any program with its help; the caller adds its options."""
    parser: argparse.ArgumentParser = verbs.add_parser(
        verb.name,
        help=verb.summary,
        description=f"{verb.summary[:1].upper()}{verb.summary[1:]}.",
        epilog=f"example:\n  {verb.example}\n\n{exit_code_lines(meanings)}",
    )
    parser.usage = f"{parser.prog} {verb.operands}[options]".replace("%", "%%")
    parser.set_defaults(run=verb.run, group=verb.group, example=verb.example)
    return parser


def add_everywhere(parser: argparse.ArgumentParser, program: str) -> Any:
    """Add the options of every verb; return their group, for others of the program."""
    shared = parser.add_argument_group(EVERYWHERE)
    shared.add_argument(
        "--json", action="store_true", help="for programs: nothing but JSON on standard output"
    )
    shared.add_argument("--traceback", action="store_true", help=traceback_help(program))
    return shared


def add_command(verbs: Verbs, verb: Verb) -> argparse.ArgumentParser:
    """Register a subcommand on a table; the caller adds what is its own."""
    table = "TABLE" if verb.needs_table else "[TABLE]"
    parser = begin_verb(verbs, replace(verb, operands=f"{table} {verb.operands}"))
    parser.add_argument(
        "table", metavar="TABLE", nargs=None if verb.needs_table else "?", help=TABLE_FORMS
    )
    add_everywhere(parser, "opal").add_argument(
        "--option",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help=f"how to reach the store: {STORE_OPTIONS_TEXT}; "
        "keys come from the environment (AWS_ACCESS_KEY_ID, ...)",
    )
    return parser


def exit_code_lines(meanings: Mapping[int, str] = MEANINGS) -> str:
    """Return the exit codes, for help."""
    return "exit codes:\n" + "\n".join(
        f"  {code:<3} {meaning}" for code, meaning in meanings.items()
    )


def pairs(texts: Sequence[str], flag: str) -> dict[str, str]:
    """Repeated NAME=VALUE arguments. Values are never shown: some people put secrets where none belong."""
    by_name: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise InvalidInputError(f"{flag} {name!r} has no value; write {flag} NAME=VALUE")
        by_name[name] = value
    return by_name


def store_options(args: argparse.Namespace) -> dict[str, str]:
    """The `--option`s."""
    options = pairs(args.option, "--option")
    if unknown := sorted(set(options) - set(STORE_OPTIONS)):
        raise InvalidInputError(
            f"--option {', '.join(unknown)} is not known; use {', '.join(STORE_OPTIONS)}, "
            "and give keys by the environment (AWS_ACCESS_KEY_ID, ...)"
        )
    return options


def add_columns(parser: argparse.ArgumentParser) -> None:
    """Which columns to show."""
    parser.add_argument(
        "--columns",
        metavar="A,B",
        help="which columns; names with commas in `backticks` (default: all)",
    )


def column_names(text: str | None) -> list[str] | None:
    """Those of `--columns`; none of an empty text, which a reader refuses."""
    if text is None:
        return None
    return next(csv.reader([text], quotechar="`", skipinitialspace=True))


def whole_number(text: str) -> int:
    """For arguments that count something."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number from 0")
    return int(text)


def traceback_variable(program: str) -> str:
    """The environment variable that asks for tracebacks."""
    return f"{program.upper()}_TRACEBACK"


def traceback_help(program: str) -> str:
    return f"show where an error comes from; also by {traceback_variable(program)}=1"


def is_set(name: str) -> bool:
    """Whether an environment variable says yes."""
    return os.environ.get(name, "") not in ("", "0")
