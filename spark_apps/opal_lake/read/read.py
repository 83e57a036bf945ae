"""A plan of a read: the files that it reads whole, reads through the filter, or skips."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from decimal import Decimal
from enum import Enum
from functools import partial
from itertools import groupby

import pyarrow as pa
from pyroaring import BitMap

from opal_lake.arrays import BoolArray
from opal_lake.data.bounds import Bounds, bounds_now, bounds_of_absent
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
# Small files are read and filtered together, up to so many. A larger file is read alone
_MAX_TOGETHER = 256
_SMALL_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadPlan:
    """The files of a read, and how many files it skips.

    `plain` files have only visible rows. Rows of `mixed` files may be among the `invalid` ones, or
    later than `as_of`.
    """

    snapshot: Snapshot
    as_of: int | None
    plain: tuple[DataFile, ...]
    mixed: tuple[DataFile, ...]
    invalid: Bitmaps
    skipped: int

    @property
    def files(self) -> tuple[DataFile, ...]:
        """All files that are read."""
        return self.plain + self.mixed


def event_time_of(snapshot: Snapshot, event_time: object | None) -> int | None:
    """Encode an event time in the delta column's order form.

    Raises NotFoundError if it is before the floor: rows of that time may have been dropped.
    """
    if event_time is None:
        return None
    snapshot.spec.require_keys("event_time")
    delta, floor = snapshot.spec.delta, snapshot.root.floor
    assert isinstance(delta.type, Atomic)
    as_of = encode_order(event_time, delta.type, name="event_time")
    if floor is not None and as_of < floor:
        raise NotFoundError(
            f"event_time={event_time} is before {from_order(floor, delta.type)}, the oldest "
            "readable event time; give this one or a later one"
        )
    return as_of


def segments_of_partition(snapshot: Snapshot, partition_key: str) -> frozenset[int]:
    """Return the segments that were ingested under a partition key.

    Raises NotFoundError for an unknown key: a typo is more likely than an empty partition.
    """
    ingests = snapshot.partitions.get(partition_key)
    if ingests is None:
        raise _unknown_partition_key(snapshot, partition_key)
    return frozenset(segment for segment in snapshot.segments if segment_part(segment) in ingests)


def _unknown_partition_key(snapshot: Snapshot, partition_key: str) -> NotFoundError:
    known = sorted(snapshot.partitions)
    if known:
        last = ", ".join(map(repr, known[-_KEYS_SHOWN:]))
        hint = f"give one of its partition keys, the last of which by name are {last}"
    else:
        hint = "no ingest has a partition key"
    return NotFoundError(
        f"{snapshot.storage.uri} has no ingest of partition key {partition_key!r} up to version "
        f"{snapshot.version}; {hint}"
    )


def visible_ingests(snapshot: Snapshot) -> dict[str, frozenset[int]]:
    """Return the numbers of the visible ingests of each partition key that has any.

    An ingest is visible if none of its rows is pending. An ingest without rows is visible if no
    other ingest under its partition key has pending rows.
    """
    waiting = {segment_part(segment) for segment in snapshot.pending}
    with_rows: set[int] = set()
    if waiting:  # only then: the list of segments may be large
        with_rows = {segment_part(segment) for segment in snapshot.segments}
    visible: dict[str, frozenset[int]] = {}
    for key, ingests in snapshot.partitions.items():
        visible_of_key = ingests - waiting
        if ingests & waiting:
            visible_of_key &= with_rows
        if visible_of_key:
            visible[key] = visible_of_key
    return visible


def segments_after(
    snapshot: Snapshot, earlier: Snapshot | None, read_commit: Callable[[int], Commit]
) -> frozenset[int]:
    """Return the segments whose rows became visible after an earlier version.

    Without an earlier version, all visible segments are returned. A segment that a restore brings
    back is not new if the rows were visible before the earlier version. The earlier version may
    lack such a segment, because a major compaction has dropped its last row: only the commits show
    it then.
    """
    if earlier is None:
        return frozenset(snapshot.segments.keys() - snapshot.pending)
    if earlier.version > snapshot.version:
        raise InvalidInputError(
            f"after={earlier.version} is later than version {snapshot.version}, which is read; "
            "give an earlier version"
        )
    fresh = snapshot.segments.keys() - snapshot.pending
    fresh -= earlier.segments.keys() - earlier.pending
    # Without a restore and dropped rows, the segments of both states show what is new
    has_restore = snapshot.root.epoch != earlier.root.epoch
    if has_restore and earlier.root.floor is not None and fresh:
        fresh &= _processed_since_parting(snapshot, earlier, read_commit)
    return frozenset(fresh)


def _processed_since_parting(
    snapshot: Snapshot, earlier: Snapshot, read_commit: Callable[[int], Commit]
) -> frozenset[int]:
    """Return the segments that were processed on the way to the later version only.

    Both versions are followed back to the version that they have in common. From a restore, the way
    back leads to the version that it restored.
    """
    known = {commit.version: commit for commit in (*earlier.commits, *snapshot.commits)}
    ends = {"later": snapshot.version, "earlier": earlier.version}
    processed: dict[str, set[int]] = {"later": set(), "earlier": set()}
    while ends["later"] != ends["earlier"]:
        # The later of the two takes a step back, until both are at one version
        side = max(ends, key=lambda name: ends[name])
        version = ends[side]
        try:
            commit = known.get(version) or read_commit(version)
        except NotFoundError as error:
            raise NotFoundError(
                f"{snapshot.storage.uri}: after={earlier.version} needs the commit of version "
                f"{version}, because a restore has brought rows back since. This commit has "
                "expired; read without after"
            ) from error
        restored = commit.actions.restored
        if restored is None:
            processed[side] |= commit.actions.processed_ids
            ends[side] = version - 1
        else:
            ends[side] = restored.version
    return frozenset(processed["later"] - processed["earlier"])


def narrowed(snapshot: Snapshot, only: frozenset[int], invalid: Bitmaps) -> Bitmaps:
    """Return the bitmaps with all rows of unwanted segments marked as invalid."""
    bitmaps = {**invalid}
    for number, segment in snapshot.segments.items():
        if number not in only:
            bitmaps[number] = BitMap(range(segment.rows))
    return bitmaps


class FileAction(Enum):
    """A read's action on a file, with its reason."""

    PENDING = "its rows are not visible yet"
    LATER = "its rows are dated after the event time"
    PRUNED = "its bounds rule the filter out"
    DEAD = "none of its rows is visible"
    MIXED = "read through the filter"
    PLAIN = "read whole"


