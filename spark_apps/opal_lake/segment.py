"""The nouns of the data management metadata: segments, data files, and the files of the log management metadata."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from opal_lake.bounds import Bounds


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """The rows of one ingested file. Its id and its row count never change, wherever its rows move."""

    id: int
    rows: int
    group: int


def segment_to_json(segment: Segment) -> list[int]:
    return [segment.id, segment.rows, segment.group]


def segment_from_json(data: Sequence[int]) -> Segment:
    return Segment(id=data[0], rows=data[1], group=data[2])


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Which job put rows in Z-order, by which columns (their field ids): files of one job hardly overlap."""

    number: int
    columns: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DataFile:
    """A file of rows. `crc32` covers all of it, `footer_crc32` its last `footer_bytes`, which readers trust.

    A `codec` is named where it is not the usual one. Of rows that can go at the `floor`, the file holds only deletes that must stay.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class LogFile:
    """UNTIL events, sorted by (segment, offset). `version` is the commit that brought them; of merged logs, the newest such one."""

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
    """A sorted run of the key store; the bounds are the high words of its least and greatest key hash."""

    path: str
    size: int
    crc32: int
    entries: int
    hash_low: int
    hash_high: int
