"""What a read has to look at: which files whole, which through the filter, which not at all."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from enum import Enum

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyroaring import BitMap

from opal_lake.bitmap import Bitmaps, Marks
from opal_lake.columns import physical_schema, to_logical
from opal_lake.data_file import decode_file
from opal_lake.errors import InvalidInputError, NotFoundError
from opal_lake.ids import segment_part
from opal_lake.ordering import encode_order, from_order, to_order
from opal_lake.prune import Predicate, may_match
from opal_lake.schema import OFFSET, SEGMENT, Atomic, decimal_parts
from opal_lake.segment import DataFile, Segment
from opal_lake.snapshot import Snapshot
from opal_lake.storage.protocol import Storage
from opal_lake.storage.verified import read_verified
from opal_lake.table_spec import TableSpec
from opal_lake.visibility import invalid_rows

_KEYS_SHOWN = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadPlan:
    """`plain` files have only visible rows, `mixed` ones need the filter by `invalid` rows, and by time where `until` lies within them."""

    snapshot: Snapshot
    until: int | None
    plain: tuple[DataFile, ...]
    mixed: tuple[DataFile, ...]
    invalid: Bitmaps
    skipped: int

    @property
    def files(self) -> tuple[DataFile, ...]:
        return self.plain + self.mixed


def event_time_of(snapshot: Snapshot, event_time: object | None) -> int | None:
    """The delta column's 64-bit form of what the user wrote, if it can still be read."""
    if event_time is None:
        return None
    delta, floor = snapshot.spec.delta, snapshot.root.floor
    assert isinstance(delta.type, Atomic)
    until = encode_order(event_time, delta.type, name="event_time")
    if floor is not None and until < floor:
        raise NotFoundError(f"event time {event_time} is beyond the window; the oldest readable one is {from_order(floor, delta.type)}")
    return until


def segments_of_partition(snapshot: Snapshot, partition_key: str) -> frozenset[int]:
    """The segments of the ingests that carry a partition key. A key that none carries is an error: it is more likely a slip than empty."""
    numbers = snapshot.partitions.get(partition_key)
    if numbers is None:
        known = sorted(snapshot.partitions)
        have = f"the last by name are {', '.join(map(repr, known[-_KEYS_SHOWN:]))}" if known else "no ingest gave one"
        uri, version = snapshot.storage.uri, snapshot.version
        raise NotFoundError(f"{uri} has no ingest of partition key {partition_key!r} up to version {version}; {have}")
    return frozenset(segment for segment in snapshot.segments if segment_part(segment) in numbers)


def segments_after(snapshot: Snapshot, earlier: Snapshot) -> frozenset[int]:
    """The segments whose rows became visible after an earlier version."""
    if earlier.version > snapshot.version:
        raise InvalidInputError(f"after={earlier.version} is beyond version {snapshot.version}; give an earlier version")
    before = earlier.segments.keys() - earlier.pending
    return frozenset(snapshot.segments.keys() - snapshot.pending - before)


def narrowed(snapshot: Snapshot, only: frozenset[int], invalid: Bitmaps) -> Bitmaps:
    """The bitmaps of a read that wants the rows of some segments only: to it, all rows of the others are invalid."""
    others = {number: BitMap(range(segment.rows)) for number, segment in snapshot.segments.items() if number not in only}
    return {**invalid, **others}


class Fate(Enum):
    """What a read does with a file, and why."""

    PENDING = "its rows are not visible yet"
    LATER = "its rows are dated after the event time"
    PRUNED = "its bounds rule the filter out"
    DEAD = "none of its rows is visible"
    MIXED = "read through the filter"
    PLAIN = "read whole"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sieve:
    """What a read wants to see."""

    snapshot: Snapshot
    until: int | None
    predicate: Predicate | None
    invalid: Bitmaps

    def fate(self, file: DataFile) -> Fate:
        if not self.snapshot.pending.isdisjoint(file.segments):
            return Fate.PENDING
        low, high = (None, None) if self.until is None else delta_bounds(file, self.snapshot.spec)
        if self.until is not None and low is not None and low > self.until:
            return Fate.LATER
        if self.predicate is not None and not may_match(self.predicate, file.bounds, file.rows):
            return Fate.PRUNED
        if _is_dead(file, self.snapshot.segments, self.invalid):
            return Fate.DEAD
        is_cut = self.until is not None and (high is None or high > self.until)
        return Fate.MIXED if is_cut or any(segment in self.invalid for segment in file.segments) else Fate.PLAIN


