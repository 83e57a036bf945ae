"""Plain text for people: aligned tables, readable numbers, colour on a terminal."""

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
_NARROWEST = 8  # cells that a column keeps on a narrow terminal
_NEXT_UNIT = 1023.95  # with one decimal this and more would be shown as 1,024.0 of a unit
_MOMENT = re.compile(r"-?\d{4,}-\d\d-\d\dT\d\d:\d\d:\d\d")
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


@dataclass(frozen=True, slots=True, kw_only=True)
class Style:
    """The colours of an output, or none."""

    colour: bool = False

    @classmethod
    def of(cls, stream: TextIO) -> "Style":
        """Return colours for a terminal, unless NO_COLOR is set (no-color.org)."""
        is_refused = bool(os.environ.get("NO_COLOR")) or os.environ.get("TERM") == "dumb"
        return cls(colour=stream.isatty() and not is_refused)

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
        if not self.colour or not text.strip():
            return text
        return f"\x1b[{code}m{text}\x1b[0m"


PLAIN = Style()


def plain_text(value: Any) -> str:
    """Return any value on one line; characters that control a terminal are escaped."""
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
    """Return a text with escapes for characters that cannot be printed."""
    if text.isprintable():
        return text
    characters = []
    for character in text:
        if not character.isprintable():
            character = character.encode("unicode_escape").decode()
        characters.append(character)
    return "".join(characters)


def size_text(size: int) -> str:
    """Return a number of bytes for people, such as 12.3 KiB."""
    amount, unit = float(size), 0
    while amount >= _NEXT_UNIT and unit < len(_UNITS) - 1:
        amount, unit = amount / 1024, unit + 1
    if unit == 0:
        return f"{size:,} B"
    return f"{amount:,.1f} {_UNITS[unit]}"


def moment_text(value: Any) -> str:
    """Return a value as text; a moment has a space instead of T, and Z for +00:00."""
    text = plain_text(value)
    if not _MOMENT.match(text):
        return text
    return text.replace("T", " ").replace("+00:00", "Z")


def time_text(iso: str) -> str:
    """Return a moment to the second, in UTC."""
    return datetime.fromisoformat(iso).astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S")


def ago_text(iso: str, now: datetime) -> str:
    """Return how long ago a moment was, in whole days, hours or minutes."""
    seconds = (now - datetime.fromisoformat(iso)) // timedelta(seconds=1)
    for unit, length in (("day", 86_400), ("hour", 3_600), ("minute", 60)):
        if seconds >= length:
            return count_text(seconds // length, unit) + " ago"
    return "just now"


def duration_text(seconds: float) -> str:
    """Return a duration as 0:07, 2:03 or 1:00:09."""
    minutes, whole_seconds = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if not hours:
        return f"{minutes}:{whole_seconds:02}"
    return f"{hours}:{minutes:02}:{whole_seconds:02}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column of a text table.

    On a narrow terminal the optional columns are left out first. Then columns with `shrinks` are
    narrowed. With `tail` the end of a text stays when it is cut, as paths need it.
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
    """Yield the lines of a table: a heading, then a line for each row."""
    natural = {column.key: natural_width(column, rows) for column in columns}
    columns = _fitting(columns, natural, width)
    widths = _narrowed([natural[column.key] for column in columns], columns, width)
    yield style.faint(_line(columns, [column.title for column in columns], widths, PLAIN))
    for row in rows:
        texts = [column.show(row.get(column.key)) for column in columns]
        yield _line(columns, texts, widths, style)


def natural_width(column: Column, rows: Sequence[Mapping[str, Any]]) -> int:
    """Return the width in cells that a column needs to show every value whole."""
    texts = [column.show(row.get(column.key)) for row in rows]
    return max(map(len_shown, [column.title, *texts]))


def _line(
    columns: Sequence[Column], texts: Sequence[str], widths: Sequence[int], style: Style
) -> str:
    shown = []
    for column, text, width in zip(columns, texts, widths, strict=True):
        text = clipped(text, width, tail=column.tail)
        space = " " * (width - len_shown(text))
        # Painted last: the codes of colours take no cells
        text = column.paint(style, text)
        shown.append(space + text if column.right else text + space)
    return _GAP.join(shown).rstrip()


def _fitting(
    columns: Sequence[Column], natural: Mapping[str, int], width: int | None
) -> list[Column]:
    """Return the columns that fit: optional ones are left out, the last one first.

    `natural` are the widths of all columns by key, in cells.
    """
    fitting = list(columns)
    if width is None:
        return fitting
    for column in reversed(columns):
        gaps = len(_GAP) * (len(fitting) - 1)
        cells = gaps + sum(natural[shown.key] for shown in fitting)
        if column.optional and cells > width:
            fitting.remove(column)
    return fitting


def _narrowed(natural: Sequence[int], columns: Sequence[Column], width: int | None) -> list[int]:
    """Return the widths of columns in cells, narrowed until the table fits.

    Each cell is taken from the widest column that shrinks. `natural` are the widths before.
    """
    widths = list(natural)
    if width is None:
        return widths
    excess = sum(widths) + len(_GAP) * (len(widths) - 1) - width
    shrinking = [position for position, column in enumerate(columns) if column.shrinks]
    while excess > 0:
        wide = [position for position in shrinking if widths[position] > _NARROWEST]
        if not wide:
            return widths
        widest = max(wide, key=widths.__getitem__)
        widths[widest] -= 1
        excess -= 1
    return widths


def clipped(text: str, width: int, *, tail: bool = False) -> str:
    """Return a text of at most `width` cells; an ellipsis stands for the rest."""
    if len_shown(text) <= width:
        return text
    if tail:
        return "…" + _fitting_start(text[::-1], width - 1)[::-1]
    return _fitting_start(text, width - 1) + "…"


def _fitting_start(text: str, width: int) -> str:
    """Return the longest start of a text that takes at most `width` cells."""
    while len_shown(text) > width:
        text = text[:-1]
    return text


def len_shown(text: str) -> int:
    """Return the width of a text in cells: wide characters are two, combining ones 0."""
    if text.isascii():
        return len(text)
    return sum(map(_cells, text))


def _cells(character: str) -> int:
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def facts(pairs: Sequence[tuple[str, str]], style: Style = PLAIN) -> Iterator[str]:
    """Yield indented lines of a name and a value, in two columns."""
    width = max((len(name) for name, _ in pairs), default=0)
    for name, value in pairs:
        padded = style.faint(f"{name:<{width}}")
        yield f"  {padded}  {value}"


def output_width(stream: TextIO) -> int | None:
    """Return the width of a terminal in cells; None for a file or a pipe."""
    if stream.isatty() or "COLUMNS" in os.environ:
        return shutil.get_terminal_size().columns
    return None
