"""What a read has to look at: which files whole, which through the filter, which not at all."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from decimal import Decimal
from enum import Enum
from functools import partial
from itertools import groupby

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyroaring import BitMap

from opal_lake.data.bounds import Bounds
from opal_lake.data.column_read import column_parts, read_columns
from opal_lake.data.columns import physical_schema, to_fields, to_logical
from opal_lake.data.prune import Predicate, may_match
from opal_lake.data.segment import DataFile, Segment
from opal_lake.definition.conditions.condition import Condition
from opal_lake.definition.ordering import encode_order, from_order, to_order
from opal_lake.definition.schema import OFFSET, SEGMENT, Atomic, Field, decimal_parts
from opal_lake.definition.table_spec import TableSpec
from opal_lake.errors import FormatError, InvalidInputError, NotFoundError
from opal_lake.events.bitmap import Bitmaps, Marks
from opal_lake.ids import segment_part
from opal_lake.log.commit import Commit
from opal_lake.log.snapshot import Snapshot
from opal_lake.log.visibility import invalid_rows
from opal_lake.read.where import matching, needed_names
from opal_lake.storage.protocol import READERS, Storage

_KEYS_SHOWN = 5
_TOGETHER, _SMALL_BYTES = 256, 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadPlan:
    """`plain` files have only visible rows, `mixed` ones need the filter by `invalid` rows, and by time where `as_of` lies within them."""

    snapshot: Snapshot
    as_of: int | None
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
    snapshot.spec.require_keys("event_time")
    delta, floor = snapshot.spec.delta, snapshot.root.floor
    assert isinstance(delta.type, Atomic)
    as_of = encode_order(event_time, delta.type, name="event_time")
    if floor is not None and as_of < floor:
        raise NotFoundError(
            f"event time {event_time} is before {from_order(floor, delta.type)}, the oldest readable one; give that one or a later one"
        )
    return as_of


def segments_of_partition(snapshot: Snapshot, partition_key: str) -> frozenset[int]:
    """The segments of the ingests that carry a partition key. A key that none carries is an error: it is more likely a slip than empty."""
    numbers = snapshot.partitions.get(partition_key)
    if numbers is None:
        known = sorted(snapshot.partitions)
        have = (
            f"the last by name are {', '.join(map(repr, known[-_KEYS_SHOWN:]))}"
            if known
            else "no ingest gave one"
        )
        uri, version = snapshot.storage.uri, snapshot.version
        raise NotFoundError(
            f"{uri} has no ingest of partition key {partition_key!r} up to version {version}; {have}"
        )
    return frozenset(segment for segment in snapshot.segments if segment_part(segment) in numbers)


def visible_ingests(snapshot: Snapshot) -> dict[str, frozenset[int]]:
    """The numbers of the ingests of each partition key whose rows no MetaGen has to look at any more.

    As long as rows of a key are pending, its ingests without rows do not count.
    """
    waiting = {segment_part(segment) for segment in snapshot.pending}
    visible = {key: numbers - waiting for key, numbers in snapshot.partitions.items()}
    for key, numbers in snapshot.partitions.items():
        if numbers & waiting:
            visible[key] &= {segment_part(segment) for segment in snapshot.segments}
    return {key: numbers for key, numbers in visible.items() if numbers}


def segments_after(
    snapshot: Snapshot, earlier: Snapshot | None, read_commit: Callable[[int], Commit]
) -> frozenset[int]:
    """Return the segments whose rows became visible after an earlier version; after None all.

    A segment that a restore brings back is not new if the earlier version had it, be it that a
    major compaction had dropped its last row by then. Only the commits tell that.
    """
    if earlier is None:
        return frozenset(snapshot.segments.keys() - snapshot.pending)
    if earlier.version > snapshot.version:
        raise InvalidInputError(
            f"after={earlier.version} is beyond version {snapshot.version}; give an earlier version"
        )
    fresh = snapshot.segments.keys() - snapshot.pending
    fresh -= earlier.segments.keys() - earlier.pending
    has_restore = snapshot.root.epoch != earlier.root.epoch
    if has_restore and earlier.root.floor is not None and fresh:
        fresh &= _processed_since_parting(snapshot, earlier, read_commit)
    return frozenset(fresh)


def _processed_since_parting(
    snapshot: Snapshot, earlier: Snapshot, read_commit: Callable[[int], Commit]
) -> frozenset[int]:
    """Return what only the later version has processed since the two had a state in common.

    Both are followed back to that state, from a restore to the version that it restored.
    """
    known = {commit.version: commit for commit in (*earlier.commits, *snapshot.commits)}
    ends = {"later": snapshot.version, "earlier": earlier.version}
    processed: dict[str, set[int]] = {"later": set(), "earlier": set()}
    while ends["later"] != ends["earlier"]:
        side = max(ends, key=lambda name: ends[name])
        version = ends[side]
        try:
            commit = known.get(version) or read_commit(version)
        except NotFoundError as error:
            raise NotFoundError(
                f"{snapshot.storage.uri}: after={earlier.version} needs the commit of version {version}, as a restore "
                f"has brought rows back since, and it has expired; read without after"
            ) from error
        restored = commit.actions.restored
        if restored is None:
            processed[side] |= commit.actions.processed_ids
            ends[side] = version - 1
        else:
            ends[side] = restored.version
    return frozenset(processed["later"] - processed["earlier"])


def narrowed(snapshot: Snapshot, only: frozenset[int], invalid: Bitmaps) -> Bitmaps:
    """The bitmaps of a read that wants the rows of some segments only: to it, all rows of the others are invalid."""
    others = {
        number: BitMap(range(segment.rows))
        for number, segment in snapshot.segments.items()
        if number not in only
    }
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
class FileFilter:
    """What a read wants to see."""

    snapshot: Snapshot
    as_of: int | None
    predicate: Predicate | None
    invalid: Bitmaps

    def fate(self, file: DataFile) -> Fate:
        try:
            return self._fate(file)
        except (TypeError, ValueError, ArithmeticError, KeyError) as error:
            what = f"the bounds or segments that the table says it has are none of this table ({error!r})"
            raise FormatError(
                f"{self.snapshot.storage.uri}/{file.path}: {what}; run `opal check`"
            ) from error

    def _fate(self, file: DataFile) -> Fate:
        if not self.snapshot.pending.isdisjoint(file.segments):
            return Fate.PENDING
        low, high = (None, None) if self.as_of is None else delta_bounds(file, self.snapshot.spec)
        if self.as_of is not None and low is not None and low > self.as_of:
            return Fate.LATER
        if self.predicate is not None and not may_match(
            self.predicate, bounds_of_all(file, self.snapshot.spec), file.rows
        ):
            return Fate.PRUNED
        if _is_dead(file, self.snapshot.segments, self.invalid):
            return Fate.DEAD
        is_cut = self.as_of is not None and (high is None or high > self.as_of)
        return (
            Fate.MIXED
            if is_cut or any(segment in self.invalid for segment in file.segments)
            else Fate.PLAIN
        )


def file_filter(
    snapshot: Snapshot,
    as_of: int | None,
    predicate: Predicate | None = None,
    invalid: Bitmaps | None = None,
) -> FileFilter:
    """`invalid` when the caller has the bitmaps already."""
    bitmaps = invalid_rows(snapshot, as_of) if invalid is None else invalid
    return FileFilter(snapshot=snapshot, as_of=as_of, predicate=predicate, invalid=bitmaps)


def plan_read(
    snapshot: Snapshot,
    as_of: int | None,
    predicate: Predicate | None = None,
    invalid: Bitmaps | None = None,
) -> ReadPlan:
    """Sort the files."""
    files = file_filter(snapshot, as_of, predicate, invalid)
    fates: dict[Fate, list[DataFile]] = {fate: [] for fate in Fate}
    for file in snapshot.files.values():
        fates[files.fate(file)].append(file)
    plain, mixed = tuple(fates[Fate.PLAIN]), tuple(fates[Fate.MIXED])
    used = {segment for file in mixed for segment in file.segments}
    needed = {segment: bitmap for segment, bitmap in files.invalid.items() if segment in used}
    skipped = sum(len(fates[fate]) for fate in (Fate.LATER, Fate.PRUNED, Fate.DEAD))
    return ReadPlan(
        snapshot=snapshot, as_of=as_of, plain=plain, mixed=mixed, invalid=needed, skipped=skipped
    )


def files_by_keys(
    files: Sequence[DataFile], predicate: Predicate | None, spec: TableSpec
) -> tuple[DataFile, ...]:
    """Without those that the predicate rules out by the bounds of key columns: the rest holds all rows of a key that it may be true for."""

    def bounds(file: DataFile) -> dict[int, Bounds]:
        return {number: file.bounds[number] for number in spec.key_ids if number in file.bounds}

    return tuple(
        file for file in files if predicate is None or may_match(predicate, bounds(file), file.rows)
    )


def bounds_of_all(file: DataFile, spec: TableSpec) -> Mapping[int, Bounds]:
    """With those of columns that are younger than the file: all null. Every column without parts that a file has, has bounds."""
    schema = spec.schema
    if schema.created_id is None:
        return file.bounds
    added = [
        field.id
        for field in schema.fields
        if schema.is_added(field) and isinstance(field.type, Atomic)
    ]
    absent = Bounds(low=None, high=None, nulls=file.rows)
    return {**dict.fromkeys(added, absent), **file.bounds}


def _is_dead(file: DataFile, segments: Mapping[int, Segment], bitmaps: Bitmaps) -> bool:
    """True only if all rows of all segments of the file are invalid, in whichever file they are."""
    return all(
        segment in bitmaps and len(bitmaps[segment]) >= segments[segment].rows
        for segment in file.segments
    )


def delta_bounds(file: DataFile, spec: TableSpec) -> tuple[int | None, int | None]:
    """Least and greatest delta of a file in its 64-bit form, None where unknown."""
    bounds = file.bounds.get(spec.delta.id) if spec.has_keys else None
    if bounds is None:
        return None, None
    assert isinstance(spec.delta.type, Atomic)
    parts = decimal_parts(spec.delta.type.name)
    scale = parts[1] if parts else 0
    low, high = (
        None if value is None else int(Decimal(str(value)).scaleb(scale))
        for value in (bounds.low, bounds.high)
    )
    return low, high


@dataclass(frozen=True, slots=True, kw_only=True)
class FileRead:
    """All that reading one file's visible rows takes, for this process or for a worker."""

    storage: Storage
    spec: TableSpec
    file: DataFile
    as_of: int | None
    invalid: Bitmaps


