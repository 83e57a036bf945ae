"""Segment logs, one by one and all together against the rule (I16 to I18)."""

import numpy as np
import numpy.typing as npt

from opal_lake.check.finding import Findings
from opal_lake.check.state import KnownEvents
from opal_lake.ids import segment_name
from opal_lake.key_store.entries import Entries, sorted_entries
from opal_lake.segment import LogFile
from opal_lake.segment_log import Events, concat_events, least_events
from opal_lake.snapshot import Snapshot


def check_logs(snapshot: Snapshot, known: KnownEvents) -> Events | None:
    """All events of the version; None when a log cannot be read."""
    parts: list[Events] = []
    whole = True
    for log in snapshot.logs.values():
        events = known.of(log)
        if events is None:
            whole = False
            continue
        parts.append(events)
        _check_log(log, events, known.findings)
        _check_rows_exist(log, events, snapshot, known.findings)
    return concat_events(parts) if whole else None


def _check_log(log: LogFile, events: Events, findings: Findings) -> None:
    message = f"it holds {len(events)} events, its commit says {log.events}; restore the file from a backup"
    if not findings.expect(len(events) == log.events and log.events > 0, "I16", log.path, message):
        return
    step = np.diff(events.segment)
    rising = (step > 0) | ((step == 0) & (np.diff(events.offset.astype(np.int64)) > 0))
    findings.expect(
        bool(rising.all()), "I16", log.path, "its events are not sorted by row, or a row has two; restore the file from a backup"
    )
    least, greatest = int(events.until.min()), int(events.until.max())
    message = (
        f"its times lie in [{least}, {greatest}], its commit says [{log.least_until}, {log.greatest_until}]; restore the log from a backup"
    )
    findings.expect((least, greatest) == (log.least_until, log.greatest_until), "I16", log.path, message)


def _check_rows_exist(log: LogFile, events: Events, snapshot: Snapshot, findings: Findings) -> None:
    """Events are about rows that are there and processed, and the log names their groups."""
    numbers, place = np.unique(events.segment, return_inverse=True)
    found = [snapshot.segments.get(int(number)) for number in numbers]
    strangers = [segment_name(int(number)) for number, segment in zip(numbers, found, strict=True) if segment is None]
    if snapshot.root.floor is None:  # else their rows may have been dropped
        findings.expect(not strangers, "I17", log.path, f"it has events of segments {strangers}, which the table does not have")
    limits = np.array([segment.rows if segment else np.iinfo(np.int64).max for segment in found], np.int64)
    outside = int(((events.offset < 0) | (events.offset >= limits[place])).sum())
    findings.expect(not outside, "I17", log.path, f"{outside} of its events are of rows beyond the end of their segments; restore the file")
    pending = sorted(segment_name(int(number)) for number in numbers if int(number) in snapshot.pending)
    findings.expect(
        not pending, "I17", log.path, f"it has events of segments {pending}, which are not processed; restore the log from a backup"
    )
    groups = {segment.group for segment in found if segment}
    named = groups == {*log.groups} or (groups < {*log.groups} and bool(strangers))
    findings.expect(named, "I16", log.path, f"its events are of groups {sorted(groups)}, its commit says {log.groups}")


def rule_of(rows: Entries) -> Events:
    """THE rule on all processed rows at once, with no key store: what the logs have to add up to."""
    row = sorted_entries(rows)
    if not len(row):
        return concat_events([])
    follows = np.append((row.high[1:] == row.high[:-1]) & (row.low[1:] == row.low[:-1]), False)
    ends = follows | row.deleted
    until = np.where(row.deleted, row.delta, np.append(row.delta[1:], 0))
    return Events(segment=row.segment[ends], offset=row.offset[ends], until=until[ends])


def check_complete(rows: Entries, events: Events, snapshot: Snapshot, findings: Findings) -> None:
    """The least event of each row is the rule's; later ones may be there as well.

    Up to the floor rows may have been dropped: events of theirs may be left, the successor of a row may be gone, and a late row may have
    been told of a later one than is there. All that counts is that the event is not after the floor.
    """
    wanted, found = least_events(rule_of(rows)), least_events(events)
    floor = snapshot.root.floor
    if floor is not None:
        found = _of_rows(found, rows)
    numbers = np.unique(np.concatenate([wanted.segment, found.segment]))
    wanted_codes, found_codes = _codes(wanted, numbers), _codes(found, numbers)
    _, here, there = np.intersect1d(wanted_codes, found_codes, assume_unique=True, return_indices=True)
    forgiven = np.zeros(len(here), np.bool_) if floor is None else found.until[there] <= floor
    early, late = found.until[there] < wanted.until[here], (found.until[there] > wanted.until[here]) & ~forgiven
    extra = np.setdiff1d(np.arange(len(found)), there)
    missing = np.setdiff1d(np.arange(len(wanted)), here)
    places = {segment: file.path for file in snapshot.files.values() for segment in file.segments}
    for what, bad in (
        ("have no UNTIL event, though a newer row of their key or their own delete ends them", wanted.take(missing)),
        ("have an UNTIL event that comes too late", wanted.take(here[late])),
        ("have an UNTIL event before the time at which they end", found.take(there[early & ~forgiven])),
        ("have an UNTIL event, though they are valid to the end of time", found.take(extra)),
    ):
        for segment in np.unique(bad.segment):
            offsets = bad.offset[bad.segment == segment]
            findings.add(
                "I18",
                places.get(int(segment), segment_name(int(segment))),
                f"{len(offsets)} rows of segment {segment_name(int(segment))} (the first has offset {offsets[0]}) {what}; "
                "restore the log and the segment logs from a backup",
            )


def _of_rows(events: Events, rows: Entries) -> Events:
    numbers = np.unique(np.concatenate([events.segment, rows.segment]))
    held = np.searchsorted(numbers, rows.segment).astype(np.int64) << 32 | rows.offset.astype(np.int64)
    return events.take(np.isin(_codes(events, numbers), held))


def _codes(events: Events, numbers: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """One number a row: the rank of its segment, and its offset."""
    return np.searchsorted(numbers, events.segment).astype(np.int64) << 32 | events.offset.astype(np.int64)
