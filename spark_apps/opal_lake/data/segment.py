"""The entries of a table's metadata: segments, data files, segment logs, runs and side files."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from opal_lake.checked import (
    business_snapshot,
    count,
    counts,
    crc,
    hash_word,
    is_count,
    moment,
    text,
    word,
)
from opal_lake.data.bounds import Bounds
from opal_lake.errors import FormatError
from opal_lake.ids import segment_part
from opal_lake.layout import PathKind, job_number, own_path

MAX_SEGMENT_ROWS = 1 << 31  # offsets are 32-bit
# Of a data file or a segment log. Real files have fewer: columns of one value have 45 rows a byte
# in Parquet and 230 in ORC, and segment logs have 80 events a byte.
MAX_ROWS_A_BYTE = 4096
BYTES_AN_ENTRY = 8  # of a run, at least: the low word of its hash is not compressed


def check_rows(rows: int, size: int) -> int:
    """Return `rows`; raise ValueError if a file of `size` bytes cannot hold so many."""
    max_rows = MAX_ROWS_A_BYTE * size
    if not 0 <= rows <= max_rows:
        raise ValueError(
            f"a file of {size:,} bytes cannot hold {rows:,} rows, only up to {max_rows:,}"
        )
    return rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """The rows of one ingested file. Its id and row count never change.

    `visible_since` is the version that made its rows visible. Since then, the id of its row N for
    the outside is `row_base` + N. Both are None while the segment is pending.
    """

    id: int
    rows: int
    group: int
    row_base: int | None = None
    visible_since: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingSegment:
    """A segment that no MetaGen has processed, with version and names of its ingest."""

    id: int
    rows: int
    group: int
    version: int
    ingested_us: int
    token: str | None = None
    partition_key: str | None = None
    business_snapshot: str | None = None

    def is_of_token(self, token: str) -> bool:
        """Return whether its ingest had this token."""
        if self.token is None:
            return False
        # An ingest of several business snapshots makes a commit for each, with TOKEN/NAME.
        return self.token in (token, f"{token}/{self.business_snapshot}")


@dataclass(frozen=True, slots=True, kw_only=True)
class DiscardedSegment:
    """A pending segment that a commit withdraws, and the path of the file of its rows."""

    path: str
    segment: Segment


class Segments(dict[int, Segment]):
    """The segments of a table by id. A look-up of another id raises FormatError."""

    def __missing__(self, number: int) -> Segment:
        raise FormatError(
            f"a file, log or run of the table holds rows of segment {number}, "
            "which the table does not have; run `opal check`"
        )


def pending_to_json(segment: PendingSegment) -> list[Any]:
    return [
        segment.id,
        segment.rows,
        segment.group,
        segment.version,
        segment.ingested_us,
        segment.token,
        segment.partition_key,
        segment.business_snapshot,
    ]


def pending_from_json(data: Sequence[Any]) -> PendingSegment:
    number, rows, group, version, ingested_us, token, partition_key, name = data
    return PendingSegment(
        id=count(number),
        rows=_segment_rows(rows, number),
        group=count(group),
        version=count(version),
        ingested_us=moment(ingested_us),
        token=None if token is None else text(token),
        partition_key=None if partition_key is None else text(partition_key),
        business_snapshot=None if name is None else business_snapshot(name),
    )


def discarded_to_json(discarded: DiscardedSegment) -> list[Any]:
    return [discarded.path, *segment_to_json(discarded.segment)]


def discarded_from_json(data: Sequence[Any]) -> DiscardedSegment:
    path, *segment = data
    return DiscardedSegment(path=own_path(PathKind.DATA, path), segment=segment_from_json(segment))


def segment_to_json(segment: Segment) -> list[int]:
    facts = [segment.id, segment.rows, segment.group]
    if segment.row_base is None or segment.visible_since is None:
        return facts
    return [*facts, segment.row_base, segment.visible_since]


def segment_from_json(data: Sequence[Any]) -> Segment:
    number, rows, group, *visible = data
    segment = Segment(id=count(number), rows=_segment_rows(rows, number), group=count(group))
    if not visible:
        return segment
    row_base, visible_since = map(count, visible)
    if not is_count(row_base + segment.rows):
        raise ValueError(f"the row ids of segment {number} from {row_base:,} are beyond 63 bits")
    return replace(segment, row_base=row_base, visible_since=visible_since)


def _segment_rows(rows: Any, number: Any) -> int:
    if not 1 <= count(rows) <= MAX_SEGMENT_ROWS:
        raise ValueError(
            f"segment {number} has {rows:,} rows; a segment has 1 to {MAX_SEGMENT_ROWS:,}"
        )
    return int(rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """The number of the job that put rows in Z-order, and the columns' field ids.

    The files of one job hardly overlap in these columns.
    """

    number: int
    columns: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DataFile:
    """A file of rows.

    - `crc32` covers the whole file, `footer_crc32` its last `footer_bytes`.
    - `codec` is empty for the default compression.
    - `floor` is the last floor for which a rewrite dropped rows. Of the rows that could be dropped
      at that floor, the file holds only deletes that must stay.
    - `first_row_id` is the first of the row ids that are reserved for a file of a rewrite. The
      commit of the rewrite does not have them yet.
    """

    path: str
    size: int
    crc32: int
    footer_bytes: int
    footer_crc32: int
    rows: int
    group: int
    segments: tuple[int, ...]
    bounds: Mapping[int, Bounds] = field(default_factory=dict)
    cluster: Cluster | None = None
    codec: str = ""
    floor: int | None = None
    first_row_id: int | None = None


def is_ingested(file: DataFile) -> bool:
    """Return whether an ingest wrote the file: a row's position is its offset."""
    # I11: other files hold rows of several segments, or have the number of a rewrite.
    return len(file.segments) == 1 and job_number(file.path) == segment_part(file.segments[0])


