"""Referenced files exist as they were written, and the metadata agrees (I9, I13, I15, I30, I33)."""

from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import IO

import pyarrow as pa

from opal_lake import layout
from opal_lake.data.segment import PendingSegment, Segment, is_ingested
from opal_lake.data.spool import nameless_file, room_errors
from opal_lake.ids import segment_name
from opal_lake.inspect.check.chain import Sizes
from opal_lake.inspect.check.finding import Findings
from opal_lake.inspect.check.lists import DAMAGE
from opal_lake.log.checkpoint import read_checkpoint
from opal_lake.log.commit import Commit
from opal_lake.log.lists import ingested_files, pending_again, processed_fault, segment_of_file
from opal_lake.log.snapshot import Snapshot
from opal_lake.storage.protocol import Storage
from opal_lake.storage.verified import FileRef, read_verified, verified_pieces

_RESTORE_LOG = "restore the log from a backup"
_MAX_IN_MEMORY = 64 << 20  # bytes of a file; a larger one is copied to disk
_PIECE_BYTES = 16 << 20


def _remedy_of(path: str, snapshot: Snapshot) -> str:
    """Return the remedy for a lost file: runs can be built again from the data files."""
    if path.startswith(layout.KEY_STORE):
        return f"restore it from a backup, or run `opal rebuild-key-store {snapshot.storage.uri}`"
    return "restore the file from a backup"


def check_sizes(
    snapshot: Snapshot, sizes: Sizes, findings: Findings, known: Container[str] = ()
) -> None:
    """Check that every referenced file exists with its size, except for known paths."""
    for file in referenced(snapshot):
        if file.path in known:
            continue
        size = sizes.get(file.path)
        remedy = _remedy_of(file.path, snapshot)
        message = f"it is missing, though the table refers to it; {remedy}"
        if findings.expect(size is not None, "I9", file.path, message):
            message = f"it has {size} bytes instead of {file.size}; restore it from a backup"
            findings.expect(size == file.size, "I9", file.path, message)


def referenced(snapshot: Snapshot) -> Iterator[FileRef]:
    """Return all files of a state; side files and sections are read by the fold."""
    return chain(
        snapshot.files.values(), snapshot.logs.values(), snapshot.runs.values(), snapshot.bases
    )


@dataclass(slots=True)
class WholeFile:
    """A file with the recorded checksum, in memory or in a file without a name."""

    data: bytes = b""
    copy: IO[bytes] | None = None

    def source(self) -> pa.NativeFile:
        if self.copy is None:
            return pa.BufferReader(self.data)
        self.copy.seek(0)
        return pa.PythonFile(self.copy, mode="r")

    def read(self, start: int, length: int) -> bytes:
        if self.copy is None:
            return self.data[start : start + length]
        self.copy.seek(start)
        return self.copy.read(length)


def is_found(file: FileRef, sizes: Sizes) -> bool:
    """Return whether a file exists with its size; `check_sizes` reports others."""
    return sizes.get(file.path) == file.size


def read_found(storage: Storage, file: FileRef, findings: Findings) -> WholeFile | None:
    """Read a file; report it and return None if it is not as it was written."""
    with findings.going_on("I9", file.path):
        if file.size <= _MAX_IN_MEMORY:
            return WholeFile(read_verified(storage, file))
        with room_errors():
            copy = nameless_file()
            for piece in verified_pieces(storage, file, _PIECE_BYTES):
                copy.write(piece)
            return WholeFile(copy=copy)
    return None


def check_totals(snapshot: Snapshot, commits: list[Commit], findings: Findings) -> None:
    """Check that files, segments, groups and counts of a state agree."""
    path = layout.commit_path(snapshot.version)
    root, segments = snapshot.root, snapshot.segments
    rows = sum(file.rows for file in snapshot.files.values())
    message = f"the state counts {root.rows} rows, its files {rows}; {_RESTORE_LOG}"
    findings.expect(root.rows == rows, "I15", path, message)
    in_files: set[int] = set()
    for file in snapshot.files.values():
        in_files.update(file.segments)
    alone = sorted(in_files ^ segments.keys())
    message = f"segments {alone} are in the state, or in a file, alone"
    findings.expect(not alone, "I15", path, message)
    pending = len(snapshot.pending)
    message = f"the state counts {root.pending} pending segments, it lists {pending}"
    findings.expect(root.pending == pending, "I15", path, message)
    events = sum(log.events for log in snapshot.logs.values())
    message = f"the state counts {root.events} events, its logs hold {events}"
    findings.expect(root.events == events, "I15", path, message)
    both = sorted(snapshot.pending & snapshot.visible_segments.keys())
    findings.expect(not both, "I15", path, f"segments {both} are pending, and visible")
    _check_groups(snapshot, commits, findings)
    if not snapshot.spec.has_keys:
        _check_append_only(snapshot, findings)


def _check_append_only(snapshot: Snapshot, findings: Findings) -> None:
    path = layout.commit_path(snapshot.version)
    forbidden = {
        "segment logs": bool(snapshot.logs),
        "key-store runs": bool(snapshot.runs),
        "bitmap bases": bool(snapshot.bases),
        "a floor": snapshot.root.floor is not None,
    }
    for what, exists in forbidden.items():
        message = f"the table has no keys, and the state has {what}; {_RESTORE_LOG}"
        findings.expect(not exists, "I15", path, message)


