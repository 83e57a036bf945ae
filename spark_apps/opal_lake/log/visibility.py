"""Which rows are not visible at (version, event time): the newest bitmap base that serves, plus the events since (FORMAT, bitmaps)."""

import zlib
from collections.abc import Callable, Container, Iterable, Sequence
from functools import partial

from opal_lake import layout
from opal_lake.data.segment import LogFile
from opal_lake.errors import FormatError
from opal_lake.events.bitmap import (
    BitmapBase,
    Bitmaps,
    add_bitmaps,
    add_events,
    decode_base,
    encode_base,
)
from opal_lake.events.segment_log import Events, read_events
from opal_lake.ids import segment_name
from opal_lake.log.sections import MERGE_RATIO
from opal_lake.log.snapshot import Snapshot
from opal_lake.storage.verified import read_verified

FOLD_AT_LOGS = 4
FOLD_AT_EVENTS = 1_000_000
MANY_MARKS = (
    1 << 24
)  # rows; a run of marks takes a few bytes, whoever looks at them takes 4 for each
SMALL_BASE_BYTES = 16 << 10  # smaller ones are merged into the next one in any case


def invalid_rows(
    snapshot: Snapshot, as_of: int | None = None, groups: Container[int] | None = None
) -> Bitmaps:
    """Rows with an UNTIL event, by segment; with `as_of`, only events up to that time count. Segments without any are absent.

    With `groups`, the segments of other groups may be absent too.
    """
    bitmaps: Bitmaps = {}
    bases = (
        snapshot.bases if as_of is None else ()
    )  # a base holds the events of all times, so it serves the end of time only
    for base in bases if groups is None else (base for base in bases if base.group in groups):
        add_bitmaps(bitmaps, read_base(snapshot, base))
    for log in logs_since(snapshot, bases):
        if as_of is not None and log.least_until > as_of:
            continue
        events = read_events(snapshot.storage, log)
        add_events(bitmaps, events if as_of is None else events.take(events.until <= as_of))
    return bitmaps


def logs_since(snapshot: Snapshot, bases: Sequence[BitmapBase]) -> Iterable[LogFile]:
    """The logs that the bases do not hold. Who folds takes up all logs: what is not in the newest base's group was of no group then."""
    return snapshot.logs_after(max((base.version for base in bases), default=-1))


def fold_bases(
    snapshot: Snapshot, read: Callable[[LogFile], Events] | None = None
) -> tuple[BitmapBase, ...]:
    """With one more bitmap base a group that has events since the last ones, once enough of them have come; else those.

    `read` returns the events of a log, for callers that have read some logs already.
    """
    read = read or partial(read_events, snapshot.storage)
    since = list(logs_since(snapshot, snapshot.bases))
    if len(since) < FOLD_AT_LOGS and sum(log.events for log in since) < FOLD_AT_EVENTS:
        return snapshot.bases
    new: Bitmaps = {}
    for log in since:
        add_events(new, read(log))
    groups = {group for log in since for group in log.groups} | (
        snapshot.root.groups.keys() - {base.group for base in snapshot.bases}
    )
    groups = groups or {
        *snapshot.root.groups
    }  # events of dropped rows alone are of no group, and to be read once
    bases: list[BitmapBase] = []
    for group in sorted({*groups, *(base.group for base in snapshot.bases)}):
        standing = [base for base in snapshot.bases if base.group == group]
        bases += (
            _grown(snapshot, group, standing, _of_group(snapshot, group, new))
            if group in groups
            else standing
        )
    return tuple(bases)


def _of_group(snapshot: Snapshot, group: int, bitmaps: Bitmaps) -> Bitmaps:
    """Of a segment whose rows were dropped, events may be left. With one group nothing has to be looked up."""
    if len(snapshot.root.groups) == 1:
        return bitmaps
    segments = snapshot.segments
    return {
        number: marks
        for number, marks in bitmaps.items()
        if number in segments and segments[number].group == group
    }


def _grown(
    snapshot: Snapshot, group: int, standing: list[BitmapBase], new: Bitmaps
) -> list[BitmapBase]:
    """A base as large as the one before, or nearly, takes that in: a row is written again about once each time that they double."""
    kept = list(standing)
    data = _encoded(snapshot, group, new, kept)
    while kept and kept[-1].size <= max(MERGE_RATIO * len(data), SMALL_BASE_BYTES):
        older = read_base(snapshot, kept.pop())
        add_bitmaps(older, new)
        new = older
        data = _encoded(snapshot, group, new, kept)
    root, after = snapshot.root, kept[-1].version if kept else None
    path = layout.bitmap_path(group, root.version, root.write_id, after)
    if not snapshot.storage.put_if_absent(path, data):
        data = snapshot.storage.get(path)  # another writer's, with all these marks too
    size, crc32 = len(data), zlib.crc32(data)
    return [
        *kept,
        BitmapBase(
            group=group,
            path=path,
            size=size,
            crc32=crc32,
            version=root.version,
            write_id=root.write_id,
            after=after,
        ),
    ]


def _encoded(snapshot: Snapshot, group: int, bitmaps: Bitmaps, below: list[BitmapBase]) -> bytes:
    root = snapshot.root
    origin: dict[str, object] = {
        "table_id": root.table_id,
        "version": root.version,
        "write_id": root.write_id,
        "group": group,
    }
    return encode_base(bitmaps, origin | ({"after": below[-1].version} if below else {}))


def read_base(snapshot: Snapshot, base: BitmapBase) -> Bitmaps:
    """Read a base; FormatError if it marks so many rows of a segment that it cannot have them."""
    bitmaps = decode_base(read_verified(snapshot.storage, base), base.path)
    for number, rows in bitmaps.items():
        if len(rows) <= MANY_MARKS:
            continue
        segment = snapshot.segments.get(number)  # None: its rows are gone, and nobody asks for them
        if segment is not None and rows.max() >= segment.rows:
            raise FormatError(
                f"{snapshot.storage.uri}/{base.path} marks row {rows.max():,} of segment "
                f"{segment_name(number)}, which has {segment.rows:,}; "
                "delete it, it is derived and will be made again"
            )
    return bitmaps