def file_reads(plan: ReadPlan) -> list[FileRead]:
    """The plan, file by file."""
    return [
        FileRead(
            storage=plan.snapshot.storage,
            spec=plan.snapshot.spec,
            file=file,
            as_of=plan.as_of,
            invalid={
                segment: plan.invalid[segment]
                for segment in file.segments
                if segment in plan.invalid
            },
        )
        for file in plan.files
    ]


def read_rows(
    plan: ReadPlan,
    columns: Sequence[str] | None,
    where: Condition | None = None,
    *,
    limit: int | None = None,
) -> pa.Table:
    """Return the visible rows, read in this process.

    With a limit, files are read in parts, and none behind the limit.
    """
    spec = plan.snapshot.spec
    parts: list[pa.Table] = []
    rows = 0
    for part in _row_parts(plan, columns, where, in_parts=limit is not None):
        parts.append(part)
        rows += part.num_rows
        if limit is not None and rows >= limit:
            break
    if not parts:
        return to_logical(physical_schema(spec).empty_table(), spec, columns)
    return pa.concat_tables(parts).slice(0, limit)


def _row_parts(
    plan: ReadPlan,
    columns: Sequence[str] | None,
    where: Condition | None = None,
    *,
    in_parts: bool = False,
) -> Iterator[pa.Table]:
    """Yield the visible rows, of some files at a time.

    Small files are fetched at once, and filtered and made logical together. A large file is read
    whole, or in parts.
    """
    spec = plan.snapshot.spec
    shown, read = needed_names(spec, columns, where)
    fields = [spec.schema.field(name) for name in (read if where else shown)]

    def shown_rows(rows: pa.Table, read: FileRead) -> pa.Table:
        visible = _visible(rows, read, fields)
        return matching(visible, where).select(shown) if where else visible

    with ThreadPoolExecutor(READERS) as pool:
        for together in _together(file_reads(plan)):
            if in_parts and together[0].file.size > _SMALL_BYTES:
                (large,) = together
                stored = _stored_columns(large, fields)
                for part in column_parts(large.storage, large.file, spec, stored):
                    yield shown_rows(part, large)
                continue
            tables = pool.map(partial(_stored_rows, fields=fields), together)
            for _, alike in groupby(
                zip(tables, together, strict=True), key=lambda pair: pair[0].column_names
            ):
                rows, reads = zip(*alike, strict=True)
                invalid = {
                    segment: marks for read in reads for segment, marks in read.invalid.items()
                }
                yield shown_rows(pa.concat_tables(rows), replace(reads[0], invalid=invalid))


