"""The state that the commits add up to, and every checkpoint against it (I6 to I8, I32)."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
from pyroaring import BitMap

from opal_lake import layout
from opal_lake.data.segment import LogFile
from opal_lake.errors import FormatError, NotFoundError
from opal_lake.events.bitmap import BitmapBase, Bitmaps, add_events, decode_base
from opal_lake.events.segment_log import Events, RowIds, event_parts
from opal_lake.inspect.check.chain import Sizes
from opal_lake.inspect.check.files import check_sizes, read_found
from opal_lake.inspect.check.finding import Findings
from opal_lake.inspect.check.lists import DAMAGE, FoldedLists, StoredLists
from opal_lake.inspect.check.spill_buffer import Column, SpillBuffer, Spilled
from opal_lake.log.checkpoint import decode_root
from opal_lake.log.commit import Commit
from opal_lake.log.lists import side_rows_fault
from opal_lake.log.sections import file_parts
from opal_lake.log.snapshot import Root, Snapshot, first_root, row_id_fault
from opal_lake.storage.protocol import Storage
from opal_lake.storage.verified import read_sealed, read_verified

_LISTS: dict[str, Callable[[Snapshot], Any]] = {
    "files": lambda snapshot: snapshot.files,
    "segments": lambda snapshot: snapshot.visible_segments,
    "pending": lambda snapshot: snapshot.pending_segments,
    "logs": lambda snapshot: snapshot.logs,
    "runs": lambda snapshot: snapshot.runs,
    "partitions": lambda snapshot: snapshot.partitions,
    "tokens": lambda snapshot: [*snapshot.tokens.items()],
}


@dataclass(slots=True)
class MarkedLogs:
    """The rows that the logs of a state mark.

    `up_to_version` has the rows that logs up to `version` mark, `every` those that all logs mark.
    Each log is read for that only once, as long as logs are only added.
    """

    logs: list[LogFile] = field(default_factory=list)
    version: int = -1
    up_to_version: Bitmaps = field(default_factory=dict)
    every: Bitmaps = field(default_factory=dict)
    checked: set[BitmapBase] = field(default_factory=set)
    _marked: int = 0  # number of the logs whose rows are in `every`
    _waiting: list[LogFile] = field(default_factory=list)
    _touched: list[tuple[int, set[int]]] = field(default_factory=list)

    def after(self, added: Iterable[LogFile] | None, state: Snapshot) -> "MarkedLogs":
        """Return the marked logs of a state: these, and the ones added since.

        If `added` is None, logs were also removed: then all logs of the state are marked again.
        """
        if added is None:
            return _marked_logs(state)
        self.logs += added
        return self

    def follow(self, version: int, events: "KnownEvents") -> bool:
        """Mark the rows of all logs, and those of logs up to a version.

        The version must not decrease from call to call. Returns False if a log cannot be read,
        which is reported then.
        """
        for log in self.logs[self._marked :]:
            parts = events.of(log)
            if parts is None:
                return False
            for part in parts:
                add_events(self.every, part)
            self._marked += 1
            self._waiting.append(log)
        self.version = version
        later: list[LogFile] = []
        for log in self._waiting:
            if log.version > version:
                later.append(log)
                continue
            segments: set[int] = set()
            for part in events.of(log) or ():
                add_events(self.up_to_version, part)
                segments.update(np.unique(part.segment).tolist())
            self._touched.append((log.version, segments))
        self._waiting = later
        return True

    def since(self, version: int) -> set[int]:
        """Return the segments that logs after a version touch."""
        touched: set[int] = set()
        for log_version, segments in reversed(self._touched):
            if log_version <= version:
                break
            touched |= segments
        return touched


@dataclass(slots=True, kw_only=True)
class KnownEvents:
    """The segment logs of a table, each read once.

    `read` has the events of a log by its path, None for a damaged log. `decoded` has the bitmap
    bases of the last checkpoint.
    """

    storage: Storage
    findings: Findings
    buffer: SpillBuffer = field(default_factory=SpillBuffer)
    read: dict[str, list[Spilled] | None] = field(default_factory=dict)
    decoded: dict[BitmapBase, Bitmaps] = field(default_factory=dict)

    def of(self, log: LogFile) -> Iterator[Events] | None:
        """Return the events of a log, some at a time; None if it is damaged."""
        if log.path not in self.read:
            self.read[log.path] = self._read(log)
        spilled = self.read[log.path]
        return None if spilled is None else map(self._events, spilled)

    def _read(self, log: LogFile) -> list[Spilled] | None:
        file = read_found(self.storage, log, self.findings)
        if file is None:
            return None
        with self.findings.going_on("I9", log.path):
            parts = event_parts(file.source(), log.path, log.events, with_next=True)
            return [self._put(part) for part in parts]
        return None

    def _put(self, part: Events) -> Spilled:
        columns: list[Column] = [part.segment, part.offset, part.until]
        if part.next_rows is not None:
            columns += [part.next_rows.segment, part.next_rows.offset]
        return self.buffer.put(columns)

    def _events(self, part: Spilled) -> Events:
        columns = [self.buffer.column(part, index) for index in range(len(part.kinds))]
        segment, offset, until, *next_columns = columns
        next_rows = None
        if next_columns:
            next_rows = RowIds(segment=next_columns[0], offset=next_columns[1])
        return Events(segment=segment, offset=offset, until=until, next_rows=next_rows)


def check_state(
    commits: Sequence[Commit], newest_root: Root | None, sizes: Sizes, events: KnownEvents
) -> Snapshot | None:
    """Compare every checkpoint with the fold of the commits; return the newest state.

    - Returns None if the newest state cannot be put together.
    - Below the oldest commit only savepoints are checked: files of other checkpoints may be
      deleted there.
    - Between the oldest commit and the oldest readable version only lists are checked, because
      logs that the bitmap bases sum up may be deleted there.
    - If the newest checkpoint is in that range, its bases are compared with the newest state, as
      reads use them: they must have all marks of that state's logs.
    """
    storage, findings = events.storage, events.findings
    oldest, savepoints = 0, frozenset[int]()
    if newest_root is not None:
        oldest = newest_root.oldest_version
        savepoints = frozenset(newest_root.savepoints.values())
    by_version = {commit.version: commit for commit in commits}
    first = min(by_version, default=0)
    checkpoints = _checkpoints(storage, sizes, findings)
    roots = {
        root.version: root
        for root in checkpoints
        if root.version >= first or root.version in savepoints
    }
    _check_files_of_savepoints(savepoints, roots, sizes, findings)
    state: Snapshot | None = None
    last: Snapshot | None = None
    folded, stored, marked = FoldedLists(), StoredLists(), MarkedLogs()
    begin = min((*by_version, *roots), default=0)
    newest = max((*by_version, *roots), default=-1)
    for version in range(begin, newest + 1):
        commit = by_version.get(version)
        state = _next_state(state, commit, storage, findings)
        if commit is not None and version >= oldest:
            _check_restored_bases(commit, state, events)
        # Removed, so that its lists are freed: those of all checkpoints at once would be too many
        stored_state = roots.pop(version, None)
        if stored_state is None:
            continue
        if state is not None:
            folded.fold(state)
            marked = marked.after(folded.added_logs, state)
        stored.load(stored_state, folded)
        if state is None:
            # After damage, the checkpoint stands for the commits up to it
            state = stored_state
            marked = _marked_logs(state)
        else:
            _compare_roots(stored_state.root, state.root, _root_path(stored_state), findings)
            _compare_lists(stored_state, state, findings)
        last = stored_state
        if version >= oldest or version in savepoints:
            _check_bases(stored_state, state, marked, events)
    if state is None or state.version != newest:
        return None
    if last is not None and last.version < oldest:
        _check_bases(last, state, _marked_logs(state), events)
    return state


def _check_files_of_savepoints(
    savepoints: Set[int], roots: Mapping[int, Snapshot], sizes: Sizes, findings: Findings
) -> None:
    for version in sorted(savepoints & roots.keys()):
        with findings.going_on("I7", _root_path(roots[version])):
            check_sizes(roots[version], sizes, findings)


def _marked_logs(state: Snapshot) -> MarkedLogs:
    try:
        return MarkedLogs(logs=sorted(state.logs.values(), key=lambda log: log.version))
    except DAMAGE:
        return MarkedLogs()  # reported already, or when the lists are compared


def _checkpoints(storage: Storage, sizes: Sizes, findings: Findings) -> Iterator[Snapshot]:
    for path in sizes:
        version = layout.checkpoint_version(path)
        if version is None:
            continue
        with findings.going_on("I6", path):
            root, sections = decode_root(read_sealed(storage, path), f"{storage.uri}/{path}")
            message = (
                f"it contains version {root.version} instead of {version}; "
                "delete it: it is derived and is written again"
            )
            if findings.expect(root.version == version, "I6", path, message):
                yield Snapshot(storage, root, sections, ())


def _root_path(checkpoint: Snapshot) -> str:
    return layout.checkpoint_path(checkpoint.version, checkpoint.root.write_id)


def _next_state(
    state: Snapshot | None, commit: Commit | None, storage: Storage, findings: Findings
) -> Snapshot | None:
    """Return the state after a commit, None if it cannot be put together."""
    if commit is None:
        return None
    side = commit.actions.ingested_side
    if side:
        invariant, path = "I9", side.path
    else:
        invariant, path = "I1", layout.commit_path(commit.version)
    with findings.going_on(invariant, path):
        if side:
            read_verified(storage, side)
        if commit.version == 0:
            return Snapshot(storage, first_root(commit), {}, (commit,))
        if state is None:
            return None
        fault = row_id_fault(state.root, commit)
        if fault is not None:
            findings.add("I32", path, f"{fault}; restore the file from a backup")
            return None
        if not _is_side_counted(commit, storage, findings):
            return None
        return state.followed_by([commit], lists=())
    return None


def _is_side_counted(commit: Commit, storage: Storage, findings: Findings) -> bool:
    """Return whether a commit assigns as many row ids as its side file needs."""
    path = layout.commit_path(commit.version)
    with findings.going_on("I9", path):
        fault = side_rows_fault(storage, commit)
        if fault is None:
            return True
        findings.add("I32", path, f"{fault}; restore the file from a backup")
    return False


_JSON_NAMES = {"incomplete_ingests": "thinned"}  # of parts of a root whose names differ


def _compare_roots(root: Root, expected: Root, path: str, findings: Findings) -> None:
    for part in fields(Root):
        stored, folded = getattr(root, part.name), getattr(expected, part.name)
        message = (
            f"its {_JSON_NAMES.get(part.name, part.name)} is {stored!r}, the commits add up to "
            f"{folded!r}; delete it; it is derived and is written again"
        )
        findings.expect(stored == folded, "I6", path, message)


def _compare_lists(checkpoint: Snapshot, expected: Snapshot, findings: Findings) -> None:
    for name, list_of in _LISTS.items():
        path = _list_path(checkpoint, name)
        with findings.going_on("I7", path):
            is_same = list_of(checkpoint) == list_of(expected)
            message = (
                f"its {name} are not those that the commits up to {checkpoint.version} add up to; "
                f"delete {_root_path(checkpoint)}, which is derived"
            )
            findings.expect(is_same, "I7", path, message)


def _check_bases(
    checkpoint: Snapshot, state: Snapshot, marked: MarkedLogs, events: KnownEvents
) -> None:
    """Check the bases of a checkpoint by the logs of its state, or of a later state."""
    is_later = checkpoint.version != state.version
    with events.findings.going_on("I7", _list_path(checkpoint, "bases")):
        _check_marks(checkpoint.bases, state, marked, events, is_later=is_later)


def _check_restored_bases(commit: Commit, state: Snapshot | None, events: KnownEvents) -> None:
    """Check the bases that a restore names, by the logs that it brought back."""
    restored = commit.actions.restored
    if state is not None and restored is not None:
        _check_marks(restored.bases, state, _marked_logs(state), events, is_later=False)


def _check_marks(
    bases: Sequence[BitmapBase],
    state: Snapshot,
    marked: MarkedLogs,
    events: KnownEvents,
    *,
    is_later: bool,
) -> None:
    """Check the bases of a list by the logs of a state.

    A base that cannot be read becomes a finding. `bases` has the bases of a group in the order of
    their versions. A base marks the rows of its group together with the bases before it: they are
    its chain. What follows a base that cannot be read is not checked.
    """
    chain_of_group: dict[int, tuple[Bitmaps, ...]] = {}
    cut_groups: set[int] = set()  # their newest base cannot be read, or follows such a base
    decoded: dict[BitmapBase, Bitmaps] = {}
    unchecked: list[tuple[BitmapBase, tuple[Bitmaps, ...]]] = []
    for base in bases:
        if base.after is None:
            cut_groups.discard(base.group)
        elif base.group in cut_groups:
            continue
        cut_groups.add(base.group)
        with events.findings.going_on("I8", base.path):
            marks = events.decoded.get(base)
            if marks is None:
                marks = decode_base(read_verified(state.storage, base), base.path)
            decoded[base] = marks
            before = () if base.after is None else chain_of_group.get(base.group, ())
            chain = (*before, marks)
            chain_of_group[base.group] = chain
            cut_groups.discard(base.group)
            if base not in marked.checked:
                unchecked.append((base, chain))
    # Kept for the next checkpoint, which has most of these bases again
    events.decoded = decoded
    # By version, so that the logs are marked once, also for the bases of several groups
    for base, chain in sorted(unchecked, key=lambda pair: pair[0].version):
        _check_base(base, chain, state, marked, events, is_later=is_later)
        marked.checked.add(base)


def _list_path(checkpoint: Snapshot, name: str) -> str:
    """Return the path of the newest file of a list, or of the root that holds it."""
    files = [*file_parts({name: checkpoint.sections.get(name, ())})]
    return files[-1].path if files else _root_path(checkpoint)


def _marks_of(segment: int, chain: Sequence[Bitmaps]) -> BitMap:
    """Return the rows of a segment that a chain of bases marks together."""
    marks = BitMap()
    for part in chain:
        if segment in part:
            marks |= part[segment]
    return marks


def _check_base(
    base: BitmapBase,
    chain: Sequence[Bitmaps],
    state: Snapshot,
    marked: MarkedLogs,
    events: KnownEvents,
    *,
    is_later: bool,
) -> None:
    """Check that a chain of bases marks the same rows as the logs (I8).

    `chain` has the marks of the bases that `base` follows, and of itself. Only segments of the
    base's group count, and only events up to its version. The earlier bases are checked already,
    so only segments with later events are compared. A merged log may hold younger events as well.
    With `is_later`, the state may have forgotten events of rows that are gone: then marks that its
    logs lack are not damage.
    """
    try:
        segments = state.segments
    except (FormatError, NotFoundError):
        return  # reported already: the state is a checkpoint whose own lists are damaged
    if base.version < marked.version:
        marked = _marked_logs(state)  # only damage leads to a base out of order
    if not marked.follow(base.version, events):
        return  # reported already: without the log the base cannot be checked
    since = -1 if base.after is None else base.after
    touched = marked.since(since) & segments.keys()
    expected = {number for number in touched if segments[number].group == base.group}
    own = chain[-1].keys() & segments.keys()
    for number in sorted(own | expected):
        marks = _marks_of(number, chain)
        logged = marked.up_to_version.get(number, BitMap())
        if number not in expected and segments[number].group != base.group:
            logged = BitMap()
        if marks == logged:
            continue  # and so within what all logs mark
        is_within = is_later or marks <= marked.every.get(number, BitMap())
        message = (
            f"segment {number} has {len(marks)} marked rows, the logs up to version {base.version} "
            f"mark {len(logged)}; delete the checkpoints that name it, they are derived"
        )
        findings = events.findings
        findings.expect(logged <= marks and is_within, "I8", base.path, message)
