"""The definition and the content of a table, as JSON values.

They are made from metadata alone; no rows are read.
"""

from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from decimal import Decimal
from itertools import islice
from typing import Any

from opal_lake.clock import moment_text
from opal_lake.data.segment import DataFile
from opal_lake.data.shown_values import json_function, values_of
from opal_lake.definition.ordering import from_order
from opal_lake.definition.schema import Atomic, Field, arrow_type, default_array, type_name
from opal_lake.definition.table_spec import TableSpec
from opal_lake.engine.open_table import OpenTable
from opal_lake.errors import InvalidInputError
from opal_lake.events.bitmap import Bitmaps
from opal_lake.ids import segment_name
from opal_lake.log.commit import Commit
from opal_lake.log.commit_times import history
from opal_lake.log.pending import pending_keys
from opal_lake.log.snapshot import Snapshot
from opal_lake.log.visibility import invalid_rows
from opal_lake.read.read import delta_bounds
from opal_lake.storage.verified import FileRef

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SHORT_ID = 8


def describe(table: OpenTable) -> dict[str, Any]:
    """Return a table's identity, its contract with writers, and its size at the head."""
    snapshot = table.snapshot_at()
    root, spec = snapshot.root, snapshot.spec
    return {
        "uri": table.uri,
        "table_id": root.table_id,
        "version": root.version,
        "committed_at": moment_text(root.timestamp_us),
        "oldest_version": root.oldest_version,
        "savepoints": dict(root.savepoints),
        "business_snapshots": {
            "finished": list(root.business.finished),
            "open": root.business.open,
            "held": sorted(root.business.held_back),
        },
        "floor": _delta_value(root.floor, spec),
        "file_format": spec.file_format,
        "keys": [field.name for field in spec.keys],
        "delta": spec.delta.name if spec.has_keys else None,
        "tie_break": [field.name for field in spec.tie_break],
        "deletes": spec.deletes,
        "partition_by": [field.name for field in spec.partition_by],
        "columns": [_column_row(field) for field in spec.schema.fields],
        "not_null": [field.name for field in spec.not_null],
        "constraints": dict(spec.constraints),
        "properties": dict(spec.properties),
        "counts": _sizes(snapshot),
        "pending": [key.to_json() for key in pending_keys(snapshot)],
    }


def _column_row(field: Field) -> dict[str, Any]:
    row = {"id": field.id, "name": field.name, "type": type_name(field.type, str.lower)}
    if field.generated is not None:
        row["generated"] = field.generated
    for key, value in (("initial", field.initial), ("default", field.write)):
        if value is not None:
            plain_value = values_of(default_array(field, value, 1))[0]
            row[key] = json_function(arrow_type(field.type))(plain_value)
    return row


def _sizes(snapshot: Snapshot) -> dict[str, int]:
    """Return counts of the rows, segments and files of a state, and their sizes.

    `rows_visible` is too low as long as there are events of rows that a major compaction dropped.
    The next major compaction removes these events.
    """
    files, pending = snapshot.files.values(), snapshot.pending
    processed = sum(file.rows for file in files if pending.isdisjoint(file.segments))
    invalid = 0
    for segment, marks in invalid_rows(snapshot).items():
        if segment not in pending:
            invalid += len(marks)
    metadata: tuple[FileRef, ...] = (
        *snapshot.logs.values(),
        *snapshot.runs.values(),
        *snapshot.bases,
    )
    return {
        "rows_ingested": snapshot.root.rows,
        "rows_visible": processed - invalid,
        "rows_pending": sum(snapshot.segments[segment].rows for segment in pending),
        "segments": len(snapshot.segments),
        "segments_pending": len(pending),
        "files": len(files),
        "bytes": sum(file.size for file in files),
        "groups": len(snapshot.root.groups),
        "events": snapshot.root.events,
        "logs": len(snapshot.logs),
        "runs": len(snapshot.runs),
        "metadata_bytes": sum(file.size for file in metadata),
    }


