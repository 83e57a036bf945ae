"""What a table is and what it holds, as values that go into JSON as they are. Reads metadata only, never rows."""

from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from decimal import Decimal
from itertools import islice
from typing import Any

from opal_lake.clock import moment_text
from opal_lake.data.segment import DataFile
from opal_lake.definition.ordering import from_order
from opal_lake.definition.schema import Atomic, type_name
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
    """Its identity, its contract with writers, and its size at the newest version."""
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
            "held": sorted(root.business.held),
        },
        "floor": None if root.floor is None else _delta_value(root.floor, spec),
        "file_format": spec.file_format,
        "keys": [field.name for field in spec.keys],
        "delta": spec.delta.name if spec.has_keys else None,
        "tie_break": [field.name for field in spec.tie_break],
        "deletes": spec.deletes,
        "partition_by": [field.name for field in spec.partition_by],
        "columns": [
            {"id": field.id, "name": field.name, "type": type_name(field.type, str.lower)}
            for field in spec.schema.fields
        ],
        "properties": dict(spec.properties),
        "counts": _sizes(snapshot),
        "pending": [key.to_json() for key in pending_keys(snapshot)],
    }


def _sizes(snapshot: Snapshot) -> dict[str, int]:
    """`rows_visible` is too low while there are events of rows that a major compaction dropped: until the next one."""
    files, pending = snapshot.files.values(), snapshot.pending
    invalid = invalid_rows(snapshot)
    processed = sum(file.rows for file in files if pending.isdisjoint(file.segments))
    metadata: tuple[FileRef, ...] = (
        *snapshot.logs.values(),
        *snapshot.runs.values(),
        *snapshot.bases,
    )
    return {
        "rows_ingested": snapshot.root.rows,
        "rows_visible": processed
        - sum(len(marks) for segment, marks in invalid.items() if segment not in pending),
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
    """Commits, newest first, 0 for all: who did what, and what came of it."""
    return [_history_row(commit) for commit in commits_of(table, limit)]


def commits_of(table: OpenTable, limit: int | None = None) -> Iterator[Commit]:
    """Return commits, newest first; a limit of 0 means all.

    Where a clock was repaired, they have their corrected times.
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
    """Data files. `rows_invalid` counts the rows that a current read drops; None where a file holds only a part of a segment."""
    snapshot = table.snapshot_at(version)
    invalid = invalid_rows(snapshot)
    return [_file_row(file, snapshot, invalid) for file in snapshot.files.values()]


def _file_row(file: DataFile, snapshot: Snapshot, invalid: Bitmaps) -> dict[str, Any]:
    low, high = delta_bounds(file, snapshot.spec)
    return {
        "path": file.path,
        "rows": file.rows,
        "rows_invalid": _invalid_in(file, snapshot, invalid),
        "bytes": file.size,
        "group": file.group,
        "segments": [segment_name(segment) for segment in file.segments],
        "pending": not snapshot.pending.isdisjoint(file.segments),
        "delta_low": None if low is None else _delta_value(low, snapshot.spec),
        "delta_high": None if high is None else _delta_value(high, snapshot.spec),
    }


def _invalid_in(file: DataFile, snapshot: Snapshot, invalid: Bitmaps) -> int | None:
    whole = sum(snapshot.segments[segment].rows for segment in file.segments) == file.rows
    return sum(len(invalid.get(segment, ())) for segment in file.segments) if whole else None


def segment_rows(table: OpenTable, version: int | None = None) -> list[dict[str, Any]]:
    """Segments: what was ingested together, and where its rows lie now."""
    snapshot = table.snapshot_at(version)
    invalid, homes = invalid_rows(snapshot), _homes(snapshot.files.values())
    return [
        {
            "segment": segment_name(segment.id),
            "rows": segment.rows,
            "rows_invalid": len(invalid.get(segment.id, ())),
            "group": segment.group,
            "pending": segment.id in snapshot.pending,
            "files": homes.get(segment.id, []),
        }
        for segment in sorted(snapshot.segments.values(), key=lambda segment: segment.id)
    ]


def _homes(files: Iterable[DataFile]) -> Mapping[int, list[str]]:
    homes: dict[int, list[str]] = {}
    for file in files:
        for segment in file.segments:
            homes.setdefault(segment, []).append(file.path)
    return homes


def _delta_value(value: int, spec: TableSpec) -> int | str:
    """As a person writes it; the bare number where no calendar has it."""
    if not spec.has_keys:
        return value
    kind = spec.delta.type
    assert isinstance(kind, Atomic)
    try:
        delta = from_order(value, kind)
    except InvalidInputError:
        return value
    if isinstance(delta, Decimal):
        return format(delta, "f")
    return delta if isinstance(delta, int) else delta.isoformat()