@dataclass(frozen=True, slots=True, kw_only=True)
class LogFile:
    """A segment log: a file of UNTIL events, sorted by (segment, offset).

    `version` is the commit that added the events. A merged log has the newest version of its
    events, and does not name their next rows.
    """

    path: str
    size: int
    crc32: int
    events: int
    groups: tuple[int, ...]
    least_until: int
    greatest_until: int
    version: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFile:
    """A sorted run of the key store, with the first word of its first and last hash."""

    path: str
    size: int
    crc32: int
    entries: int
    hash_low: int
    hash_high: int
    greatest_delta: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SideFile:
    """A file of lines of JSON, for a list that is too long for its commit."""

    path: str
    size: int
    crc32: int


def side_to_json(side: SideFile) -> list[Any]:
    return [side.path, side.size, side.crc32]


def side_from_json(data: Sequence[Any]) -> SideFile:
    return SideFile(path=own_path(PathKind.SIDE, data[0]), size=count(data[1]), crc32=crc(data[2]))


def log_to_json(log: LogFile) -> dict[str, Any]:
    return {
        "path": log.path,
        "size": log.size,
        "crc32": log.crc32,
        "events": log.events,
        "groups": list(log.groups),
        "until": [log.least_until, log.greatest_until],
        "version": log.version,
    }


def log_from_json(data: Mapping[str, Any]) -> LogFile:
    return LogFile(
        path=own_path(PathKind.LOG, data["path"]),
        size=count(data["size"]),
        crc32=crc(data["crc32"]),
        events=check_rows(count(data["events"]), count(data["size"])),
        groups=counts(data["groups"]),
        least_until=word(data["until"][0]),
        greatest_until=word(data["until"][1]),
        version=word(data["version"]),
    )


def run_to_json(run: RunFile) -> dict[str, Any]:
    return {
        "path": run.path,
        "size": run.size,
        "crc32": run.crc32,
        "entries": run.entries,
        "hashes": [run.hash_low, run.hash_high],
        "greatest_delta": run.greatest_delta,
    }


def run_from_json(data: Mapping[str, Any]) -> RunFile:
    if count(data["entries"]) * BYTES_AN_ENTRY > count(data["size"]):
        raise ValueError(f"a run of {data['size']:,} bytes cannot hold {data['entries']:,} entries")
    return RunFile(
        path=own_path(PathKind.RUN, data["path"]),
        size=count(data["size"]),
        crc32=crc(data["crc32"]),
        entries=data["entries"],
        hash_low=hash_word(data["hashes"][0]),
        hash_high=hash_word(data["hashes"][1]),
        greatest_delta=word(data["greatest_delta"]),
    )
