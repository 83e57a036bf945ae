"""What people see of a table: the values of `describe.py` as pages of text."""

from collections.abc import Iterator, Mapping, Sequence
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

_PENDING_SHOWN = 20
# Of a result's counts, what a person wants to know first
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


def describe_page(description: Mapping[str, Any], style: Style, now: datetime) -> Iterator[str]:
    committed = description["committed_at"]
    yield style.strong(escaped(description["uri"]))
    yield style.faint(
        f"version {description['version']:,}, committed {time_text(committed)} UTC, {ago_text(committed, now)}"
    )
    yield ""
    yield from facts([*_size_facts(description), *_contract_facts(description)], style)
    yield ""
    roles = _roles(description)
    rows = [{**column, "role": roles.get(column["name"], "")} for column in description["columns"]]
    columns = [
        Column(key="name", title="column"),
        Column(key="type", title="type"),
        Column(key="role", title="role", paint=Style.good),
    ]
    yield from ("  " + line for line in text_table(columns, rows, style))
    yield from _pending_lines(description["pending"], style, now)


def _pending_lines(
    pending: Sequence[Mapping[str, Any]], style: Style, now: datetime
) -> Iterator[str]:
    """What waits for a MetaGen, by partition key, the oldest first."""
    if not pending:
        return
    yield ""
    rows = [
        {
            **key,
            "partition_key": key["partition_key"] or "(without a key)",
            "ago": ago_text(key["ingested_at"], now),
        }
        for key in pending[:_PENDING_SHOWN]
    ]
    columns = [
        Column(key="partition_key", title="pending of", shrinks=True, paint=Style.warn),
        Column(key="rows", title="rows", right=True),
        Column(key="segments", title="segments", right=True),
        Column(key="ago", title="ingested"),
    ]
    yield from ("  " + line for line in text_table(columns, rows, style))
    if len(pending) > _PENDING_SHOWN:
        more = len(pending) - _PENDING_SHOWN
        yield style.faint(f"  and {count_text(more, 'more partition key')}; --json lists all")


def _size_facts(description: Mapping[str, Any]) -> list[tuple[str, str]]:
    counts = description["counts"]
    pending = f", {counts['rows_pending']:,} pending" if counts["segments_pending"] else ""
    waiting = (
        f", {counts['segments_pending']:,} of them pending until a metagen"
        if counts["segments_pending"]
        else ""
    )
    return [
        (
            "rows",
            f"{counts['rows_visible']:,} visible{pending}, {counts['rows_ingested']:,} ingested",
        ),
        ("segments", f"{counts['segments']:,} in {count_text(counts['groups'], 'group')}{waiting}"),
        (
            "files",
            f"{counts['files']:,} {description['file_format']}, {size_text(counts['bytes'])}",
        ),
        (
            "metadata",
            f"{counts['events']:,} events, {count_text(counts['runs'], 'key-store run')}, {size_text(counts['metadata_bytes'])}",
        ),
        ("readable", _readable(description)),
        *_business_facts(description["business_snapshots"]),
    ]


