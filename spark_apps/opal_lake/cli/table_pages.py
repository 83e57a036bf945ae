"""Pages of text about a table, from the values that `inspect/describe.py` returns."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from opal_lake.cli.render import (
    Column,
    Style,
    ago_text,
    duration_text,
    escaped,
    facts,
    moment_text,
    plain_text,
    size_text,
    text_table,
    time_text,
)
from opal_lake.definition.business_snapshots import finished_text
from opal_lake.errors import count_text

if TYPE_CHECKING:
    from opal_lake.inspect.check.check import Checked

_PENDING_SHOWN = 20  # partition keys
# The counts of a result that a person wants to know first
_ORDER = (
    "rows",
    "updates",
    "deletes",
    "late",
    "ambiguous",
    "rejected",
    "segments",
    "files",
    "bytes",
    "events",
)
_INVARIABLE = ("series", "ambiguous")  # words that are the same in singular and plural


def describe_page(description: Mapping[str, Any], style: Style, now: datetime) -> Iterator[str]:
    """Yield the lines of `opal describe`."""
    committed = description["committed_at"]
    version = f"version {description['version']:,}"
    yield style.strong(escaped(description["uri"]))
    yield style.faint(
        f"{version}, committed {time_text(committed)} UTC, {ago_text(committed, now)}"
    )
    yield ""
    yield from facts([*_size_facts(description), *_contract_facts(description)], style)
    yield ""
    roles = _roles(description)
    rows = []
    for column in description["columns"]:
        role = roles.get(column["name"], "")
        rows.append({**column, "role": role})
    columns = [
        Column(key="name", title="column"),
        Column(key="type", title="type"),
        Column(key="role", title="role", paint=Style.good),
    ]
    yield from _indented(text_table(columns, rows, style))
    yield from _pending_lines(description["pending"], style, now)


def _indented(lines: Iterable[str]) -> Iterator[str]:
    return ("  " + line for line in lines)


def _pending_lines(
    pending: Sequence[Mapping[str, Any]], style: Style, now: datetime
) -> Iterator[str]:
    """Yield a table of pending rows by partition key, the oldest ingest first."""
    if not pending:
        return
    yield ""
    rows = []
    for key in pending[:_PENDING_SHOWN]:
        name = key["partition_key"] or "(without a key)"
        rows.append({**key, "partition_key": name, "ago": ago_text(key["ingested_at"], now)})
    columns = [
        Column(key="partition_key", title="pending of", shrinks=True, paint=Style.warn),
        Column(key="rows", title="rows", right=True),
        Column(key="segments", title="segments", right=True),
        Column(key="ago", title="ingested"),
    ]
    yield from _indented(text_table(columns, rows, style))
    if len(pending) > _PENDING_SHOWN:
        more = len(pending) - _PENDING_SHOWN
        yield style.faint(f"  and {count_text(more, 'more partition key')}; --json lists all")


def _size_facts(description: Mapping[str, Any]) -> list[tuple[str, str]]:
    counts = description["counts"]
    rows = f"{counts['rows_visible']:,} visible"
    segments = f"{counts['segments']:,} in {count_text(counts['groups'], 'group')}"
    if counts["segments_pending"]:
        rows += f", {counts['rows_pending']:,} pending"
        segments += f", {counts['segments_pending']:,} of them pending until a metagen"
    rows += f", {counts['rows_ingested']:,} ingested"
    files = f"{counts['files']:,} {description['file_format']}, {size_text(counts['bytes'])}"
    runs = count_text(counts["runs"], "key-store run")
    metadata = f"{counts['events']:,} events, {runs}, {size_text(counts['metadata_bytes'])}"
    return [
        ("rows", rows),
        ("segments", segments),
        ("files", files),
        ("metadata", metadata),
        ("readable", _readable(description)),
        *_business_facts(description["business_snapshots"]),
    ]


def _business_facts(business: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return a fact about business snapshots, or no fact for a table without them."""
    parts = []
    if business["finished"]:
        parts.append(f"finished {finished_text(business['finished'])}")
    if business["open"]:
        parts.append(f"{business['open']} is open")
    if business["held"]:
        parts.append(f"{', '.join(business['held'])} held back")
    if not parts:
        return []
    return [("business snapshots", "; ".join(parts))]


