"""Rows of a table for people and for JSON."""

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import date, datetime, time
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from opal_lake.cli.render import Column, Style, escaped, facts, natural_width, text_table

if TYPE_CHECKING:
    import pyarrow as pa

    from opal_lake.result import JobResult

_GAP_CELLS = 2  # between two columns
_MIN_CELLS = 8  # that a column keeps next to others


def shown_result(result: "JobResult", rows: "pa.Table", limit: int) -> "JobResult":
    """Return the result with at most `limit` rows, and a note if there are more."""
    shown = json_rows(rows.slice(0, limit))
    notes: tuple[str, ...] = ()
    if len(rows) > limit:
        fact = "there are more rows" if limit else "there are rows"
        notes = (f"{fact}; a higher limit shows them",)
    return replace(result, counts={"rows": len(shown)}, notes=notes, examples=tuple(shown))


def json_rows(table: "pa.Table") -> list[dict[str, Any]]:
    """Return rows as JSON holds them: values that JSON lacks become text, unrounded."""
    # Imported here: most commands need no Arrow
    from opal_lake.data.shown_values import values_of

    columns: list[list[Any]] = []
    for column in table.columns:
        as_json = json_function(column.type)
        columns.append([as_json(value) for value in values_of(column)])
    names = table.column_names
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


def json_function(kind: "pa.DataType") -> Callable[[Any], Any]:
    """Return the function that makes values of JSON from those of an Arrow type.

    The type decides, since a map and a list without entries are equal as values of Python.
    """
    from pyarrow import types

    if types.is_map(kind):
        return _map_function(kind)
    if types.is_struct(kind):
        return _struct_function(kind)
    if types.is_list(kind) or types.is_large_list(kind):
        member = json_function(kind.value_type)
        return lambda values: None if values is None else [member(value) for value in values]
    return plain_json_value


def _map_function(kind: "pa.MapType") -> Callable[[Any], Any]:
    """Return the function that makes a JSON object of a map, which Arrow has as pairs."""
    key_function, item_function = json_function(kind.key_type), json_function(kind.item_type)

    def json_object(pairs: Any) -> dict[str, Any] | None:
        if pairs is None:
            return None
        return {str(key_function(key)): item_function(item) for key, item in pairs}

    return json_object


def _struct_function(kind: "pa.StructType") -> Callable[[Any], Any]:
    """Return the function that makes a JSON object of a struct."""
    functions = {field.name: json_function(field.type) for field in kind}

    def json_object(members: Any) -> dict[str, Any] | None:
        if members is None:
            return None
        return {name: function(members[name]) for name, function in functions.items()}

    return json_object


def plain_json_value(value: Any) -> Any:
    """Return a value without members as JSON holds it.

    Timestamps become ISO 8601, in UTC whatever the session's zone. Decimals become text with all
    their digits, and bytes become hex.
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
    return str(value)


def rows_lines(rows: Sequence[Mapping[str, Any]], style: Style, width: int | None) -> Iterator[str]:
    """Yield rows as a table, or one below the other on a narrow terminal.

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
