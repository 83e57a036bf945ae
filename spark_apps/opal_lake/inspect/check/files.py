"""Referenced files exist as they were written, and the metadata agrees (I9, I15, I33)."""

from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
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

_MEND = "restore the log from a backup"
_HELD_BYTES, _PIECE_BYTES = 64 << 20, 16 << 20


def _mend_of(path: str, snapshot: Snapshot) -> str:
    """Return the remedy for a file that is lost: runs can be made again from the data files."""
    if path.startswith(layout.KEY_STORE):
        return f"restore it from a backup, or run `opal rebuild-key-store {snapshot.storage.uri}`"
    return "restore the file from a backup"


def check_sizes(
    snapshot: Snapshot, sizes: Sizes, findings: Findings, known: Container[str] = ()
) -> None:
    """What can be seen of every referenced file without reading it; not of the known paths."""
    for file in referenced(snapshot):
        if file.path in known:
            continue
        size = sizes.get(file.path)
        if findings.expect(
            size is not None,
            "I9",
            file.path,
            f"it is missing, though the table refers to it; {_mend_of(file.path, snapshot)}",
        ):
            findings.expect(
                size == file.size,
                "I9",
                file.path,
                f"it has {size} bytes, written were {file.size}; restore it from a backup",
            )


def referenced(snapshot: Snapshot) -> Iterator[FileRef]:
    """Every file that the state names; side files and sections are read by the fold."""
    return chain(
        snapshot.files.values(), snapshot.logs.values(), snapshot.runs.values(), snapshot.bases
    )


@dataclass(slots=True)
class Found:
    """A file that is whole, in memory or, if it is large, in a file without a name."""

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
    """A missing or cut file is a finding of `check_sizes` already."""
    return sizes.get(file.path) == file.size


def read_found(storage: Storage, file: FileRef, findings: Findings) -> Found | None:
    """The file if it is what was written."""
    with findings.going_on("I9", file.path):
        if file.size <= _HELD_BYTES:
            return Found(read_verified(storage, file))
        with room_errors():
            copy = nameless_file()
            for piece in verified_pieces(storage, file, _PIECE_BYTES):
                copy.write(piece)
            return Found(copy=copy)
    return None


def check_totals(snapshot: Snapshot, commits: list[Commit], findings: Findings) -> None:
    """Files, segments, groups and counts of the state agree."""
    path = layout.commit_path(snapshot.version)
    root, segments = snapshot.root, snapshot.segments
    rows = sum(file.rows for file in snapshot.files.values())
    findings.expect(
        root.rows == rows,
        "I15",
        path,
        f"the state counts {root.rows} rows, its files {rows}; restore the log from a backup",
    )
    held = {segment for file in snapshot.files.values() for segment in file.segments}
    findings.expect(
        held == segments.keys(),
        "I15",
        path,
        f"segments {sorted(held ^ segments.keys())} are in the state, or in a file, alone",
    )
    pending = len(snapshot.pending)
    findings.expect(
        root.pending == pending,
        "I15",
        path,
        f"the state counts {root.pending} pending segments, it lists {pending}",
    )
    events = sum(log.events for log in snapshot.logs.values())
    findings.expect(
        root.events == events,
        "I15",
        path,
        f"the state counts {root.events} events, its logs hold {events}",
    )
    both = sorted(snapshot.pending & snapshot.visible_segments.keys())
    findings.expect(not both, "I15", path, f"segments {both} are pending, and visible")
    _check_groups(snapshot, commits, findings)
    if not snapshot.spec.has_keys:
        _check_append_only(snapshot, findings)


def _check_append_only(snapshot: Snapshot, findings: Findings) -> None:
    held = {
        "segment logs": snapshot.logs,
        "key-store runs": snapshot.runs,
        "bitmap bases": snapshot.bases,
        "a floor": snapshot.root.floor is not None,
    }
    for what, is_there in held.items():
        findings.expect(
            not is_there,
            "I15",
            layout.commit_path(snapshot.version),
            f"the table has no keys, and the state has {what}; restore the log from a backup",
        )


