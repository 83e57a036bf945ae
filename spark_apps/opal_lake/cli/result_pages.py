"""A JobResult for people: one line with the outcome, then the notes."""

from collections.abc import Iterator

from opal_lake.cli.render import Column, Style, duration_text, escaped, text_table
from opal_lake.cli.shown_rows import rows_lines
from opal_lake.cli.table_pages import counts_text
from opal_lake.errors import count_text
from opal_lake.result import JobResult

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
    "mutate": "merged",
}


def result_page(
    result: JobResult, style: Style, width: int | None, *, last: bool = True, dry_run: bool = False
) -> Iterator[str]:
    counts = counts_text(result.counts)
    what = _DONE[result.operation] + (f" {counts}," if counts else "")
    if result.repeated:
        yield f"{style.good('done before')}: {what}{_place(result)}; nothing was changed now"
    elif dry_run and counts:
        yield f"{style.good('would have')} {what}{_place(result)}{_took(result, style)}"
    elif _did_nothing(result):
        yield f"{style.good('nothing to do')} in{_place(result)}"
    else:
        yield f"{style.good(what)}{_place(result)}{_took(result, style)}"
    for note in result.notes:
        yield f"{style.warn('note')}  {escaped(note)}"
    if result.examples and result.operation not in ("read", "changes", "metagen"):
        yield from text_table(
            [Column(key=name, title=name, shrinks=True) for name in result.examples[0]],
            result.examples,
            style,
            width,
        )
    is_inline = "segments" in result.counts
    if last and result.operation == "ingest" and result.counts.get("rows") and not is_inline:
        yield style.faint(f"not visible yet; next: opal metagen {escaped(result.table)}")


def _did_nothing(result: JobResult) -> bool:
    """Return whether a job committed nothing; a MetaGen then names the version that it read."""
    if result.operation == "metagen":
        return not result.counts.get("segments")
    return result.version is None


def _place(result: JobResult) -> str:
    at = "" if result.version is None else f" version {result.version:,} of"
    return f"{at} {escaped(result.table)}"


def _took(result: JobResult, style: Style) -> str:
    total_ms = result.timings_ms.get("total")
    return "" if total_ms is None else style.faint(f" ({duration_text(total_ms / 1000)})")


def rows_page(result: JobResult, style: Style, width: int | None) -> Iterator[str]:
    """The rows of a read."""
    rows = result.examples
    yield from rows_lines(rows, style, width)
    more = f"; {result.notes[0]}" if result.notes else ""
    yield style.faint(f"{count_text(len(rows), 'row')}, version {result.version:,}{more}")