@dataclass(frozen=True, slots=True, kw_only=True)
class FileFilter:
    """A rule that decides for each file what a read does with it."""

    snapshot: Snapshot
    as_of: int | None
    predicate: Predicate | None
    invalid: Bitmaps

    def action(self, file: DataFile) -> FileAction:
        """Return what a read does with a file.

        Raises FormatError if metadata of the file does not fit the table.
        """
        try:
            return self._action(file)
        except (TypeError, ValueError, ArithmeticError, KeyError) as error:
            raise FormatError(
                f"{self.snapshot.storage.uri}/{file.path}: the bounds or segments that the "
                f"metadata records for the file do not fit the table ({error!r}); run `opal check`"
            ) from error

    def _action(self, file: DataFile) -> FileAction:
        if not self.snapshot.pending.isdisjoint(file.segments):
            return FileAction.PENDING
        may_have_later_rows = False
        if self.as_of is not None:
            low, high = delta_bounds(file, self.snapshot.spec)
            if low is not None and low > self.as_of:
                return FileAction.LATER
            may_have_later_rows = high is None or high > self.as_of
        if self.predicate is not None:
            bounds = bounds_of_all(file, self.snapshot.spec)
            if not may_match(self.predicate, bounds, file.rows):
                return FileAction.PRUNED
        if _is_dead(file, self.snapshot.segments, self.invalid):
            return FileAction.DEAD
        may_have_invalid_rows = any(segment in self.invalid for segment in file.segments)
        if may_have_later_rows or may_have_invalid_rows:
            return FileAction.MIXED
        return FileAction.PLAIN


def file_filter(
    snapshot: Snapshot,
    as_of: int | None,
    predicate: Predicate | None = None,
    invalid: Bitmaps | None = None,
) -> FileFilter:
    """Return the filter of a read; `invalid` are the invalid rows, if already known."""
    bitmaps = invalid_rows(snapshot, as_of) if invalid is None else invalid
    return FileFilter(snapshot=snapshot, as_of=as_of, predicate=predicate, invalid=bitmaps)


