"""The common parts of subcommands: table, store, `--json`, help with an example.

Plugins use `add_command`.
"""

import argparse
import csv
import difflib
import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NoReturn

from opal_lake.errors import InvalidInputError
from opal_lake.exit_codes import INPUT, MEANINGS

# The groups of `opal --help`
WORK = "Work on a table"
BRING = "Bring in rows and files (on Spark)"
KEEP = "Keep a table"
LOOK = "Look at a table"
STORE_OPTIONS = ("endpoint_url", "region_name", "path_style", "hard_links")
STORE_OPTIONS_TEXT = (
    "endpoint_url, region_name, path_style (S3); hard_links=false (a folder without them)"
)
EVERYWHERE = "everywhere"
_BROUGHT_BY = {"dag": "airflow-provider-opal"}  # commands of other packages
TABLE_FORMS = "a local path, file:///path or s3://bucket/path"

# Not checked: argparse's own class of `add_subparsers` is private
Verbs = Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Verb:
    """A subcommand: the texts of its help, and the function that runs it."""

    name: str
    group: str
    summary: str
    example: str
    run: Callable[[argparse.Namespace], int | None]
    operands: str = ""
    needs_table: bool = True


class OpalParser(argparse.ArgumentParser):
    """A parser of argparse with one-line errors."""

    def __init__(self, **kwargs: Any) -> None:
        kwargs.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        super().__init__(allow_abbrev=False, **kwargs)

    def verbs(self) -> Mapping[str, argparse.ArgumentParser]:
        """Return the subcommands by name."""
        for action in self._actions:
            if isinstance(action.choices, Mapping):
                return action.choices
        return {}

    def format_help(self) -> str:
        # Options of every verb come last, below the verb's own
        self._action_groups.sort(key=lambda group: group.title == EVERYWHERE)
        return super().format_help()

    def parse(self, words: Sequence[str]) -> argparse.Namespace:
        """Parse the words; unlike `parse_args`, accept PATH... also after options."""
        args, rest = self.parse_known_args(words)
        takes_more = hasattr(args, "paths")
        for word in rest:
            if word.startswith("-") or not takes_more:
                parser = self._parser_of(words)
                parser.error(f"{word!r} is not known to {parser.prog}")
        if rest:
            args.paths += rest
        return args

    def given(self, args: argparse.Namespace) -> dict[str, str]:
        """Return the flags of the options that differ from the default, by name."""
        flags: dict[str, str] = {}
        for action in self._actions:
            value = getattr(args, action.dest, action.default)
            if action.option_strings and value not in (None, action.default):
                flags[action.dest] = action.option_strings[-1]
        return flags

    def given_words(
        self,
        args: argparse.Namespace,
        without: Collection[str] = (),
        only: Collection[str] | None = None,
    ) -> list[str]:
        """Return the options that differ from the default, for another process."""
        words: list[str] = []
        for name, flag in self.given(args).items():
            if name in without or (only is not None and name not in only):
                continue
            value = getattr(args, name)
            if value is True:
                words.append(flag)
            elif isinstance(value, list):
                words += [f"{flag}={member}" for member in value]
            else:
                words.append(f"{flag}={value}")
        return words

    def error(self, message: str) -> NoReturn:
        program = self.prog.split()[0]
        self.exit(INPUT, f"{program}: {message}; see {self.prog} --help\n")

    def check_command(self, argv: Sequence[str]) -> None:
        """Exit with the nearest known name for an unknown command, at any depth of verbs."""
        verbs = self.verbs()
        words = [argument for argument in argv if not argument.startswith("-")]
        if not verbs or not words:
            return
        first = words[0]
        if first not in verbs:
            self.error(self._unknown(first, verbs))
        below = verbs[first]
        if isinstance(below, OpalParser):
            below.check_command(words[1:])

    def _unknown(self, word: str, verbs: Iterable[str]) -> str:
        """Return the message for an unknown command."""
        verb = self.prog.partition(" ")[2]
        command = f"{verb} {word}".strip()
        if command in _BROUGHT_BY:
            return f"unknown command {command!r}; {_BROUGHT_BY[command]} brings it"
        remedy = meant(word, verbs)
        if not remedy and verb:
            remedy = f"; {self.prog} has {', '.join(verbs)}"
        return f"unknown command {command!r}{remedy}"

    def _parser_of(self, words: Sequence[str]) -> argparse.ArgumentParser:
        """Return the parser of the verb that the first words name."""
        parser: argparse.ArgumentParser = self
        for word in words:
            if not isinstance(parser, OpalParser) or word not in parser.verbs():
                break
            parser = parser.verbs()[word]
        return parser


