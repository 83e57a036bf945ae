"""Rows of a table for people and for JSON."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from opal_lake.cli.render import Column, Style, escaped, facts, natural_width, text_table

if TYPE_CHECKING:
    import pyarrow as pa

    from opal_lake.result import JobResult

_GAP_CELLS = 2  # between two columns
_MIN_CELLS = 8  # that a column keeps next to others


def shown_result(result: "JobResult", rows: "pa.Table", limit: int) -> "JobResult":
    """Return the result with at most `limit` rows, and a note if there are more."""
    # Imported here: most commands need no Arrow
    from opal_lake.data.shown_values import json_rows

    shown = json_rows(rows.slice(0, limit))
    notes: tuple[str, ...] = ()
    if len(rows) > limit:
        fact = "there are more rows" if limit else "there are rows"
        notes = (f"{fact}; a higher limit shows them",)
    return replace(result, counts={"rows": len(shown)}, notes=notes, examples=tuple(shown))


def rows_lines(rows: Sequence[Mapping[str, Any]], style: Style, width: int | None) -> Iterator[str]:
    """Yield rows as a table, or on a narrow terminal as a line for each value.

    `width` is that of the terminal in cells, or None for an output that takes any line.
    """
    if not rows:
        return
    columns = [_column(name, rows) for name in rows[0]]
    min_width = 0
    for column in columns:
        min_width += min(natural_width(column, rows), _MIN_CELLS) + _GAP_CELLS
    if width is None or min_width <= width:
        yield from text_table(columns, rows, style, width)
    else:
        yield from _records(rows, style)


def _column(name: str, rows: Sequence[Mapping[str, Any]]) -> Column:
    are_numbers = all(_is_number_or_null(row[name]) for row in rows)
    return Column(key=name, title=escaped(name), show=cell_text, right=are_numbers, shrinks=True)


def _is_number_or_null(value: Any) -> bool:
    return isinstance(value, int | float | None) and not isinstance(value, bool)


def cell_text(value: Any) -> str:
    """Return a value of JSON as the text of a cell.

    Numbers have no separators, because they may be ids.
    """
    match value:
        case None:
            return "NULL"
        case str():
            return escaped(value)
        case bool() | dict() | list():
            return escaped(json.dumps(value, ensure_ascii=False))
    return str(value)


def _records(rows: Sequence[Mapping[str, Any]], style: Style) -> Iterator[str]:
    """Yield each row as a heading with its number, and a line for each column."""
    for number, row in enumerate(rows, start=1):
        yield style.strong(f"row {number}")
        pairs = []
        for name, value in row.items():
            pairs.append((escaped(name), cell_text(value)))
        yield from facts(pairs, style)