def _readable(description: Mapping[str, Any]) -> str:
    """Return the versions, savepoints and event times that can be read."""
    parts = [f"versions {description['oldest_version']:,} to {description['version']:,}"]
    # Finished business snapshots are savepoints, and too many to list
    business_snapshots = description["business_snapshots"]["finished"]
    savepoints = []
    for name, version in description["savepoints"].items():
        if name not in business_snapshots:
            savepoints.append(f"{name} ({version:,})")
    if savepoints:
        parts.append(f"savepoints {', '.join(savepoints)}")
    floor = description["floor"]
    if floor is None:
        parts.append("every event time")
    else:
        parts.append(f"event times from {moment_text(floor)}")
    return ", ".join(parts)


def _contract_facts(description: Mapping[str, Any]) -> list[tuple[str, str]]:
    # The help of opal needs no Arrow
    from opal_lake.definition.table_spec import NO_DELETES

    deletes = "none"
    # The first DELETE of a table without a delete condition gives it one that no row meets
    if description["deletes"] not in (None, NO_DELETES):
        deletes = f"rows with {escaped(description['deletes'])}"
    lines = [("deletes", deletes)]
    if description["partition_by"]:
        lines.append(("partitions", plain_text(description["partition_by"])))
    for name, text in description["constraints"].items():
        lines.append((f"check {name}", escaped(text)))
    properties = [f"{name}={value}" for name, value in description["properties"].items()]
    if properties:
        lines.append(("properties", ", ".join(properties)))
    return [*lines, ("table id", description["table_id"])]


def _roles(description: Mapping[str, Any]) -> dict[str, str]:
    """Return the roles of columns by name, such as `key 2` for the second key."""
    columns_by_role = {
        "key": description["keys"],
        "delta": [description["delta"]] if description["keys"] else [],
        "tie-break": description["tie_break"],
        "partition": description["partition_by"],
    }
    roles: dict[str, list[str]] = {}
    for role, names in columns_by_role.items():
        for number, name in enumerate(names, start=1):
            numbered = f"{role} {number}" if len(names) > 1 else role
            roles.setdefault(name, []).append(numbered)
    for name in description["not_null"]:
        roles.setdefault(name, []).append("not null")
    for column in description["columns"]:
        if "generated" in column:
            roles.setdefault(column["name"], []).append(f"generated by {column['generated']}")
        if "default" in column:
            roles.setdefault(column["name"], []).append(f"default {column['default']}")
    return {name: ", ".join(names) for name, names in roles.items()}


def counts_text(counts: Mapping[str, int]) -> str:
    """Return the counts that are not 0, such as `1,000 rows, 2 files, 12.3 KiB`."""
    names = [name for name in sorted(counts, key=_rank) if counts[name]]
    return ", ".join(_count_text(counts[name], name) for name in names)


def _rank(name: str) -> int:
    """Return the position of a count in `_ORDER`; other counts come last."""
    if name in _ORDER:
        return _ORDER.index(name)
    return len(_ORDER)


def _count_text(count: int, name: str) -> str:
    """Return a count with its name in words: `rows_dropped` becomes `2 rows dropped`."""
    words = name.split("_")
    if words[0] == "bytes":
        return " ".join([size_text(count), *words[1:]])
    if count == 1:
        words = [_singular(word) for word in words]
    return " ".join([f"{count:,}", *words])


def _singular(word: str) -> str:
    if word in _INVARIABLE:
        return word
    if word.endswith("ies"):
        return word.removesuffix("ies") + "y"
    return word.removesuffix("s")


def _pending_mark(is_pending: bool) -> str:
    return "pending" if is_pending else ""


