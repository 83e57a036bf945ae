"""Hidden rows at a version and an event time (FORMAT, §10).

They are read from the newest bitmap bases, and from the events since.
"""

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
from opal_lake.log.snapshot import Snapshot
from opal_lake.log.tuning import DEFAULT_TUNING, Tuning
from opal_lake.storage.verified import read_verified

# Rows of a segment. A run of marks takes a few bytes, but 4 bytes a mark once they are looked at
MANY_MARKS = 1 << 24


def invalid_rows(
    snapshot: Snapshot, as_of: int | None = None, groups: Container[int] | None = None
) -> Bitmaps:
    """Return the rows with an UNTIL event, by segment.

    Segments without any are absent. With `as_of`, only events up to that time count. With `groups`,
    the segments of other groups may be absent, too.
    """
    bitmaps: Bitmaps = {}
    # A base holds the events of all times, so it serves only the end of time
    bases = snapshot.bases if as_of is None else ()
    for base in bases:
        if groups is None or base.group in groups:
            add_bitmaps(bitmaps, read_base(snapshot, base))
    for log in logs_since(snapshot, bases):
        if as_of is None:
            add_events(bitmaps, read_events(snapshot.storage, log))
        elif log.least_until <= as_of:
            events = read_events(snapshot.storage, log)
            add_events(bitmaps, events.take(events.until <= as_of))
    return bitmaps


def logs_since(snapshot: Snapshot, bases: Sequence[BitmapBase]) -> Iterable[LogFile]:
    """Return the logs that the bases do not hold.

    A fold takes up all logs: events that are not in the base of their group were of no group then.
    """
    newest = max((base.version for base in bases), default=-1)
    return snapshot.logs_after(newest)


def fold_bases(
    snapshot: Snapshot,
    read: Callable[[LogFile], Events] | None = None,
    *,
    tuning: Tuning = DEFAULT_TUNING,
) -> tuple[BitmapBase, ...]:
    """Return the bitmap bases, with a new one for each group that has many new events.

    The bases stay as they are until there are enough logs or events since. `read` returns the
    events of a log, for callers that have read some logs already.
    """
    read = read or partial(read_events, snapshot.storage)
    since = list(logs_since(snapshot, snapshot.bases))
    new_events = sum(log.events for log in since)
    if len(since) < tuning.fold_at_logs and new_events < tuning.fold_at_events:
        return snapshot.bases
    new: Bitmaps = {}
    for log in since:
        add_events(new, read(log))
    based_groups = {base.group for base in snapshot.bases}
    touched_groups = {group for log in since for group in log.groups}
    # Groups without a base get one as well. Events of dropped rows are of no group: if these are
    # the only ones, all groups get a base, so that these events are read only once.
    grown_groups = touched_groups | (snapshot.root.groups.keys() - based_groups)
    grown_groups = grown_groups or {*snapshot.root.groups}
    bases: list[BitmapBase] = []
    for group in sorted(grown_groups | based_groups):
        standing = [base for base in snapshot.bases if base.group == group]
        if group in grown_groups:
            bases += _grown(snapshot, group, standing, _of_group(snapshot, group, new), tuning)
        else:
            bases += standing
    return tuple(bases)


def _of_group(snapshot: Snapshot, group: int, bitmaps: Bitmaps) -> Bitmaps:
    """Return the bitmaps of the segments in a group.

    Events of segments whose rows were dropped may be left. A single group needs no look-up.
    """
    if len(snapshot.root.groups) == 1:
        return bitmaps
    segments = snapshot.segments
    return {
        number: marks
        for number, marks in bitmaps.items()
        if number in segments and segments[number].group == group
    }


def _grown(
    snapshot: Snapshot, group: int, standing: list[BitmapBase], new: Bitmaps, tuning: Tuning
) -> list[BitmapBase]:
    """Store a new base of a group, and return all bases of the group.

    The new base replaces the `standing` bases that are not much larger, from the newest one on. So
    a mark is written again about once each time that the number of marks doubles.
    """
    below = list(standing)
    data = _encoded(snapshot, group, new, below)
    while below and _is_merged(below[-1], len(data), tuning):
        older = read_base(snapshot, below.pop())
        add_bitmaps(older, new)
        new = older
        data = _encoded(snapshot, group, new, below)
    root = snapshot.root
    after = below[-1].version if below else None
    path = layout.bitmap_path(group, root.version, root.write_id, after)
    if not snapshot.storage.put_if_absent(path, data):
        # Another writer has stored this base already, with all these marks
        data = snapshot.storage.get(path)
    base = BitmapBase(
        group=group,
        path=path,
        size=len(data),
        crc32=zlib.crc32(data),
        version=root.version,
        write_id=root.write_id,
        after=after,
    )
    return [*below, base]


def _is_merged(older: BitmapBase, new_bytes: int, tuning: Tuning) -> bool:
    return older.size <= max(tuning.base_merge_ratio * new_bytes, tuning.small_base_bytes)


def _encoded(snapshot: Snapshot, group: int, bitmaps: Bitmaps, below: list[BitmapBase]) -> bytes:
    """Encode a new base of a group; `below` are the bases that it adds marks to."""
    root = snapshot.root
    origin: dict[str, object] = {
        "table_id": root.table_id,
        "version": root.version,
        "write_id": root.write_id,
        "group": group,
    }
    if below:
        origin["after"] = below[-1].version
    return encode_base(bitmaps, origin)


def read_base(snapshot: Snapshot, base: BitmapBase) -> Bitmaps:
    """Read a base; raise FormatError if it marks many rows that a segment cannot have."""
    bitmaps = decode_base(read_verified(snapshot.storage, base), base.path)
    for number, rows in bitmaps.items():
        if len(rows) <= MANY_MARKS:
            continue
        # None if the rows of the segment were dropped: then no reader asks for them
        segment = snapshot.segments.get(number)
        if segment is not None and rows.max() >= segment.rows:
            raise FormatError(
                f"{snapshot.storage.uri}/{base.path} marks row {rows.max():,} of segment "
                f"{segment_name(number)}, which has {segment.rows:,}; "
                "delete it; it is derived and is written again"
            )
    return bitmaps