def sieve_of(snapshot: Snapshot, until: int | None, predicate: Predicate | None = None, invalid: Bitmaps | None = None) -> Sieve:
    """`invalid` when the caller has the bitmaps already."""
    bitmaps = invalid_rows(snapshot, until) if invalid is None else invalid
    return Sieve(snapshot=snapshot, until=until, predicate=predicate, invalid=bitmaps)


def plan_read(snapshot: Snapshot, until: int | None, predicate: Predicate | None = None, invalid: Bitmaps | None = None) -> ReadPlan:
    """Sort the files."""
    sieve = sieve_of(snapshot, until, predicate, invalid)
    fates: dict[Fate, list[DataFile]] = {fate: [] for fate in Fate}
    for file in snapshot.files.values():
        fates[sieve.fate(file)].append(file)
    plain, mixed = tuple(fates[Fate.PLAIN]), tuple(fates[Fate.MIXED])
    used = {segment for file in mixed for segment in file.segments}
    needed = {segment: bitmap for segment, bitmap in sieve.invalid.items() if segment in used}
    skipped = sum(len(fates[fate]) for fate in (Fate.LATER, Fate.PRUNED, Fate.DEAD))
    return ReadPlan(snapshot=snapshot, until=until, plain=plain, mixed=mixed, invalid=needed, skipped=skipped)


def _is_dead(file: DataFile, segments: Mapping[int, Segment], bitmaps: Bitmaps) -> bool:
    """Only said of a file whose segments are invalid as a whole, wherever their rows lie."""
    return all(segment in bitmaps and len(bitmaps[segment]) >= segments[segment].rows for segment in file.segments)


def delta_bounds(file: DataFile, spec: TableSpec) -> tuple[int | None, int | None]:
    """Least and greatest delta of a file in its 64-bit form, None where unknown."""
    bounds = file.bounds.get(spec.delta_id)
    if bounds is None:
        return None, None
    assert isinstance(spec.delta.type, Atomic)
    parts = decimal_parts(spec.delta.type.name)
    scale = parts[1] if parts else 0
    low, high = (None if value is None else int(Decimal(str(value)).scaleb(scale)) for value in (bounds.low, bounds.high))
    return low, high


@dataclass(frozen=True, slots=True, kw_only=True)
class FileRead:
    """All that reading one file's visible rows takes, for this process or for a worker."""

    storage: Storage
    spec: TableSpec
    file: DataFile
    until: int | None
    invalid: Bitmaps


def file_reads(plan: ReadPlan) -> list[FileRead]:
    """The plan, file by file."""
    return [
        FileRead(
            storage=plan.snapshot.storage,
            spec=plan.snapshot.spec,
            file=file,
            until=plan.until,
            invalid={segment: plan.invalid[segment] for segment in file.segments if segment in plan.invalid},
        )
        for file in plan.files
    ]


def read_rows(plan: ReadPlan, columns: Sequence[str] | None) -> pa.Table:
    """The visible rows, read in this process."""
    spec = plan.snapshot.spec
    parts = [read_file(part, columns) for part in file_reads(plan)]
    return pa.concat_tables(parts) if parts else to_logical(physical_schema(spec).empty_table(), spec, columns)


def read_file(part: FileRead, columns: Sequence[str] | None) -> pa.Table:
    """The visible rows of one file, with logical names and types."""
    spec = part.spec
    fields = spec.schema.fields if columns is None else [spec.schema.field(name) for name in columns]
    wanted = dict.fromkeys([*(field.physical for field in fields), spec.delta.physical, SEGMENT, OFFSET])
    rows = decode_file(read_verified(part.storage, part.file), spec, list(wanted), part.file.path)
    hidden = hidden_rows(rows, part)
    return to_logical(rows.filter(pa.array(~hidden)) if hidden.any() else rows, spec, columns)


def hidden_rows(rows: pa.Table, part: FileRead) -> npt.NDArray[np.bool_]:
    """Of a file's rows, those that are not visible."""
    hidden = Marks.of(part.invalid).at(rows[SEGMENT].to_numpy(), rows[OFFSET].to_numpy())
    if part.until is not None:
        delta = part.spec.delta
        assert isinstance(delta.type, Atomic)
        hidden |= to_order(rows[delta.physical], delta.type)[0] > part.until
    return hidden