def _business_facts(business: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Nothing for a table without any."""
    names = [f"finished {finished_text(business['finished'])}"] if business["finished"] else []
    names += [f"{business['open']} is open"] if business["open"] else []
    names += [f"{', '.join(business['held'])} held back"] if business["held"] else []
    return [("business snapshots", "; ".join(names))] if names else []


def _readable(description: Mapping[str, Any]) -> str:
    floor = (
        "every event time"
        if description["floor"] is None
        else f"event times from {moment_text(description['floor'])}"
    )
    days = description["business_snapshots"]["finished"]  # which are many
    kept = ", ".join(
        f"{name} ({version:,})"
        for name, version in description["savepoints"].items()
        if name not in days
    )
    return (
        f"versions {description['oldest_version']:,} to {description['version']:,}"
        + (f", savepoints {kept}" if kept else "")
        + f", {floor}"
    )


def _contract_facts(description: Mapping[str, Any]) -> list[tuple[str, str]]:
    shown = [
        (
            "deletes",
            f"rows with {escaped(description['deletes'])}" if description["deletes"] else "none",
        )
    ]
    if description["partition_by"]:
        shown.append(("partitions", plain_text(description["partition_by"])))
    if description["properties"]:
        shown.append(
            (
                "properties",
                ", ".join(f"{name}={value}" for name, value in description["properties"].items()),
            )
        )
    return [*shown, ("table id", description["table_id"])]


def _roles(description: Mapping[str, Any]) -> dict[str, str]:
    roles: dict[str, list[str]] = {}
    named = [
        ("key", description["keys"]),
        ("delta", [description["delta"]] if description["keys"] else []),
        ("tie-break", description["tie_break"]),
        ("partition", description["partition_by"]),
    ]
    for role, names in named:
        for at, name in enumerate(names, start=1):
            roles.setdefault(name, []).append(f"{role} {at}" if len(names) > 1 else role)
    return {name: ", ".join(names) for name, names in roles.items()}


def counts_text(counts: Mapping[str, int]) -> str:
    """`1,000 rows, 2 files, 12.3 KiB`; zeros say nothing."""
    ordered = sorted(counts, key=lambda name: _ORDER.index(name) if name in _ORDER else len(_ORDER))
    return ", ".join(_count_text(counts[name], name) for name in ordered if counts[name])


def _count_text(count: int, name: str) -> str:
    if name.partition("_")[0] == "bytes":
        return f"{size_text(count)} {name.removeprefix('bytes').strip('_')}".rstrip()
    words = name.split("_")  # as in `rows_dropped` and `pending_rows`
    if count == 1:
        words = [_singular(word) for word in words]
    return " ".join([f"{count:,}", *words])


def _singular(word: str) -> str:
    if word in ("series", "ambiguous"):
        return word
    if word.endswith("ies"):
        return word.removesuffix("ies") + "y"
    return word.removesuffix("s")


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
    Column(
        key="pending", title="", show=lambda pending: "pending" if pending else "", paint=Style.warn
    ),
)
SEGMENTS = (
    Column(key="segment", title="segment", right=True, paint=Style.strong),
    Column(key="rows", title="rows", right=True),
    Column(key="rows_invalid", title="invalid", right=True),
    Column(key="group", title="group", right=True),
    Column(
        key="pending", title="", show=lambda pending: "pending" if pending else "", paint=Style.warn
    ),
    Column(key="files", title="file", shrinks=True, tail=True),
)


def history_page(
    rows: Sequence[Mapping[str, Any]], style: Style, width: int | None, limit: int | None = None
) -> Iterator[str]:
    used = [
        column
        for column in HISTORY
        if column.key not in ("token", "business_snapshot") or any(row[column.key] for row in rows)
    ]
    yield from text_table(used, rows, style, width)
    if rows and rows[-1]["version"] > 0 and len(rows) == limit:
        yield style.faint(
            f"older versions are left out; --limit {2 * len(rows)} shows more, --limit 0 all"
        )


def files_page(rows: Sequence[Mapping[str, Any]], style: Style, width: int | None) -> Iterator[str]:
    if not rows:
        yield "no files: nothing has been ingested"
        return
    yield from text_table(
        [column for column in FILES if column.title or any(row["pending"] for row in rows)],
        rows,
        style,
        width,
    )
    total = sum(row["rows"] for row in rows)
    yield style.faint(
        f"{count_text(len(rows), 'file')}, {count_text(total, 'row')}, {size_text(sum(row['bytes'] for row in rows))}"
    )


def segments_page(
    rows: Sequence[Mapping[str, Any]], style: Style, width: int | None
) -> Iterator[str]:
    if not rows:
        yield "no segments: nothing has been ingested"
        return
    yield from text_table(
        [column for column in SEGMENTS if column.title or any(row["pending"] for row in rows)],
        rows,
        style,
        width,
    )
    invalid = sum(row["rows_invalid"] for row in rows)
    yield style.faint(
        f"{count_text(len(rows), 'segment')}, {count_text(sum(row['rows'] for row in rows), 'row')}, {invalid:,} of them invalid"
    )


def check_page(
    uri: str,
    findings: Sequence[Mapping[str, Any]],
    style: Style,
    passed_s: float,
    checked: "Checked",
    *,
    looked_at: str,
) -> Iterator[str]:
    took = style.faint(f"({duration_text(passed_s)})")
    if findings:
        yield f"{style.bad(count_text(len(findings), 'finding'))} in {escaped(uri)} {took}"
    else:
        holds = (
            "every invariant that was looked at holds"
            if checked.left_out
            else "every invariant holds"
        )
        yield f"{style.good('ok')}  {escaped(uri)}: {holds} {took}"
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