HISTORY = (
    Column(key="version", title="version", right=True, paint=Style.strong),
    Column(key="committed_at", title="committed (UTC)", show=time_text),
    Column(key="operation", title="operation"),
    Column(
        key="changes_view",
        title="view",
        show=lambda changes: "changed" if changes else "",
        paint=Style.good,
    ),
    Column(key="counts", title="result", show=counts_text, shrinks=True),
    Column(key="business_snapshot", title="snapshot", show=lambda name: name or "", optional=True),
    Column(key="token", title="token", show=lambda token: escaped(token or ""), shrinks=True),
)
FILES = (
    Column(key="path", title="file", shrinks=True, tail=True),
    Column(key="rows", title="rows", right=True),
    Column(key="rows_invalid", title="invalid", right=True),
    Column(key="bytes", title="size", show=size_text, right=True),
    Column(key="segments", title="segments", shrinks=True, optional=True),
    Column(key="delta_low", title="delta from", show=moment_text, optional=True),
    Column(key="delta_high", title="to", show=moment_text, optional=True),
    Column(key="pending", title="", show=_pending_mark, paint=Style.warn),
)
SEGMENTS = (
    Column(key="segment", title="segment", right=True, paint=Style.strong),
    Column(key="rows", title="rows", right=True),
    Column(key="rows_invalid", title="invalid", right=True),
    Column(key="group", title="group", right=True),
    Column(key="pending", title="", show=_pending_mark, paint=Style.warn),
    Column(key="files", title="file", shrinks=True, tail=True),
)


def history_page(
    rows: Sequence[Mapping[str, Any]], style: Style, width: int | None, limit: int | None = None
) -> Iterator[str]:
    """Yield the lines of `opal history`."""
    columns = []
    for column in HISTORY:
        is_rare = column.key in ("token", "business_snapshot")
        if not is_rare or any(row[column.key] for row in rows):
            columns.append(column)
    yield from text_table(columns, rows, style, width)
    if rows and rows[-1]["version"] > 0 and len(rows) == limit:
        yield style.faint(
            f"older versions are left out; --limit {2 * len(rows)} shows more, --limit 0 all"
        )


def files_page(rows: Sequence[Mapping[str, Any]], style: Style, width: int | None) -> Iterator[str]:
    """Yield the lines of `opal files`."""
    if not rows:
        yield "no files: nothing has been ingested"
        return
    yield from text_table(_used(FILES, rows), rows, style, width)
    total = sum(row["rows"] for row in rows)
    size = sum(row["bytes"] for row in rows)
    files = count_text(len(rows), "file")
    yield style.faint(f"{files}, {count_text(total, 'row')}, {size_text(size)}")


def _used(columns: Sequence[Column], rows: Sequence[Mapping[str, Any]]) -> list[Column]:
    """Return the columns, without the mark of pending rows if no row is pending."""
    some_pending = any(row["pending"] for row in rows)
    return [column for column in columns if column.title or some_pending]


def segments_page(
    rows: Sequence[Mapping[str, Any]], style: Style, width: int | None
) -> Iterator[str]:
    """Yield the lines of `opal segments`."""
    if not rows:
        yield "no segments: nothing has been ingested"
        return
    yield from text_table(_used(SEGMENTS, rows), rows, style, width)
    total = sum(row["rows"] for row in rows)
    invalid = sum(row["rows_invalid"] for row in rows)
    segments = count_text(len(rows), "segment")
    yield style.faint(f"{segments}, {count_text(total, 'row')}, {invalid:,} of them invalid")


def check_page(
    uri: str,
    findings: Sequence[Mapping[str, Any]],
    style: Style,
    passed_s: float,
    checked: "Checked",
    *,
    looked_at: str,
) -> Iterator[str]:
    """Yield the lines of `opal check`."""
    took = style.faint(f"({duration_text(passed_s)})")
    if findings:
        yield f"{style.bad(count_text(len(findings), 'finding'))} in {escaped(uri)} {took}"
    else:
        # If the check left something out, not every invariant was looked at
        scope = " that was looked at" if checked.left_out else ""
        yield f"{style.good('ok')}  {escaped(uri)}: every invariant{scope} holds {took}"
    if looked_at:
        yield f"looked at  {escaped(looked_at)}"
    for line in checked.left_out:
        yield f"{style.warn('not looked at')}  {escaped(line)}"
    for line in checked.left_over:
        yield f"{style.warn('left over')}  {escaped(line)}"
    for finding in findings:
        yield ""
        yield f"{style.bad(str(finding['invariant']))}  {escaped(finding['path'] or '-')}"
        yield f"    {escaped(finding['message'])}"
