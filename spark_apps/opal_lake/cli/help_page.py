"""The page of `opal --help`: every verb, by its group, with an example."""

import argparse
from collections.abc import Iterator, Mapping, Sequence

from opal_lake import __version__
from opal_lake.cli.command import (
    BRING,
    KEEP,
    LOOK,
    STORE_OPTIONS_TEXT,
    TABLE_FORMS,
    WORK,
    exit_code_lines,
    traceback_help,
)
from opal_lake.cli.render import Style
from opal_lake.exit_codes import MEANINGS

_OTHER = "More"


def overview(verbs: Mapping[str, argparse.ArgumentParser], style: Style) -> str:
    """Return the page that `opal` and `opal --help` show."""
    lines = list(_head(style))
    lines += verb_lines(verbs, (WORK, BRING, KEEP, LOOK), style)
    lines += _foot(style)
    return "\n".join(lines)


def _head(style: Style) -> Iterator[str]:
    purpose = (
        "tables on a lake that take upserts, updates and deletes, and remember every past moment"
    )
    more = style.faint("opal COMMAND --help says more")
    yield f"{style.strong('opal')} {__version__}: {purpose}"
    yield ""
    yield f"{style.strong('usage:')} opal COMMAND TABLE [options]      {more}"
    yield f"       TABLE is {TABLE_FORMS}"


def verb_lines(
    verbs: Mapping[str, argparse.ArgumentParser], groups: Sequence[str], style: Style
) -> Iterator[str]:
    """Yield the verbs of a program by their groups, each with its example."""
    by_group: dict[str, list[str]] = {group: [] for group in groups}
    for name, parser in verbs.items():
        group = parser.get_default("group") or _OTHER
        by_group.setdefault(group, []).append(name)
    width = max(map(len, verbs), default=0)
    for group, names in by_group.items():
        if names:
            yield ""
            yield style.strong(group)
        for name in names:
            summary = (verbs[name].description or "").rstrip(".")
            padded = style.good(f"{name:<{width}}")
            yield f"  {padded}  {summary}"
            example = verbs[name].get_default("example")
            if example:
                yield f"  {'':<{width}}  {style.faint('$ ' + example)}"


def exit_lines(style: Style, meanings: Mapping[int, str] = MEANINGS) -> Iterator[str]:
    """Yield the exit codes, for the end of a page."""
    head, *codes = exit_code_lines(meanings).splitlines()
    yield ""
    yield style.strong(head.rstrip(":").capitalize())
    yield from codes


def _foot(style: Style) -> Iterator[str]:
    yield ""
    yield style.strong("Everywhere")
    yield "  --json               for programs: print only JSON to standard output"
    yield f"  --option NAME=VALUE  {STORE_OPTIONS_TEXT}"
    yield f"  --traceback          {traceback_help('opal')}"
    yield "  --version            print the version of this program"
    yield from exit_lines(style)
