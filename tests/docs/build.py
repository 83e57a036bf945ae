"""The examples of README and of the docs, exactly as the pages have them."""

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = (
    "README.md",
    *sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md")),
)
# Pages whose Python and `opal` run on a table, in test_examples_spark.py
TABLE_PAGES = (
    "README.md",
    "docs/tutorials/table.md",
    "docs/how-to/business-snapshots.md",
    "docs/how-to/changes.md",
    "docs/how-to/columns.md",
    "docs/how-to/from-delta-or-iceberg.md",
    "docs/how-to/ingest.md",
    "docs/how-to/maintenance.md",
    "docs/how-to/overwrite.md",
    "docs/how-to/plain-folders.md",
    "docs/how-to/read.md",
    "docs/how-to/sql-tables.md",
    "docs/how-to/sql.md",
    "docs/how-to/statements.md",
    "docs/how-to/time-travel.md",
)
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """A fenced block: its language, its text and the line that it begins in."""

    page: str
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"

    def with_places(self, places: dict[str, str]) -> str:
        """Return the text with the paths of the docs replaced by paths of the test."""
        return with_places(self.text, places)

    @property
    def commands(self) -> list[str]:
        """The lines of a console, without their prompt and their comment."""
        return [
            re.sub(r"\s{2,}#.*", "", line.removeprefix("$ ")) for line in self.text.splitlines()
        ]


def page_text(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def examples(page: str, *languages: str) -> list[Example]:
    """Return the fenced blocks of a page.

    If languages are given, return only the blocks of these languages.
    """
    text = page_text(page)
    blocks = []
    for match in _FENCE.finditer(text):
        line = text.count("\n", 0, match.start()) + 1
        blocks.append(Example(page=page, line=line, language=match[1], text=match[2]))
    if not languages:
        return blocks
    return [example for example in blocks if example.language in languages]


def example_with(page: str, part: str) -> Example:
    """Return the only block of a page that contains a text."""
    [only] = [example for example in examples(page) if part in example.text]
    return only


def with_places(text: str, places: dict[str, str]) -> str:
    """Return a text in which each key of `places` is replaced by its value."""
    for original, own in places.items():
        text = text.replace(original, own)
    return text
