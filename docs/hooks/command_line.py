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

FIRST_GROUPS = (WORK, BRING, KEEP, LOOK)  # as `opal --help` has them


def page() -> str:
    verbs = build_parser().verbs()
    return "\n".join(
        [
            *_groups(verbs, FIRST_GROUPS),
            *_everywhere(verbs["describe"], "Options of every command on a table", MEANINGS),
        ]
    )


def lakechime_page() -> str:
    """The command `lakechime`, a heading lower: it is a part of a page."""
    verbs = lakechime_parser().verbs()
    lines = [
        *_groups(verbs, LAKECHIME_GROUPS),
        *_everywhere(verbs["check"], "Options of every command", LAKECHIME_MEANINGS),
    ]
    return "\n".join(f"#{line}" if line.startswith("##") else line for line in lines)


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
    yield from (
        f"{level} {parser.prog}",
        "",
        parser.description or "",
        "",
        "```text",
        usage,
        "```",
        "",
    )
    yield from _table(_actions(parser, None))
    if example := parser.get_default("example"):
        yield from ("```console", f"$ {example}", "```", "")
    for action in parser._actions:  # noqa: SLF001  # argparse has no public way to list what a parser knows
        if isinstance(action.choices, Mapping):
            for inner in action.choices.values():
                yield from _verb(inner, "####")


def _actions(parser: argparse.ArgumentParser, group: str | None) -> Iterator[tuple[str, str]]:
    """Names and help of the arguments of a group, or of those that are no group of every command."""
    formatter = parser._get_formatter()  # noqa: SLF001  # it fills in defaults
    for known in parser._action_groups:  # noqa: SLF001  # argparse has no public way to list what a parser knows
        if (known.title == EVERYWHERE) != (group == EVERYWHERE):
            continue
        for action in known._group_actions:  # noqa: SLF001  # argparse has no public way to list what a parser knows
            if action.dest != "help" and not isinstance(action.choices, Mapping):
                text = formatter._expand_help(action) if action.help else ""  # noqa: SLF001  # it fills in defaults
                yield _name(action), text


def _name(action: argparse.Action) -> str:
    if not action.option_strings:
        return str(action.metavar or action.dest)
    name = ", ".join(action.option_strings)
    if action.nargs == 0:
        return name
    choices = (
        "{" + ",".join(map(str, action.choices)) + "}" if action.choices else action.dest.upper()
    )
    return f"{name} {action.metavar or choices}"


def _table(actions: Iterator[tuple[str, str]]) -> Iterator[str]:
    rows = [f"| <code>{_cell(name)}</code> | {_cell(text)} |" for name, text in actions]
    if rows:
        yield from ("| argument | meaning |", "|---|---|", *rows, "")


def _cell(text: str) -> str:
    return html.escape(text, quote=False).replace("|", "&#124;").replace("*", "&#42;")