def _together(reads: Sequence[FileRead]) -> Iterator[list[FileRead]]:
    """Small neighbours up to so many; a large file alone."""
    held: list[FileRead] = []
    for read in reads:
        if held and (len(held) == _TOGETHER or read.file.size > _SMALL_BYTES):
            yield held
            held = []
        held.append(read)
        if read.file.size > _SMALL_BYTES:
            yield held
            held = []
    if held:
        yield held


def read_fields(part: FileRead, fields: Sequence[Field]) -> pa.Table:
    """The visible rows of one file: fields of the table under any name, and some members of a struct in any order."""
    return _visible(_stored_rows(part, fields), part, fields)


def _stored_rows(part: FileRead, fields: Sequence[Field]) -> pa.Table:
    """All rows, with what tells whether they are visible."""
    columns = _stored_columns(part, fields)
    return read_columns(part.storage, part.file, part.spec, columns)


def _stored_columns(part: FileRead, fields: Sequence[Field]) -> list[str]:
    """The physical names of the fields, and of what tells whether their rows are visible."""
    delta = [] if part.as_of is None else [part.spec.delta.physical]
    names = [*(field.physical for field in fields), *delta, SEGMENT, OFFSET]
    return list(dict.fromkeys(names))


def _visible(rows: pa.Table, part: FileRead, fields: Sequence[Field]) -> pa.Table:
    hidden = hidden_rows(rows, part)
    return to_fields(rows.filter(pa.array(~hidden)) if hidden.any() else rows, part.spec, fields)


def hidden_rows(rows: pa.Table, part: FileRead) -> npt.NDArray[np.bool_]:
    """Of a file's rows, those that are not visible."""
    hidden = Marks.of(part.invalid).at(rows[SEGMENT].to_numpy(), rows[OFFSET].to_numpy())
    if part.as_of is not None:
        delta = part.spec.delta
        assert isinstance(delta.type, Atomic)
        hidden |= to_order(rows[delta.physical], delta.type)[0] > part.as_of
    return hidden
