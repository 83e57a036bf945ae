"""A JobResult for people: one line with the outcome, then the notes."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from opal_lake.cli.pages import counts_text
from opal_lake.cli.render import Column, Style, duration_text, escaped, facts, natural_width, text_table
from opal_lake.errors import count_text
from opal_lake.job.job import JobResult

_GAP_CELLS, _NARROWEST = 2, 8
_DONE = {
    "create": "created",
    "ingest": "ingested",
    "metagen": "processed",
    "read": "read",
    "changes": "read",
    "rebuild_key_store": "rebuilt the key store from",
    "bootstrap": "took over",
    "compact": "compacted",
    "zorder": "put into Z-order",
    "maintain": "maintained",
}


def result_page(result: JobResult, style: Style, width: int | None, *, last: bool = True) -> Iterator[str]:
    counts = counts_text(result.counts)
    what = _DONE[result.operation] + (f" {counts}," if counts else "")
    if result.repeated:
        yield f"{style.good('done before')}: {what}{_place(result)}; nothing was changed now"
    elif result.version is None:
        yield f"{style.good('nothing to do')} in {escaped(result.table)}"
    else:
        yield f"{style.good(what)}{_place(result)}{_took(result, style)}"
    for note in result.notes:
        yield f"{style.warn('note')}  {escaped(note)}"
    if result.examples and result.operation not in ("read", "changes"):
        yield from text_table([Column(key=name, title=name, shrinks=True) for name in result.examples[0]], result.examples, style, width)
    is_inline = "segments" in result.counts
    if last and result.operation == "ingest" and result.counts.get("rows") and not is_inline:
        yield style.faint(f"not visible yet; next: opal metagen {escaped(result.table)}")


def _place(result: JobResult) -> str:
    at = "" if result.version is None else f" version {result.version:,} of"
    return f"{at} {escaped(result.table)}"


def _took(result: JobResult, style: Style) -> str:
    total_ms = result.timings_ms.get("total")
    return "" if total_ms is None else style.faint(f" ({duration_text(total_ms / 1000)})")


def rows_page(result: JobResult, style: Style, width: int | None) -> Iterator[str]:
    """The rows of a read: side by side, or below each other when the terminal is too narrow for that."""
    rows = result.examples
    if rows:
        columns = [_column(name, rows) for name in rows[0]]
        least = sum(min(natural_width(column, rows), _NARROWEST) + _GAP_CELLS for column in columns)
        yield from text_table(columns, rows, style, width) if width is None or least <= width else _records(rows, style)
    more = f"; {result.notes[0]}" if result.notes else ""
    yield style.faint(f"{count_text(len(rows), 'row')}, version {result.version:,}{more}")


def _column(name: str, rows: Sequence[Mapping[str, Any]]) -> Column:
    numbers = all(isinstance(row[name], int | float | None) and not isinstance(row[name], bool) for row in rows)
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