def meant(word: str, known: Iterable[str]) -> str:
    """Return the known word that is like a misspelt one, for the end of a message.

    The text is empty if no known word is like it.
    """
    near = difflib.get_close_matches(word, known, n=1)
    return f", did you mean {near[0]!r}?" if near else ""


def begin_verb(
    verbs: Verbs, verb: Verb, meanings: Mapping[int, str] = MEANINGS
) -> argparse.ArgumentParser:
    """Register a verb of any program with its help; the caller adds its options."""
    parser: argparse.ArgumentParser = verbs.add_parser(
        verb.name,
        help=verb.summary,
        description=sentence(verb.summary),
        epilog=f"example:\n  {verb.example}\n\n{exit_code_lines(meanings)}",
    )
    parser.usage = f"{parser.prog} {verb.operands}[options]".replace("%", "%%")
    parser.set_defaults(run=verb.run, group=verb.group, example=verb.example)
    return parser


def sentence(text: str) -> str:
    """Return a text with a capital and a full stop."""
    return f"{text[:1].upper()}{text[1:]}."


def add_everywhere(parser: argparse.ArgumentParser, program: str) -> Any:
    """Add the options of every verb; return their group, for others of the program."""
    shared = parser.add_argument_group(EVERYWHERE)
    shared.add_argument(
        "--json", action="store_true", help="for programs: print only JSON to standard output"
    )
    shared.add_argument("--traceback", action="store_true", help=traceback_help(program))
    return shared


def add_command(verbs: Verbs, verb: Verb) -> argparse.ArgumentParser:
    """Register a subcommand on a table; the caller adds its own options."""
    operand, count = ("TABLE", None) if verb.needs_table else ("[TABLE]", "?")
    parser = begin_verb(verbs, replace(verb, operands=f"{operand} {verb.operands}"))
    parser.add_argument("table", metavar="TABLE", nargs=count, help=TABLE_FORMS)
    add_everywhere(parser, "opal").add_argument(
        "--option",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help=f"an option of the store: {STORE_OPTIONS_TEXT}; "
        "keys come from the environment (AWS_ACCESS_KEY_ID, ...)",
    )
    return parser


def exit_code_lines(meanings: Mapping[int, str] = MEANINGS) -> str:
    """Return the exit codes, for help."""
    lines = [f"  {code:<3} {meaning}" for code, meaning in meanings.items()]
    return "\n".join(["exit codes:", *lines])


def pairs(texts: Sequence[str], flag: str) -> dict[str, str]:
    """Return repeated NAME=VALUE arguments by name.

    InvalidInputError for a repeated name.

    Messages never show values: some people put secrets where none belong.
    """
    by_name: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise InvalidInputError(f"{flag} {name!r} has no value; write {flag} NAME=VALUE")
        if name in by_name:
            raise InvalidInputError(f"{flag} {name!r} has two values; give one")
        by_name[name] = value
    return by_name


def store_options(args: argparse.Namespace) -> dict[str, str]:
    """Return the options of the store, from `--option`."""
    options = pairs(args.option, "--option")
    unknown = sorted(set(options) - set(STORE_OPTIONS))
    if unknown:
        raise InvalidInputError(
            f"--option {', '.join(unknown)} is not known; use {', '.join(STORE_OPTIONS)}, "
            "and give keys by the environment (AWS_ACCESS_KEY_ID, ...)"
        )
    return options


def add_columns(parser: argparse.ArgumentParser) -> None:
    """Add `--columns`, which chooses the columns to show."""
    parser.add_argument(
        "--columns",
        metavar="A,B",
        help="only these columns; put names with commas in `backticks` (default: all)",
    )


def column_names(text: str | None) -> list[str] | None:
    """Return the columns of `--columns`; an empty list for an empty text.

    A reader refuses the empty list.
    """
    if text is None:
        return None
    return next(csv.reader([text], quotechar="`", skipinitialspace=True))


def whole_number(text: str) -> int:
    """Return the number of an argument that counts something."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"expected a whole number, got {text!r}")
    return int(text)


def traceback_variable(program: str) -> str:
    """Return the environment variable that asks for tracebacks."""
    return f"{program.upper()}_TRACEBACK"


def traceback_help(program: str) -> str:
    return f"print the traceback of an error; also with {traceback_variable(program)}=1"


def is_set(name: str) -> bool:
    """Return whether an environment variable is set to something other than 0."""
    return os.environ.get(name, "") not in ("", "0")