def check_row_bases(snapshot: Snapshot, findings: Findings) -> None:
    """Check that no two rows of a state share an outside id, and that none has a reserved one."""
    path = layout.commit_path(snapshot.version)
    taken: list[tuple[int, int, str]] = []
    for segment in snapshot.visible_segments.values():
        name = f"segment {segment_name(segment.id)}"
        if segment.row_base is not None:
            taken.append((segment.row_base, segment.rows, name))
            since = segment.visible_since
            message = f"{name} is visible since version {since}, which is later; {_MEND}"
            is_past = since is not None and since <= snapshot.version
            findings.expect(is_past, "I33", path, message)
    for file in snapshot.files.values():
        if not is_ingested(file) and file.first_row_id is not None:
            taken.append((file.first_row_id, file.rows, file.path))
        message = f"{file.path} reserves row ids, though it was ingested, or none, though it was rewritten"
        reserves = file.first_row_id is not None
        findings.expect(reserves != is_ingested(file), "I33", path, f"{message}; {_MEND}")
    taken.sort()
    ends = [first + rows for first, rows, _ in taken]
    for end, (_, _, name), (first, _, other) in zip(ends, taken, taken[1:], strict=False):
        message = f"{name} and {other} have the row id {first} in common; {_MEND}"
        findings.expect(end <= first, "I33", path, message)
    last, following = max(ends, default=0), snapshot.root.next_row_id
    message = f"row ids up to {last} are taken, the next one is {following}; {_MEND}"
    findings.expect(last <= following, "I33", path, message)


def check_processed(storage: Storage, commits: Sequence[Commit], findings: Findings) -> None:
    """Check that segments are processed with the rows and the group of their ingest."""
    known = _pending_at_begin(storage, commits)
    for commit in commits:
        path, side = layout.commit_path(commit.version), commit.actions.ingested_side
        with findings.going_on("I9" if side else "I1", side.path if side else path):
            fault = processed_fault(storage, commit, known)
            if fault is not None:
                findings.add("I15", path, f"{fault}; {_MEND}")
            for file in ingested_files(storage, commit):
                known[file.segments[0]] = segment_of_file(file)


def _pending_at_begin(
    storage: Storage, commits: Sequence[Commit]
) -> dict[int, Segment | PendingSegment]:
    """Return the segments that were ingested before the log begins, as far as they can be read."""
    if not commits or commits[0].version == 0:
        return {}
    try:
        checkpoint = read_checkpoint(storage, commits[0].version)
        return {} if checkpoint is None else dict(checkpoint.pending_segments)
    except DAMAGE:
        return {}  # others tell


def check_pending(
    storage: Storage, commits: Sequence[Commit], findings: Findings
) -> frozenset[int]:
    """Check that a segment is processed or discarded once, and again if a restore made it pending again.

    Returns the segments that are discarded at the newest version, as far as the log tells.
    """
    processed: dict[int, int] = {}
    discarded: dict[int, int] = {}
    discarded_at: dict[int, dict[int, int]] = {}  # by version; a restore leads to one of them
    for commit in commits:
        actions, path = commit.actions, layout.commit_path(commit.version)
        if actions.restored is not None:
            discarded = discarded_at.get(actions.restored.version, {})
            for segment in pending_again(storage, commit):
                processed.pop(segment, None)
        given_up = [one.segment.id for one in actions.discarded]
        for does, segment in (
            *(("processes", segment.id) for segment in actions.processed),
            *(("discards", segment) for segment in given_up),
        ):
            done, before = "processed", processed.get(segment)
            if segment in discarded:
                done, before = "discarded", discarded[segment]
            findings.expect(
                before is None,
                "I15" if (does, done) == ("processes", "processed") else "I30",
                path,
                f"it {does} segment {segment_name(segment)}, which version {before} {done}; "
                "restore the log from a backup",
            )
        processed.update(dict.fromkeys(actions.processed_ids, commit.version))
        if given_up:
            discarded = {**discarded, **dict.fromkeys(given_up, commit.version)}
        discarded_at[commit.version] = discarded
    return frozenset(discarded)


def _check_groups(snapshot: Snapshot, commits: list[Commit], findings: Findings) -> None:
    """A group holds what its segments hold, and more than its limit only if it is one segment."""
    path = layout.commit_path(snapshot.version)
    limits = [
        commit.actions.spec.integer("group_rows") for commit in commits if commit.actions.spec
    ]
    limit = max([snapshot.spec.integer("group_rows"), *limits])
    members: dict[int, list[int]] = {}
    for segment in snapshot.segments.values():
        members.setdefault(segment.group, []).append(segment.rows)
    filled = {group: sum(rows) for group, rows in members.items()}
    counted = {
        group: rows for group, rows in snapshot.root.groups.items() if rows
    }  # of a group all segments may be gone
    findings.expect(
        counted == filled, "I13", path, f"groups hold {filled} rows, the state says {counted}"
    )
    for group, rows in members.items():
        findings.expect(
            sum(rows) <= limit or len(rows) == 1,
            "I13",
            path,
            f"group {group} holds {sum(rows)} rows, at most are {limit}",
        )
