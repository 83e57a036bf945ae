"""The hidden rows at a version and an event time (FORMAT, §10).

They are read from the bitmap bases, and from the segment logs since then.
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

# A bitmap with more marks than this is compared with the rows of its segment. A forged bitmap has a
# long run of marks in a few bytes, but takes 4 bytes for each mark once it is unpacked.
MANY_MARKS = 1 << 24


def invalid_rows(
    snapshot: Snapshot, as_of: int | None = None, groups: Container[int] | None = None
) -> Bitmaps:
    """Return the rows with an UNTIL event, by segment.

    Segments without such rows are absent. With `as_of`, only events up to that time count. With
    `groups`, segments of other groups may be absent, too.
    """
    bitmaps: Bitmaps = {}
    # A base does not have the times of its events, so with `as_of` all events come from the logs
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
    """Return the logs whose events came after the bases.

    A new base takes in all logs up to its version. Events of those logs that are in no base belong
    to rows that were dropped.
    """
    newest = max((base.version for base in bases), default=-1)
    return snapshot.logs_after(newest)


def fold_bases(
    snapshot: Snapshot,
    read: Callable[[LogFile], Events] | None = None,
    *,
    tuning: Tuning = DEFAULT_TUNING,
) -> tuple[BitmapBase, ...]:
    """Return the bitmap bases; if a fold is due, with new ones for the new events.

    A fold is due once many logs or events came after the last one. `read` returns the events of a
    log, for callers that have read some logs already.
    """
    if read is None:
        read = partial(read_events, snapshot.storage)
    since = list(logs_since(snapshot, snapshot.bases))
    new_events = sum(log.events for log in since)
    if len(since) < tuning.fold_at_logs and new_events < tuning.fold_at_events:
        return snapshot.bases
    new: Bitmaps = {}
    for log in since:
        add_events(new, read(log))
    based_groups = {base.group for base in snapshot.bases}
    touched_groups: set[int] = set()
    for log in since:
        touched_groups.update(log.groups)
    # Groups without a base get one as well
    grown_groups = touched_groups | (snapshot.root.groups.keys() - based_groups)
    if not grown_groups:
        # The logs have only events of dropped rows, which are of no group. All groups get a new
        # base, so that these logs are not read again.
        grown_groups = {*snapshot.root.groups}
    bases: list[BitmapBase] = []
    for group in sorted(grown_groups | based_groups):
        standing = [base for base in snapshot.bases if base.group == group]
        if group in grown_groups:
            new_of_group = _of_group(snapshot, group, new)
            bases += _grown(snapshot, group, standing, new_of_group, tuning)
        else:
            bases += standing
    return tuple(bases)


def _of_group(snapshot: Snapshot, group: int, bitmaps: Bitmaps) -> Bitmaps:
    """Return the bitmaps of the segments in a group.

    Segments whose rows were dropped are in no group, unless the table has only one group.
    """
    if len(snapshot.root.groups) == 1:
        return bitmaps  # without loading the list of segments
    of_group: Bitmaps = {}
    for number, marks in bitmaps.items():
        segment = snapshot.segments.get(number)
        if segment is not None and segment.group == group:
            of_group[number] = marks
    return of_group


def _grown(
    snapshot: Snapshot, group: int, standing: list[BitmapBase], new: Bitmaps, tuning: Tuning
) -> list[BitmapBase]:
    """Store a new base of a group, and return all bases of the group, oldest first.

    `standing` are the existing bases, and `new` the marks since then. From the newest one on,
    existing bases that are not much larger than the new one are merged into it. Thus a mark is
    written again about once each time that the number of marks doubles.
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
        # Another writer has already stored a base of this name, with the same marks
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
    """Return whether an existing base is merged into a new one of so many bytes."""
    return older.size <= max(tuning.base_merge_ratio * new_bytes, tuning.small_base_bytes)


def _encoded(snapshot: Snapshot, group: int, bitmaps: Bitmaps, below: list[BitmapBase]) -> bytes:
    """Encode a new base of a group; `below` are the bases that it leaves in place."""
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
    """Read a base; raise FormatError for many marks, some beyond a segment's rows."""
    bitmaps = decode_base(read_verified(snapshot.storage, base), base.path)
    for number, rows in bitmaps.items():
        if len(rows) <= MANY_MARKS:
            continue
        # None if the rows of the segment were dropped: then no reader asks for them
        segment = snapshot.segments.get(number)
        if segment is not None and rows.max() >= segment.rows:
            raise FormatError(
                f"{snapshot.storage.uri}/{base.path} marks row {rows.max():,} of segment "
                f"{segment_name(number)}, which has only {segment.rows:,} rows; "
                "delete the file: it is derived and is written again"
            )
    return bitmaps
