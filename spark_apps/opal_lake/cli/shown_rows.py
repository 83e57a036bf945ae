"""Rows of a table for people and for JSON."""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import date, datetime, time
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from opal_lake.cli.render import Column, Style, escaped, facts, natural_width, text_table

if TYPE_CHECKING:
    import pyarrow as pa

    from opal_lake.result import JobResult

_GAP_CELLS, _NARROWEST = 2, 8  # cells between columns, and of a column at least


def shown_result(result: "JobResult", rows: "pa.Table", limit: int) -> "JobResult":
    """Return the result with at most `limit` rows, and a note if there are more."""
    shown = json_rows(rows.slice(0, limit))
    notes: tuple[str, ...] = ()
    if len(rows) > limit:
        fact = "there are more rows" if limit else "there are rows"
        notes = (f"{fact}; a higher limit shows them",)
    return replace(result, counts={"rows": len(shown)}, notes=notes, examples=tuple(shown))


def json_rows(table: "pa.Table") -> list[dict[str, Any]]:
    """Return rows as JSON holds them: what JSON lacks becomes text, unrounded."""
    # Imported here: most commands need no Arrow
    from opal_lake.data.shown_values import values_of

    columns = [list(map(json_value, values_of(column))) for column in table.columns]
    names = table.column_names
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


def json_value(value: Any) -> Any:
    """Return a value as JSON holds it.

    Timestamps are ISO 8601, in UTC whatever the session's zone, decimals text with all their
    digits, bytes hex, and maps objects.
    """
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return value if math.isfinite(value) else str(value)
        case datetime() | date() | time():
            return value.isoformat()
        case Decimal():
            return format(value, "f")  # str() gives 0E-10 for a zero of ten places
        case bytes():
            return value.hex()
        case Mapping():
            return {str(name): json_value(member) for name, member in value.items()}
        case [(_, _), *_] if all(isinstance(member, tuple) for member in value):  # Arrow's maps
            return {str(json_value(name)): json_value(member) for name, member in value}
        case list():
            return [json_value(member) for member in value]
    return str(value)


def rows_lines(rows: Sequence[Mapping[str, Any]], style: Style, width: int | None) -> Iterator[str]:
    """Yield rows side by side, or below each other on a narrow terminal."""
    if not rows:
        return
    columns = [_column(name, rows) for name in rows[0]]
    least = 0
    for column in columns:
        least += min(natural_width(column, rows), _NARROWEST) + _GAP_CELLS
    if width is None or least <= width:
        yield from text_table(columns, rows, style, width)
    else:
        yield from _records(rows, style)


def _column(name: str, rows: Sequence[Mapping[str, Any]]) -> Column:
    are_numbers = all(_is_number_or_null(row[name]) for row in rows)
    return Column(key=name, title=escaped(name), show=cell_text, right=are_numbers, shrinks=True)


def _is_number_or_null(value: Any) -> bool:
    return isinstance(value, int | float | None) and not isinstance(value, bool)


def cell_text(value: Any) -> str:
    """Return a value unchanged: numbers have no separators, because they may be ids."""
    match value:
        case None:
            return "NULL"
        case str():
            return escaped(value)
        case bool() | dict() | list():
            return escaped(json.dumps(value, ensure_ascii=False))
    return str(value)


def _records(rows: Sequence[Mapping[str, Any]], style: Style) -> Iterator[str]:
    for number, row in enumerate(rows, start=1):
        yield style.strong(f"row {number}")
        members = [(escaped(name), cell_text(value)) for name, value in row.items()]
        yield from facts(members, style)
