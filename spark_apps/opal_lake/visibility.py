"""Which rows are not visible at (version, event time): the newest bitmap base that serves, plus the events since (FORMAT, bitmaps)."""

import zlib
from collections.abc import Iterable

from opal_lake import layout
from opal_lake.bitmap import BitmapBase, Bitmaps, add_events, decode_base, encode_base
from opal_lake.segment import LogFile
from opal_lake.segment_log import read_events
from opal_lake.snapshot import Snapshot
from opal_lake.storage.verified import read_verified

FOLD_AT_LOGS = 32
FOLD_AT_EVENTS = 1_000_000


def invalid_rows(snapshot: Snapshot, until: int | None = None) -> Bitmaps:
    """Rows with an UNTIL event, by segment; with `until`, only events up to that time count. Segments without any are absent."""
    bitmaps: Bitmaps = {}
    for base in _serving_bases(snapshot, until).values():
        bitmaps.update(decode_base(read_verified(snapshot.storage, base), base.path))
    for log in logs_since(snapshot, _serving_bases(snapshot, until)):
        if until is not None and log.least_until > until:
            continue
        events = read_events(snapshot.storage, log)
        add_events(bitmaps, events if until is None else events.take(events.until <= until))
    return bitmaps


def _serving_bases(snapshot: Snapshot, until: int | None) -> dict[int, BitmapBase]:
    """A base holds the events of all times, so it serves the end of time only."""
    return snapshot.bases if until is None else {}


def logs_since(snapshot: Snapshot, bases: dict[int, BitmapBase]) -> Iterable[LogFile]:
    """The logs that the bases do not hold; a log of several groups counts as new while one of them lacks it (folding is idempotent)."""
    for log in snapshot.logs.values():
        if any(group not in bases or bases[group].version < log.version for group in log.groups):
            yield log


def fold_bases(snapshot: Snapshot) -> dict[int, BitmapBase]:
    """New bitmap bases as of the snapshot when enough has come since the last ones, else those."""
    since = list(logs_since(snapshot, snapshot.bases))
    if len(since) < FOLD_AT_LOGS and sum(log.events for log in since) < FOLD_AT_EVENTS:
        return snapshot.bases
    by_group: dict[int, Bitmaps] = {group: {} for group in snapshot.root.groups}
    for segment, bitmap in invalid_rows(snapshot).items():
        if segment in snapshot.segments:  # of a segment whose rows were dropped, events may be left
            by_group[snapshot.segments[segment].group][segment] = bitmap
    return {group: _write_base(snapshot, group, bitmaps) for group, bitmaps in by_group.items()}


def _write_base(snapshot: Snapshot, group: int, bitmaps: Bitmaps) -> BitmapBase:
    root = snapshot.root
    data = encode_base(bitmaps, {"table_id": root.table_id, "version": root.version, "write_id": root.write_id, "group": group})
    path = layout.bitmap_path(group, root.version, root.write_id)
    snapshot.storage.put_if_absent(path, data)
    return BitmapBase(group=group, path=path, size=len(data), crc32=zlib.crc32(data), version=root.version, write_id=root.write_id)
