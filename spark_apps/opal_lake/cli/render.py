"""Plain text for people: aligned tables, readable numbers, and colour where a terminal shows it."""

import os
import re
import shutil
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, TextIO

from opal_lake.errors import count_text

_GAP = "  "
_NARROWEST = 8
_MOMENT = re.compile(r"-?\d{4,}-\d\d-\d\dT\d\d:\d\d:\d\d")
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


@dataclass(frozen=True, slots=True, kw_only=True)
class Style:
    """Colours, or none."""

    colour: bool = False

    @classmethod
    def of(cls, stream: TextIO) -> "Style":
        """Colours on a terminal, unless NO_COLOR is set (no-color.org)."""
        return cls(
            colour=stream.isatty()
            and not os.environ.get("NO_COLOR")
            and os.environ.get("TERM") != "dumb"
        )

    def strong(self, text: str) -> str:
        return self._in("1", text)

    def faint(self, text: str) -> str:
        return self._in("2", text)

    def good(self, text: str) -> str:
        return self._in("32", text)

    def warn(self, text: str) -> str:
        return self._in("33", text)

    def bad(self, text: str) -> str:
        return self._in("1;31", text)

    def _in(self, code: str, text: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self.colour and text.strip() else text


PLAIN = Style()


def plain_text(value: Any) -> str:
    """Any value on one line; what would move the cursor or hide text is shown escaped."""
    match value:
        case None:
            return "-"
        case bool():
            return "yes" if value else "no"
        case int():
            return f"{value:,}"
        case str():
            return escaped(value)
        case list() | tuple():
            return ", ".join(map(plain_text, value)) or "-"
    return escaped(str(value))


def escaped(text: str) -> str:
    return (
        text
        if text.isprintable()
        else "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    )


def size_text(size: int) -> str:
    """Bytes as a person reads them."""
    amount, unit = float(size), 0
    while amount >= 1023.95 and unit < len(_UNITS) - 1:
        amount, unit = amount / 1024, unit + 1
    return f"{size:,} B" if unit == 0 else f"{amount:,.1f} {_UNITS[unit]}"


def moment_text(value: Any) -> str:
    """A value that may be an ISO 8601 moment, a bit shorter."""
    text = plain_text(value)
    return text.replace("T", " ").replace("+00:00", "Z") if _MOMENT.match(text) else text


def time_text(iso: str) -> str:
    """A moment to the second, in UTC."""
    return datetime.fromisoformat(iso).astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S")


def ago_text(iso: str, now: datetime) -> str:
    """How long ago, roughly."""
    seconds = (now - datetime.fromisoformat(iso)) // timedelta(seconds=1)
    for unit, length in (("day", 86_400), ("hour", 3_600), ("minute", 60)):
        if seconds >= length:
            return count_text(seconds // length, unit) + " ago"
    return "just now"


def duration_text(seconds: float) -> str:
    """0:07, 2:03, 1:00:09."""
    hours, rest = divmod(int(seconds), 3_600)
    return f"{hours}:{rest // 60:02}:{rest % 60:02}" if hours else f"{rest // 60}:{rest % 60:02}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column of a text table. On a narrow terminal the optional ones go, then those that may shrink give way.

    `tail` keeps the end, as of paths.
    """

    key: str
    title: str
    show: Callable[[Any], str] = plain_text
    right: bool = False
    shrinks: bool = False
    tail: bool = False
    optional: bool = False
    paint: Callable[[Style, str], str] = lambda _, text: text


def text_table(
    columns: Sequence[Column],
    rows: Sequence[Mapping[str, Any]],
    style: Style = PLAIN,
    width: int | None = None,
) -> Iterator[str]:
    """Lines: a heading, then a line a row."""
    natural = {column.key: natural_width(column, rows) for column in columns}
    columns = _kept(columns, natural, width)
    widths = _fitted([natural[column.key] for column in columns], columns, width)
    yield style.faint(_line(columns, [column.title for column in columns], widths, PLAIN))
    for row in rows:
        yield _line(
            columns, [column.show(row.get(column.key)) for column in columns], widths, style
        )


def natural_width(column: Column, rows: Sequence[Mapping[str, Any]]) -> int:
    """The cells that a column takes when nothing is left out."""
    return max(
        [len_shown(column.title), *(len_shown(column.show(row.get(column.key))) for row in rows)]
    )


def _line(
    columns: Sequence[Column], texts: Sequence[str], widths: Sequence[int], style: Style
) -> str:
    shown = []
    for column, text, width in zip(columns, texts, widths, strict=True):
        text = clipped(text, width, tail=column.tail)
        space = " " * (width - len_shown(text))
        text = column.paint(style, text)
        shown.append(space + text if column.right else text + space)
    return _GAP.join(shown).rstrip()


def _kept(columns: Sequence[Column], natural: Mapping[str, int], width: int | None) -> list[Column]:
    """Leave out optional columns, the last one first, until all fit."""
    kept = list(columns)
    for column in reversed(columns):
        if (
            width is not None
            and column.optional
            and sum(natural[other.key] + len(_GAP) for other in kept) - len(_GAP) > width
        ):
            kept.remove(column)
    return kept


def _fitted(natural: Sequence[int], columns: Sequence[Column], width: int | None) -> list[int]:
    """Narrow the widest of those that shrink, until all fit."""
    widths = list(natural)
    if width is None:
        return widths
    excess = sum(widths) + len(_GAP) * (len(widths) - 1) - width
    while excess > 0:
        loose = [
            at for at, column in enumerate(columns) if column.shrinks and widths[at] > _NARROWEST
        ]
        if not loose:
            return widths
        widest = max(loose, key=widths.__getitem__)
        widths[widest] -= 1
        excess -= 1
    return widths


def clipped(text: str, width: int, *, tail: bool = False) -> str:
    """At most `width` cells, with an ellipsis for what is left out."""
    if len_shown(text) <= width:
        return text
    kept = text[::-1] if tail else text
    while len_shown(kept) > width - 1:
        kept = kept[:-1]
    return "…" + kept[::-1] if tail else kept + "…"


def len_shown(text: str) -> int:
    """Cells on a terminal: East Asian wide characters take two, combining ones none."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1
        for c in text
    )


def facts(pairs: Sequence[tuple[str, str]], style: Style = PLAIN) -> Iterator[str]:
    """`name   value` lines, indented."""
    width = max((len(name) for name, _ in pairs), default=0)
    return (f"  {style.faint(f'{name:<{width}}')}  {value}" for name, value in pairs)


def output_width(stream: TextIO) -> int | None:
    """None unless it is a terminal: a file or a pipe takes lines of any length."""
    return (
        shutil.get_terminal_size().columns if stream.isatty() or "COLUMNS" in os.environ else None
    )
