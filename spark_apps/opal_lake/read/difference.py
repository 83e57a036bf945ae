"""Which rows two states of a table show, and which only one of them does: what a restore changes."""

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
    """Rows by segment: `gone` are those that only the earlier state shows, `come` those that only the later one does."""

    gone: Bitmaps
    come: Bitmaps


def difference(before: Snapshot, after: Snapshot) -> Difference:
    """Between any two states, be they of one course of versions or not."""
    invalid_before, invalid_after = invalid_rows(before), invalid_rows(after)
    concerned = _differing_segments(before, invalid_before, after, invalid_after)
    shown_before = _visible_rows(before, concerned, invalid_before)
    shown_after = _visible_rows(after, concerned, invalid_after)
    return Difference(
        gone=_without(shown_before, shown_after), come=_without(shown_after, shown_before)
    )


def visible_rows(snapshot: Snapshot, segments: Collection[int]) -> Bitmaps:
    """Of these segments, those that the state shows: rows that a major compaction dropped have no event, and are in no file."""
    known = _processed(snapshot, segments)
    groups = {segment.group for segment in known}
    return _visible_rows(snapshot, segments, invalid_rows(snapshot, groups=groups))


def _processed(snapshot: Snapshot, segments: Collection[int]) -> list[Segment]:
    known, pending = snapshot.segments, snapshot.pending
    return [known[number] for number in segments if number in known and number not in pending]


def _visible_rows(snapshot: Snapshot, segments: Collection[int], invalid: Bitmaps) -> Bitmaps:
    """Return the rows that are in files and not among those with an UNTIL event."""
    known = _processed(snapshot, segments)
    dropped = groups_that_lack_rows(snapshot)
    held = _rows_in_files(snapshot, {segment.id for segment in known if segment.group in dropped})
    return {
        segment.id: (
            held.get(segment.id, BitMap())
            if segment.group in dropped
            else BitMap(range(segment.rows))
        )
        - invalid.get(segment.id, BitMap())
        for segment in known
    }


def count_rows(rows: Mapping[int, BitMap]) -> int:
    return sum(map(len, rows.values()))


def _differing_segments(
    before: Snapshot, invalid_before: Bitmaps, after: Snapshot, invalid_after: Bitmaps
) -> set[int]:
    """Equal marks do not tell if rows were dropped: their events are forgotten. Then equal files do."""
    processed_before, processed_after = (
        {*state.segments} - state.pending for state in (before, after)
    )
    both = processed_before & processed_after
    differing = {
        number
        for number in both
        if invalid_before.get(number, BitMap()) != invalid_after.get(number, BitMap())
    }
    if groups_that_lack_rows(before) or groups_that_lack_rows(after):
        files = [
            file
            for state, other in ((before, after), (after, before))
            for file in _files_beside(state, other)
        ]
        differing |= both & {number for file in files for number in file.segments}
    return differing | (processed_before ^ processed_after)


def _files_beside(state: Snapshot, other: Snapshot) -> list[DataFile]:
    return [file for path, file in state.files.items() if path not in other.files]


def groups_that_lack_rows(snapshot: Snapshot) -> set[int]:
    """Groups whose files hold fewer rows than their segments had."""
    held: dict[int, int] = {}
    for file in snapshot.files.values():
        held[file.group] = held.get(file.group, 0) + file.rows
    return {group for group, rows in snapshot.root.groups.items() if held.get(group, 0) < rows}


def _rows_in_files(snapshot: Snapshot, segments: Set[int]) -> Bitmaps:
    files = [file for file in snapshot.files.values() if not segments.isdisjoint(file.segments)]
    rows: Bitmaps = {}
    with ThreadPoolExecutor(READERS) as pool:
        for of_file in pool.map(partial(_rows_in_file, snapshot), files):
            add_bitmaps(rows, of_file)
    return rows


def _rows_in_file(snapshot: Snapshot, file: DataFile) -> Bitmaps:
    if len(file.segments) == 1 and snapshot.segments[file.segments[0]].rows == file.rows:
        return {file.segments[0]: BitMap(range(file.rows))}
    ids = read_columns(snapshot.storage, file, snapshot.spec, [SEGMENT, OFFSET])
    rows: Bitmaps = {}
    add_rows(rows, ids[SEGMENT].to_numpy(), ids[OFFSET].to_numpy())
    return rows


def _without(rows: Bitmaps, other: Bitmaps) -> Bitmaps:
    left = {
        segment: marks - other[segment] if segment in other else marks
        for segment, marks in rows.items()
    }
    return {segment: marks for segment, marks in left.items() if marks}
