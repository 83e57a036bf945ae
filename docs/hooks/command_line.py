"""The pages of the commands `opal` and `lakechime`, from their parsers."""

import argparse
import html
from collections.abc import Iterator, Mapping, Sequence

from lakechime.cli import build_parser as lakechime_parser
from lakechime.cli.command import GROUPS as LAKECHIME_GROUPS
from lakechime.cli.command import MEANINGS as LAKECHIME_MEANINGS
from opal_lake.cli import build_parser
from opal_lake.cli.command import BRING, EVERYWHERE, KEEP, LOOK, WORK
from opal_lake.exit_codes import MEANINGS

# In the order of `opal --help`
FIRST_GROUPS = (WORK, BRING, KEEP, LOOK)


def page() -> str:
    """Return the reference of the command `opal`."""
    verbs = build_parser().verbs()
    lines = [
        *_groups(verbs, FIRST_GROUPS),
        *_everywhere(verbs["describe"], "Options of every command on a table", MEANINGS),
    ]
    return "\n".join(lines)


def lakechime_page() -> str:
    """Return the reference of the command `lakechime`.

    Its headings are one level lower than those of `opal`, because it is a part of a page.
    """
    verbs = lakechime_parser().verbs()
    lines = [
        *_groups(verbs, LAKECHIME_GROUPS),
        *_everywhere(verbs["check"], "Options of every command", LAKECHIME_MEANINGS),
    ]
    lowered = [f"#{line}" if line.startswith("##") else line for line in lines]
    return "\n".join(lowered)


def _groups(verbs: Mapping[str, argparse.ArgumentParser], first: Sequence[str]) -> Iterator[str]:
    groups: dict[str, list[argparse.ArgumentParser]] = {group: [] for group in first}
    for parser in verbs.values():
        groups.setdefault(parser.get_default("group"), []).append(parser)
    for group, parsers in groups.items():
        yield from (f"## {group}", "")
        for parser in parsers:
            yield from _verb(parser)


def _everywhere(
    parser: argparse.ArgumentParser, title: str, meanings: Mapping[int, str]
) -> Iterator[str]:
    yield from (f"## {title}", "")
    yield from _table(_actions(parser, EVERYWHERE))
    yield from ("## Exit codes", "", "| code | meaning |", "|---|---|")
    yield from (f"| {code} | {meaning} |" for code, meaning in meanings.items())


def _verb(parser: argparse.ArgumentParser, level: str = "###") -> Iterator[str]:
    usage = " ".join(parser.format_usage().removeprefix("usage: ").split())
    yield from (f"{level} {parser.prog}", "", parser.description or "", "")
    yield from ("```text", usage, "```", "")
    yield from _table(_actions(parser, None))
    if example := parser.get_default("example"):
        yield from ("```console", f"$ {example}", "```", "")
    for action in parser._actions:  # noqa: SLF001  # argparse has no public list of them
        # Subcommands of this command
        if isinstance(action.choices, Mapping):
            for inner in action.choices.values():
                yield from _verb(inner, "####")


def _actions(parser: argparse.ArgumentParser, group: str | None) -> Iterator[tuple[str, str]]:
    """Yield the name and the help of arguments.

    With the group EVERYWHERE these are the arguments that every command has, otherwise the
    arguments of this command alone.
    """
    formatter = parser._get_formatter()  # noqa: SLF001  # only it fills in defaults
    for known in parser._action_groups:  # noqa: SLF001  # argparse has no public list of them
        if (known.title == EVERYWHERE) != (group == EVERYWHERE):
            continue
        for action in known._group_actions:  # noqa: SLF001  # argparse has no public list of them
            if action.dest == "help" or isinstance(action.choices, Mapping):
                continue
            text = ""
            if action.help:
                text = formatter._expand_help(action)  # noqa: SLF001  # it fills in defaults
            yield _name(action), text


def _name(action: argparse.Action) -> str:
    if not action.option_strings:
        return str(action.metavar or action.dest)
    name = ", ".join(action.option_strings)
    if action.nargs == 0:
        return name
    if action.metavar:
        return f"{name} {action.metavar}"
    if action.choices:
        choices = ",".join(map(str, action.choices))
        return f"{name} {{{choices}}}"
    return f"{name} {action.dest.upper()}"


def _table(actions: Iterator[tuple[str, str]]) -> Iterator[str]:
    rows = [f"| <code>{_cell(name)}</code> | {_cell(text)} |" for name, text in actions]
    if rows:
        yield from ("| argument | meaning |", "|---|---|", *rows, "")


def _cell(text: str) -> str:
    return html.escape(text, quote=False).replace("|", "&#124;").replace("*", "&#42;")
