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

_GAP_CELLS, _NARROWEST = 2, 8


def shown_result(result: "JobResult", rows: "pa.Table", limit: int) -> "JobResult":
    """Return the result with the rows as its examples; it says if there are more than the limit."""
    is_more = len(rows) > limit
    shown = json_rows(rows.slice(0, limit))
    more = "there are more rows" if limit else "there are rows"
    return replace(
        result,
        counts={"rows": len(shown)},
        notes=(f"{more}; a higher limit shows them",) if is_more else (),
        examples=tuple(shown),
    )


def json_rows(table: "pa.Table") -> list[dict[str, Any]]:
    """Rows as values that go into JSON: what JSON lacks becomes text, and nothing is rounded."""
    # Imported here: most commands need no Arrow
    from opal_lake.data.shown_values import values_of

    columns = [list(map(json_value, values_of(column))) for column in table.columns]
    return [dict(zip(table.column_names, row, strict=True)) for row in zip(*columns, strict=True)]


def json_value(value: Any) -> Any:
    """Return a value as JSON has it.

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
    """Rows side by side, or below each other when the terminal is too narrow for that."""
    if rows:
        columns = [_column(name, rows) for name in rows[0]]
        least = sum(min(natural_width(column, rows), _NARROWEST) + _GAP_CELLS for column in columns)
        yield from (
            text_table(columns, rows, style, width)
            if width is None or least <= width
            else _records(rows, style)
        )


def _column(name: str, rows: Sequence[Mapping[str, Any]]) -> Column:
    numbers = all(
        isinstance(row[name], int | float | None) and not isinstance(row[name], bool)
        for row in rows
    )
    return Column(key=name, title=escaped(name), show=cell_text, right=numbers, shrinks=True)


def cell_text(value: Any) -> str:
    """A value unchanged: numbers without separators, because they may be ids."""
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
        yield from facts([(escaped(name), cell_text(value)) for name, value in row.items()], style)