def history_rows(table: OpenTable, limit: int | None = None) -> list[dict[str, Any]]:
    """Return commits as rows, newest first; a limit of 0 means all."""
    return [_history_row(commit) for commit in commits_of(table, limit)]


def commits_of(table: OpenTable, limit: int | None = None) -> Iterator[Commit]:
    """Yield commits, newest first; a limit of 0 means all.

    Commits have their corrected times if a clock was repaired.
    """
    head = table.log.head()
    read_commit = table.log.reading_back(head.root.oldest_version)
    return islice(history(head, read_commit), limit or None)


def _history_row(commit: Commit) -> dict[str, Any]:
    return {
        "version": commit.version,
        "committed_at": moment_text(commit.timestamp_us),
        "operation": commit.operation,
        "changes_view": commit.changes_view,
        "number": commit.number,
        "token": commit.token,
        "business_snapshot": commit.business_snapshot,
        "counts": dict(commit.result.get("counts", {})),
        "write_id": commit.write_id[:_SHORT_ID],
    }


def file_rows(table: OpenTable, version: int | None = None) -> list[dict[str, Any]]:
    """Return the data files as rows.

    `rows_invalid` is the number of rows that a current read leaves out; None for a file with only a
    part of a segment.
    """
    snapshot = table.snapshot_at(version)
    invalid = invalid_rows(snapshot)
    return [_file_row(file, snapshot, invalid) for file in snapshot.files.values()]


def _file_row(file: DataFile, snapshot: Snapshot, invalid: Bitmaps) -> dict[str, Any]:
    spec = snapshot.spec
    low, high = delta_bounds(file, spec)
    return {
        "path": file.path,
        "rows": file.rows,
        "rows_invalid": _invalid_in(file, snapshot, invalid),
        "bytes": file.size,
        "group": file.group,
        "segments": [segment_name(segment) for segment in file.segments],
        "pending": not snapshot.pending.isdisjoint(file.segments),
        "delta_low": _delta_value(low, spec),
        "delta_high": _delta_value(high, spec),
    }


def _invalid_in(file: DataFile, snapshot: Snapshot, invalid: Bitmaps) -> int | None:
    """Return how many rows of a file are invalid; None if it has a part of a segment."""
    segment_rows = sum(snapshot.segments[segment].rows for segment in file.segments)
    if segment_rows != file.rows:
        return None
    return sum(len(invalid.get(segment, ())) for segment in file.segments)


def segment_rows(table: OpenTable, version: int | None = None) -> list[dict[str, Any]]:
    """Return the segments as rows, with the files that hold them now."""
    snapshot = table.snapshot_at(version)
    invalid = invalid_rows(snapshot)
    paths = _paths_by_segment(snapshot.files.values())
    pending = snapshot.pending
    rows: list[dict[str, Any]] = []
    for number, segment in sorted(snapshot.segments.items()):
        row = {
            "segment": segment_name(number),
            "rows": segment.rows,
            "rows_invalid": len(invalid.get(number, ())),
            "group": segment.group,
            "pending": number in pending,
            "files": paths.get(number, []),
        }
        rows.append(row)
    return rows


def _paths_by_segment(files: Iterable[DataFile]) -> Mapping[int, list[str]]:
    paths: dict[int, list[str]] = {}
    for file in files:
        for segment in file.segments:
            paths.setdefault(segment, []).append(file.path)
    return paths


def _delta_value(value: int | None, spec: TableSpec) -> int | str | None:
    """Return a delta as a person writes it, or its order form beyond the calendar."""
    if value is None or not spec.has_keys:
        return value
    kind = spec.delta.type
    assert isinstance(kind, Atomic)
    try:
        delta = from_order(value, kind)
    except InvalidInputError:
        return value
    if isinstance(delta, Decimal):
        return format(delta, "f")
    if isinstance(delta, int):
        return delta
    return delta.isoformat()