def check_row_bases(snapshot: Snapshot, findings: Findings) -> None:
    """Check that no two rows of a state have the same outside or reserved row id."""
    path = layout.commit_path(snapshot.version)
    ranges: list[tuple[int, int, str]] = []  # the first id, the number of ids, and whose they are
    for segment in snapshot.visible_segments.values():
        name = f"segment {segment_name(segment.id)}"
        if segment.row_base is not None:
            ranges.append((segment.row_base, segment.rows, name))
            since = segment.visible_since
            message = f"{name} is visible since version {since}, which is later; {_RESTORE_LOG}"
            is_past = since is not None and since <= snapshot.version
            findings.expect(is_past, "I33", path, message)
    for file in snapshot.files.values():
        if not is_ingested(file) and file.first_row_id is not None:
            ranges.append((file.first_row_id, file.rows, file.path))
        message = (
            f"{file.path} reserves row ids, though it was ingested, or none, though it was "
            f"rewritten; {_RESTORE_LOG}"
        )
        has_reserved = file.first_row_id is not None
        findings.expect(has_reserved != is_ingested(file), "I33", path, message)
    ranges.sort()
    for (start, rows, name), (first, _, other) in pairwise(ranges):
        message = f"{name} and {other} have the row id {first} in common; {_RESTORE_LOG}"
        findings.expect(start + rows <= first, "I33", path, message)
    last = max((first + rows for first, rows, _ in ranges), default=0)
    following = snapshot.root.next_row_id
    message = f"row ids up to {last} are taken, the next one is {following}; {_RESTORE_LOG}"
    findings.expect(last <= following, "I33", path, message)


def check_processed(storage: Storage, commits: Sequence[Commit], findings: Findings) -> None:
    """Check that segments are processed with the rows and the group of their ingest."""
    known = _pending_at_begin(storage, commits)
    for commit in commits:
        side = commit.actions.ingested_side
        commit_path = layout.commit_path(commit.version)
        if side:
            invariant, path = "I9", side.path
        else:
            invariant, path = "I1", commit_path
        with findings.going_on(invariant, path):
            fault = processed_fault(storage, commit, known)
            if fault is not None:
                findings.add("I15", commit_path, f"{fault}; {_RESTORE_LOG}")
            for file in ingested_files(storage, commit):
                known[file.segments[0]] = segment_of_file(file)


def _pending_at_begin(
    storage: Storage, commits: Sequence[Commit]
) -> dict[int, Segment | PendingSegment]:
    """Return the segments that were pending where the log begins, if that can be read."""
    if not commits or commits[0].version == 0:
        return {}
    try:
        checkpoint = read_checkpoint(storage, commits[0].version)
        if checkpoint is None:
            return {}
        return dict(checkpoint.pending_segments)
    except DAMAGE:
        return {}  # reported with the checkpoints


def check_pending(
    storage: Storage, commits: Sequence[Commit], findings: Findings
) -> frozenset[int]:
    """Check that a segment is processed or discarded once.

    It may be so once more after a restore that made it pending again. Returns the segments that are
    discarded at the newest version, as far as the log shows.
    """
    processed: dict[int, int] = {}
    discarded: dict[int, int] = {}
    # By version: a restore goes back to one of them
    discarded_at: dict[int, dict[int, int]] = {}
    for commit in commits:
        actions = commit.actions
        if actions.restored is not None:
            discarded = discarded_at.get(actions.restored.version, {})
            for number in pending_again(storage, commit):
                processed.pop(number, None)
        given_up = [item.segment.id for item in actions.discarded]
        steps = [("processes", segment.id) for segment in actions.processed]
        steps += [("discards", number) for number in given_up]
        for step, number in steps:
            if number in discarded:
                earlier, version = "discarded", discarded.get(number)
            else:
                earlier, version = "processed", processed.get(number)
            is_repeat = (step, earlier) == ("processes", "processed")
            message = (
                f"it {step} segment {segment_name(number)}, which version {version} {earlier}; "
                f"{_RESTORE_LOG}"
            )
            invariant = "I15" if is_repeat else "I30"
            findings.expect(version is None, invariant, layout.commit_path(commit.version), message)
        processed.update(dict.fromkeys(actions.processed_ids, commit.version))
        if given_up:
            # A new mapping: the earlier versions keep theirs
            discarded = {**discarded, **dict.fromkeys(given_up, commit.version)}
        discarded_at[commit.version] = discarded
    return frozenset(discarded)


def _check_groups(snapshot: Snapshot, commits: list[Commit], findings: Findings) -> None:
    """Check that a group has the rows of its segments, and not too many of them."""
    path = layout.commit_path(snapshot.version)
    # A group may have been filled up to an earlier limit
    limits = [
        commit.actions.spec.integer("group_rows") for commit in commits if commit.actions.spec
    ]
    limit = max([snapshot.spec.integer("group_rows"), *limits])
    rows_of_segments: dict[int, list[int]] = {}
    for segment in snapshot.segments.values():
        rows_of_segments.setdefault(segment.group, []).append(segment.rows)
    filled = {group: sum(rows) for group, rows in rows_of_segments.items()}
    # All segments of a group may be gone: then it is counted with 0 rows
    counted = {group: rows for group, rows in snapshot.root.groups.items() if rows}
    message = f"groups hold {filled} rows, the state says {counted}"
    findings.expect(counted == filled, "I13", path, message)
    for group, rows in rows_of_segments.items():
        message = f"group {group} holds {filled[group]} rows, more than its limit of {limit}"
        findings.expect(filled[group] <= limit or len(rows) == 1, "I13", path, message)
