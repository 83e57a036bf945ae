"""The common parts of subcommands: table, store, `--json`, help with an example.

Plugins use `add_command`.
"""

import argparse
import csv
import difflib
import os
import re
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
_BROUGHT_BY = {"dag": "airflow-provider-opal"}  # a command, and the package that it is in
TABLE_FORMS = "a local path, file:///path or s3://bucket/path"

# The class that `add_subparsers` of argparse returns is private, so that no type checker knows it
Verbs = Any

# An apostrophe after a letter, as in "the table's", begins no quoted text
_QUOTED = re.compile(r"""((?<!\w)'[^']*'|"[^"]*"|`[^`]*`)""")
# An argument in a message: `look_back=90`, `limit must be`, `timestamp: `, or a name with a `_`. A
# table's property may have the name of an argument
_ARGUMENT = re.compile(
    r"(?<!\S)(?<!property )(?P<name>[a-z]+(?:_[a-z]+)*)(?P<given>=True\b|=|(?= must )|(?=: ))?"
)


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
        args, unknown = self.parse_known_args(words)
        takes_paths = hasattr(args, "paths")
        for word in unknown:
            if word.startswith("-") or not takes_paths:
                self.parser_of(words).refuse(word)
        if unknown:
            args.paths += unknown
        return args

    def refuse(self, word: str) -> NoReturn:
        """Exit with an error that names the flag like an unknown word."""
        if word.startswith("--"):
            word, _, _ = word.partition("=")  # the value may be a secret
        question = meant(word, self.flags().values())
        self.error(f"{word!r} is not known to {self.prog}{question}")

    def flags(self) -> dict[str, str]:
        """Return the flags of this parser, by the arguments that they set."""
        flags: dict[str, str] = {}
        for action in self._actions:
            if action.option_strings:
                flags[action.dest] = action.option_strings[-1]
        return flags

    def value_flags(self) -> dict[str, str]:
        """Return the flags whose value is that of the argument they set.

        `--no-header` is not one of them: it sets the argument `header` to False, so that the advice
        "give header=True" must not become "give --no-header".
        """
        names = {
            action.dest for action in self._actions if action.nargs != 0 or action.const is True
        }
        return {name: flag for name, flag in self.flags().items() if name in names}

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
        """Return the words of the options that differ from the default.

        They are for the command line of another process. `without` names options to leave out,
        and `only`, if given, the options to return.
        """
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
        see = " See" if message.endswith("?") else "; see"
        self.exit(INPUT, f"{program}: {message}{see} {self.prog} --help\n")

    def check_command(self, argv: Sequence[str]) -> None:
        """Exit with an error for an unknown command, or an option before a command.

        It checks verbs at any depth, such as `token create`.
        """
        verbs = self.verbs()
        has_command = any(not word.startswith("-") for word in argv)
        if not verbs or not has_command:
            return
        first, *following = argv
        if first.startswith("-"):
            flag = first.partition("=")[0]
            if flag in self._option_string_actions:
                return  # --help and --version need no command
            self.error(f"{flag} stands before the command; write {self.prog} COMMAND {flag} ...")
        if first not in verbs:
            self.error(self._unknown(first, verbs))
        below = verbs[first]
        if isinstance(below, OpalParser):
            below.check_command(following)

    def _unknown(self, word: str, verbs: Iterable[str]) -> str:
        """Return the message for an unknown command."""
        _, _, verb = self.prog.partition(" ")
        command = f"{verb} {word}".strip()
        if command in _BROUGHT_BY:
            return f"unknown command {command!r}; install the package {_BROUGHT_BY[command]}"
        remedy = meant(word, verbs)
        if not remedy and verb:
            remedy = f"; the commands of {self.prog} are {', '.join(verbs)}"
        return f"unknown command {command!r}{remedy}"

    def parser_of(self, words: Sequence[str]) -> "OpalParser":
        """Return the parser of the verb that the first words name."""
        parser = self
        for word in words:
            below = parser.verbs().get(word)
            if not isinstance(below, OpalParser):
                break
            parser = below
        return parser


def with_flags(message: str, flags: Mapping[str, str], arguments: Collection[str] = ()) -> str:
    """Return an error message that names flags instead of the arguments they set.

    `look_back='90x' is not a duration` becomes `--look-back='90x' is not a duration`. Texts in
    quotes and the lines after the first one stay, because they repeat what the user wrote. An
    argument stays, too, if the message has its flag in parentheses: `order='at' (--order)`, or
    `options={'a': 'b'} (--csv-option a=b)`. A word
    such as `limit` alone is an argument only if it is one of `arguments`.
    """

    def flag_of(match: re.Match[str]) -> str:
        flag, given = flags.get(match["name"]), match["given"]
        name = match["name"]
        is_argument = given is not None or "_" in name or name in arguments
        if flag is None or not is_argument or f"({flag})" in message or f"({flag} " in message:
            return match[0]
        if given in (None, "=True"):  # a flag without a value stands alone
            return flag
        return flag + given

    first_line, newline, more_lines = message.partition("\n")
    # The odd ones are the quoted texts
    pieces = _QUOTED.split(first_line)
    for position in range(0, len(pieces), 2):
        pieces[position] = _ARGUMENT.sub(flag_of, pieces[position])
    return "".join(pieces) + newline + more_lines


def meant(word: str, known: Iterable[str]) -> str:
    """Return a question for the end of a message: `, did you mean 'describe'?`.

    It names the known word that is most like a misspelt one. If none is like it, the text is empty.
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
    """Return a text as a sentence: with a capital letter and a full stop."""
    return f"{text[:1].upper()}{text[1:]}."


def add_everywhere(parser: argparse.ArgumentParser, program: str) -> Any:
    """Add the options of every verb; return their group, for more such options."""
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
        "give keys by the environment (AWS_ACCESS_KEY_ID, ...)",
    )
    return parser


def exit_code_lines(meanings: Mapping[int, str] = MEANINGS) -> str:
    """Return the exit codes and their meanings, as the lines of a help text."""
    lines = [f"  {code:<3} {meaning}" for code, meaning in meanings.items()]
    return "\n".join(["exit codes:", *lines])


def pairs(texts: Sequence[str], flag: str) -> dict[str, str]:
    """Return the values of repeated NAME=VALUE arguments, by name.

    Raises InvalidInputError for a text without a value, and for a name with two values. The
    messages do not show values: a user may have put a secret there.
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


def check_property_names(names: Iterable[str]) -> None:
    """Raise InvalidInputError for a misspelt property of a table.

    The message asks whether the right name is meant. Names that are like no property pass: the
    definition refuses them later, and lists the known names.
    """
    from opal_lake.definition.properties import PROPERTIES

    for name in names:
        if name in PROPERTIES:
            continue
        question = meant(name, PROPERTIES)
        if question:
            raise InvalidInputError(f"unknown property {name!r}{question}")


def store_options(args: argparse.Namespace) -> dict[str, str]:
    """Return the options of the store, from `--option`."""
    options = pairs(args.option, "--option")
    unknown = sorted(set(options) - set(STORE_OPTIONS))
    if unknown:
        raise InvalidInputError(
            f"--option {', '.join(unknown)} is not known; use {', '.join(STORE_OPTIONS)}. "
            "Give keys by the environment (AWS_ACCESS_KEY_ID, ...)"
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
    """Return the columns of `--columns`, or None where it is not given.

    An empty text is an empty list of columns, which every read refuses.
    """
    if text is None:
        return None
    rows = csv.reader([text], quotechar="`", skipinitialspace=True)
    return next(rows)


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
