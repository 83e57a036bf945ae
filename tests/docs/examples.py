"""The examples of README and of the docs, as they stand there."""

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = (
    "README.md",
    *sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md")),
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
        """Return the text with other paths than the docs have."""
        return with_places(self.text, places)

    @property
    def commands(self) -> list[str]:
        """Lines of a console without their prompt and comment."""
        return [
            re.sub(r"\s{2,}#.*", "", line.removeprefix("$ ")) for line in self.text.splitlines()
        ]


def page_text(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def examples(page: str, *languages: str) -> list[Example]:
    """Return the blocks of a page, only those of the given languages if there are any."""
    text = page_text(page)
    blocks = [
        Example(
            page=page, line=text.count("\n", 0, match.start()) + 1, language=match[1], text=match[2]
        )
        for match in _FENCE.finditer(text)
    ]
    return [example for example in blocks if not languages or example.language in languages]


def example_with(page: str, part: str) -> Example:
    """Return the only block of a page that holds a text."""
    [only] = [example for example in examples(page) if part in example.text]
    return only


def with_places(text: str, places: dict[str, str]) -> str:
    for original, own in places.items():
        text = text.replace(original, own)
    return text