def plan_read(
    snapshot: Snapshot,
    as_of: int | None,
    predicate: Predicate | None = None,
    invalid: Bitmaps | None = None,
) -> ReadPlan:
    """Plan a read: decide for each file whether it is skipped, read whole or filtered."""
    files = file_filter(snapshot, as_of, predicate, invalid)
    files_by_action: dict[FileAction, list[DataFile]] = {action: [] for action in FileAction}
    for file in snapshot.files.values():
        files_by_action[files.action(file)].append(file)
    mixed = files_by_action[FileAction.MIXED]
    needed: Bitmaps = {}
    for file in mixed:
        needed |= _of_file(files.invalid, file)
    # Pending files do not count as skipped: their rows are not part of the state yet
    skipping = (FileAction.LATER, FileAction.PRUNED, FileAction.DEAD)
    return ReadPlan(
        snapshot=snapshot,
        as_of=as_of,
        plain=tuple(files_by_action[FileAction.PLAIN]),
        mixed=tuple(mixed),
        invalid=needed,
        skipped=sum(len(files_by_action[action]) for action in skipping),
    )


def files_by_keys(
    files: Sequence[DataFile], predicate: Predicate | None, spec: TableSpec
) -> tuple[DataFile, ...]:
    """Return the files that may hold keys for which a predicate is true.

    Only the bounds of key columns are used, so that all files with rows of such a key are returned.
    """
    if predicate is None:
        return tuple(files)
    files_read: list[DataFile] = []
    for file in files:
        bounds = {number: file.bounds[number] for number in spec.key_ids if number in file.bounds}
        if may_match(predicate, bounds, file.rows):
            files_read.append(file)
    return tuple(files_read)


def bounds_of_all(file: DataFile, spec: TableSpec) -> Mapping[int, Bounds]:
    """Return the bounds of all atomic columns in a file, by field id.

    Columns that were added after the file have no recorded bounds: all its rows have their initial
    value, or null. Bounds of a widened column are of its type of now.
    """
    schema = spec.schema
    if schema.created_id is None:
        return file.bounds
    bounds = {**file.bounds}
    for field in schema.fields:
        if field.id not in bounds and schema.is_added(field) and isinstance(field.type, Atomic):
            bounds[field.id] = bounds_of_absent(field, file.rows)
        elif field.earlier and field.id in bounds:
            bounds[field.id] = bounds_now(bounds[field.id], field)
    return bounds


def _is_dead(file: DataFile, segments: Mapping[int, Segment], bitmaps: Bitmaps) -> bool:
    """Return whether all rows of the file's segments are invalid, in any file."""
    return all(
        segment in bitmaps and len(bitmaps[segment]) >= segments[segment].rows
        for segment in file.segments
    )


def delta_bounds(file: DataFile, spec: TableSpec) -> tuple[int | None, int | None]:
    """Return the least and greatest delta of a file in order form; None if unknown."""
    bounds = file.bounds.get(spec.delta.id) if spec.has_keys else None
    if bounds is None:
        return None, None
    assert isinstance(spec.delta.type, Atomic)
    scale = 0
    precision_and_scale = decimal_parts(spec.delta.type.name)
    if precision_and_scale:
        _, scale = precision_and_scale
    return _unscaled(bounds.low, scale), _unscaled(bounds.high, scale)


def _unscaled(value: object, scale: int) -> int | None:
    """Return the order form of a bound: an integer, also for the text of a decimal."""
    if value is None:
        return None
    return int(Decimal(str(value)).scaleb(scale))


@dataclass(frozen=True, slots=True, kw_only=True)
class FileRead:
    """The inputs of a read of one file's visible rows, in this process or in a worker."""

    storage: Storage
    spec: TableSpec
    file: DataFile
    as_of: int | None
    invalid: Bitmaps


def file_reads(plan: ReadPlan) -> list[FileRead]:
    """Return the read of each file of a plan."""
    reads: list[FileRead] = []
    for file in plan.files:
        read = FileRead(
            storage=plan.snapshot.storage,
            spec=plan.snapshot.spec,
            file=file,
            as_of=plan.as_of,
            invalid=_of_file(plan.invalid, file),
        )
        reads.append(read)
    return reads


def _of_file(invalid: Bitmaps, file: DataFile) -> Bitmaps:
    """Return the bitmaps of a file's segments."""
    return {segment: invalid[segment] for segment in file.segments if segment in invalid}


def read_rows(
    plan: ReadPlan,
    columns: Sequence[str] | None,
    where: Condition | None = None,
    *,
    limit: int | None = None,
    with_ids: bool = False,
) -> pa.Table:
    """Read the visible rows in this process.

    With a limit, files are read in parts, until the limit is reached. With `with_ids`, the rows
    have the columns of their row ids.
    """
    spec = plan.snapshot.spec
    parts: list[pa.Table] = []
    rows = 0
    for part in _row_parts(plan, columns, where, in_parts=limit is not None, with_ids=with_ids):
        parts.append(part)
        rows += part.num_rows
        if limit is not None and rows >= limit:
            break
    if not parts:
        none = physical_schema(spec).empty_table()
        shown, _ = needed_names(spec, columns, where)
        empty = to_logical(none, spec, shown)
        return _with_ids(empty, none) if with_ids else empty
    return pa.concat_tables(parts).slice(0, limit)


