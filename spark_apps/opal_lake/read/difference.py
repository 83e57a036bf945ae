"""The rows that only one of two states of a table shows: what a restore changes."""

from collections.abc import Collection, Mapping, Set
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

from pyroaring import BitMap

from opal_lake.data.column_read import read_columns
from opal_lake.data.segment import DataFile, Segment
from opal_lake.definition.schema import OFFSET, SEGMENT
from opal_lake.events.bitmap import Bitmaps, add_bitmaps, add_rows
from opal_lake.log.snapshot import Snapshot
from opal_lake.log.visibility import invalid_rows
from opal_lake.storage.protocol import READERS


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Rows that only the earlier (`gone`) or the later state (`come`) shows."""

    gone: Bitmaps
    come: Bitmaps


def difference(before: Snapshot, after: Snapshot) -> Difference:
    """Return the difference between two states, also across a restore."""
    invalid_before, invalid_after = invalid_rows(before), invalid_rows(after)
    concerned = _differing_segments(before, invalid_before, after, invalid_after)
    shown_before = _visible_rows(before, concerned, invalid_before)
    shown_after = _visible_rows(after, concerned, invalid_after)
    return Difference(
        gone=_without(shown_before, shown_after), come=_without(shown_after, shown_before)
    )


def visible_rows(snapshot: Snapshot, segments: Collection[int]) -> Bitmaps:
    """Return the rows of some segments that the state shows."""
    known = _processed(snapshot, segments)
    groups = {segment.group for segment in known}
    return _visible_rows(snapshot, segments, invalid_rows(snapshot, groups=groups))


def _processed(snapshot: Snapshot, segments: Collection[int]) -> list[Segment]:
    """Return the given segments that the state has and that are not pending."""
    known, pending = snapshot.segments, snapshot.pending
    return [known[number] for number in segments if number in known and number not in pending]


def _visible_rows(snapshot: Snapshot, segments: Collection[int], invalid: Bitmaps) -> Bitmaps:
    """Return the rows of some segments that are in files and have no UNTIL event.

    `invalid` are the rows with an event. A row that a major compaction dropped has no event, but is
    in no file.
    """
    known = _processed(snapshot, segments)
    # Files of other groups need not be read: they hold all rows of their segments
    dropped = groups_that_lack_rows(snapshot)
    lacking = {segment.id for segment in known if segment.group in dropped}
    rows_in_files = _rows_in_files(snapshot, lacking)
    visible: Bitmaps = {}
    for segment in known:
        if segment.id in lacking:
            rows = rows_in_files.get(segment.id, BitMap())
        else:
            rows = BitMap(range(segment.rows))
        visible[segment.id] = rows - invalid.get(segment.id, BitMap())
    return visible


def count_rows(rows: Mapping[int, BitMap]) -> int:
    return sum(map(len, rows.values()))


def _differing_segments(
    before: Snapshot, invalid_before: Bitmaps, after: Snapshot, invalid_after: Bitmaps
) -> set[int]:
    """Return the segments of which the two states may show different rows.

    Where a compaction dropped rows, it dropped their events, too: equal marks do not prove equal
    rows there, but equal files do.
    """
    processed_before = {*before.segments} - before.pending
    processed_after = {*after.segments} - after.pending
    both = processed_before & processed_after
    no_rows = BitMap()
    differing: set[int] = set()
    for number in both:
        if invalid_before.get(number, no_rows) != invalid_after.get(number, no_rows):
            differing.add(number)
    if groups_that_lack_rows(before) or groups_that_lack_rows(after):
        for file in (*_files_not_in(before, after), *_files_not_in(after, before)):
            differing |= both.intersection(file.segments)
    return differing | (processed_before ^ processed_after)


def _files_not_in(state: Snapshot, other: Snapshot) -> list[DataFile]:
    return [file for path, file in state.files.items() if path not in other.files]


def groups_that_lack_rows(snapshot: Snapshot) -> set[int]:
    """Return the groups whose files have fewer rows than their segments had."""
    rows_in_files: dict[int, int] = {}
    for file in snapshot.files.values():
        rows_in_files[file.group] = rows_in_files.get(file.group, 0) + file.rows
    expected = snapshot.root.groups.items()
    return {group for group, rows in expected if rows_in_files.get(group, 0) < rows}


def _rows_in_files(snapshot: Snapshot, segments: Set[int]) -> Bitmaps:
    """Return all rows of the files that hold rows of some segments."""
    files = [file for file in snapshot.files.values() if not segments.isdisjoint(file.segments)]
    rows: Bitmaps = {}
    with ThreadPoolExecutor(READERS) as pool:
        for rows_in_file in pool.map(partial(_rows_in_file, snapshot), files):
            add_bitmaps(rows, rows_in_file)
    return rows


def _rows_in_file(snapshot: Snapshot, file: DataFile) -> Bitmaps:
    if len(file.segments) == 1:
        [number] = file.segments
        # A file that holds a whole segment need not be read
        if snapshot.segments[number].rows == file.rows:
            return {number: BitMap(range(file.rows))}
    ids = read_columns(snapshot.storage, file, snapshot.spec, [SEGMENT, OFFSET])
    rows: Bitmaps = {}
    add_rows(rows, ids[SEGMENT].to_numpy(), ids[OFFSET].to_numpy())
    return rows


def _without(rows: Bitmaps, other: Bitmaps) -> Bitmaps:
    """Return the rows that are not in `other`, by segment; no segment is empty."""
    no_rows = BitMap()
    differing: Bitmaps = {}
    for segment, bitmap in rows.items():
        remaining = bitmap - other.get(segment, no_rows)
        if remaining:
            differing[segment] = remaining
    return differing
