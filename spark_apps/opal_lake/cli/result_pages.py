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
    "erase": "erased",
    "maintain": "maintained",
    "mutate": "merged",
}


def result_page(
    result: JobResult, style: Style, width: int | None, *, last: bool = True, dry_run: bool = False
) -> Iterator[str]:
    """Yield a line with the outcome, then the notes, then the examples as a table.

    Only the `last` of several results ends with the next step.
    """
    counts = counts_text(result.counts)
    done = _DONE[result.operation]
    if counts:
        done += f" {counts},"
    target, took = _target(result), took_text(result, style)
    if result.repeated:
        yield f"{style.good('done before')}: {done}{target}; nothing was changed now"
    elif dry_run and counts:
        yield f"{style.good('would have')} {done}{target}{took}"
    elif _did_nothing(result):
        yield f"{style.good('nothing to do')} in{target}"
    else:
        yield f"{style.good(done)}{target}{took}"
    for note in result.notes:
        yield f"{style.warn('note')}  {escaped(note)}"
    if result.examples and result.operation not in ("read", "changes", "metagen"):
        columns = [Column(key=name, title=name, shrinks=True) for name in result.examples[0]]
        yield from text_table(columns, result.examples, style, width)
    if last and _has_pending_rows(result):
        yield style.faint(f"not visible yet; next: opal metagen {escaped(result.table)}")


def _has_pending_rows(result: JobResult) -> bool:
    """Return whether a result is of an ingest whose rows wait for a metagen."""
    is_inline = "segments" in result.counts
    has_rows = bool(result.counts.get("rows"))
    return result.operation == "ingest" and has_rows and not is_inline


def _did_nothing(result: JobResult) -> bool:
    """Return whether a job committed nothing."""
    # A MetaGen without work names the version that it read
    if result.operation == "metagen":
        return not result.counts.get("segments")
    return result.version is None


def _target(result: JobResult) -> str:
    table = escaped(result.table)
    if result.version is None:
        return f" {table}"
    return f" version {result.version:,} of {table}"


def took_text(result: JobResult, style: Style) -> str:
    """Return how long a job took, such as ` (0:07)`; an empty text if it is unknown."""
    total_ms = result.timings_ms.get("total")
    if total_ms is None:
        return ""
    return style.faint(f" ({duration_text(total_ms / 1000)})")


def rows_page(result: JobResult, style: Style, width: int | None) -> Iterator[str]:
    """Yield the rows of a read, and a line with their number."""
    rows = result.examples
    yield from rows_lines(rows, style, width)
    summary = f"{count_text(len(rows), 'row')}, version {result.version:,}"
    if result.notes:
        summary += f"; {result.notes[0]}"
    yield style.faint(summary)