def _row_parts(
    plan: ReadPlan,
    columns: Sequence[str] | None,
    where: Condition | None = None,
    *,
    in_parts: bool = False,
    with_ids: bool = False,
) -> Iterator[pa.Table]:
    """Yield the visible rows, of some files at a time.

    Small files are fetched at the same time, and their rows are filtered and converted together. A
    large file is read alone, whole or in parts.
    """
    spec = plan.snapshot.spec
    shown, needed = needed_names(spec, columns, where)
    fields = [spec.schema.field(name) for name in (needed if where else shown)]

    shown_columns = [*shown, SEGMENT, OFFSET] if with_ids else shown

    def shown_rows(rows: pa.Table, read: FileRead) -> pa.Table:
        stored = _without_hidden(rows, read)
        visible = to_fields(stored, read.spec, fields)
        if with_ids:
            visible = _with_ids(visible, stored)
        if not where:
            return visible
        return matching(visible, where).select(shown_columns)

    with ThreadPoolExecutor(READERS) as pool:
        for together in _together(file_reads(plan)):
            if in_parts and together[0].file.size > _SMALL_BYTES:
                (large,) = together
                stored = _stored_columns(large, fields)
                for part in column_parts(large.storage, large.file, spec, stored):
                    yield shown_rows(part, large)
                continue
            tables = pool.map(partial(_stored_rows, fields=fields), together)
            pairs = zip(tables, together, strict=True)
            # Older files may lack columns: only neighbours with the same columns are joined
            for _, alike in groupby(pairs, key=lambda pair: pair[0].column_names):
                rows, reads = zip(*alike, strict=True)
                invalid: Bitmaps = {}
                for read in reads:
                    invalid |= read.invalid
                yield shown_rows(pa.concat_tables(rows), replace(reads[0], invalid=invalid))


def _together(reads: Sequence[FileRead]) -> Iterator[list[FileRead]]:
    """Yield neighbouring small files together and large files alone, in their order."""
    small: list[FileRead] = []
    for read in reads:
        is_large = read.file.size > _SMALL_BYTES
        if small and (is_large or len(small) == _MAX_TOGETHER):
            yield small
            small = []
        if is_large:
            yield [read]
        else:
            small.append(read)
    if small:
        yield small


def read_fields(part: FileRead, fields: Sequence[Field]) -> pa.Table:
    """Read the visible rows of one file.

    The fields may have other names than in the table, and only some members of a struct, in any
    order.
    """
    stored = _without_hidden(_stored_rows(part, fields), part)
    return to_fields(stored, part.spec, fields)


def _stored_rows(part: FileRead, fields: Sequence[Field]) -> pa.Table:
    """Read all rows of a file: the fields, and the columns that show visibility."""
    columns = _stored_columns(part, fields)
    return read_columns(part.storage, part.file, part.spec, columns)


def _stored_columns(part: FileRead, fields: Sequence[Field]) -> list[str]:
    """Return the physical names of fields, and of columns that show visibility."""
    names = [field.physical for field in fields]
    if part.as_of is not None:
        names.append(part.spec.delta.physical)
    names += [SEGMENT, OFFSET]
    return list(dict.fromkeys(names))


def _without_hidden(rows: pa.Table, part: FileRead) -> pa.Table:
    """Return the visible ones among stored rows."""
    hidden = hidden_rows(rows, part)
    # `filter` copies rows even if it drops none
    if hidden.any():
        rows = rows.filter(pa.array(~hidden))
    return rows


def _with_ids(rows: pa.Table, stored: pa.Table) -> pa.Table:
    """Return rows with the row ids that they have as stored rows."""
    for name in (SEGMENT, OFFSET):
        rows = rows.append_column(name, stored[name])
    return rows


def hidden_rows(rows: pa.Table, part: FileRead) -> BoolArray:
    """Return a mask of a file's rows that are not visible."""
    hidden = Marks.of(part.invalid).at(rows[SEGMENT].to_numpy(), rows[OFFSET].to_numpy())
    if part.as_of is not None:
        delta = part.spec.delta
        assert isinstance(delta.type, Atomic)
        order, _ = to_order(rows[delta.physical], delta.type)
        hidden |= order > part.as_of
    return hidden
