"""The state that the commits add up to, and every checkpoint against it (I6 to I8, I32)."""

from collections.abc import Callable, Iterable, Iterator, Sequence
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
from opal_lake.inspect.check.shelf import Shelf, Shelved
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
    """The rows that the logs of a state mark: up to a version, and all of them.

    As long as logs are only added, none is marked twice, and `since` says which segments they touch.
    """

    logs: list[LogFile] = field(default_factory=list)
    version: int = -1
    up_to_version: Bitmaps = field(default_factory=dict)
    every: Bitmaps = field(default_factory=dict)
    checked: set[BitmapBase] = field(default_factory=set)
    _marked: int = 0  # of the logs, those in `every`
    _waiting: list[LogFile] = field(default_factory=list)
    _touched: list[tuple[int, set[int]]] = field(default_factory=list)

    def after(self, added: Iterable[LogFile] | None, state: Snapshot) -> "MarkedLogs":
        """Return the logs of a state: these and the added ones, or all anew where some have gone."""
        if added is None:
            return _marked_logs(state)
        self.logs += added
        return self

    def follow(self, version: int, events: "KnownEvents") -> bool:
        """Mark the rows of all logs, and of those up to a version that never falls.

        False where a log cannot be read, which is a finding by then.
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
        later = []
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
    """Segment logs, each read once from the store; None where it cannot be."""

    storage: Storage
    findings: Findings
    shelf: Shelf = field(default_factory=Shelf)
    read: dict[str, list[Shelved] | None] = field(default_factory=dict)
    decoded: dict[BitmapBase, Bitmaps] = field(default_factory=dict)

    def of(self, log: LogFile) -> Iterator[Events] | None:
        if log.path not in self.read:
            self.read[log.path] = None
            file = read_found(self.storage, log, self.findings)
            if file is not None:
                with self.findings.going_on("I9", log.path):
                    self.read[log.path] = [
                        self._put(part)
                        for part in event_parts(file.source(), log.path, log.events, with_next=True)
                    ]
        shelved = self.read[log.path]
        return None if shelved is None else map(self._events, shelved)

    def _put(self, part: Events) -> Shelved:
        others = () if part.next_rows is None else (part.next_rows.segment, part.next_rows.offset)
        return self.shelf.put((part.segment, part.offset, part.until, *others))

    def _events(self, part: Shelved) -> Events:
        segment, offset, until, *others = (
            self.shelf.column(part, index) for index in range(len(part.kinds))
        )
        next_rows = RowIds(segment=others[0], offset=others[1]) if others else None
        return Events(segment=segment, offset=offset, until=until, next_rows=next_rows)


def check_state(
    commits: Sequence[Commit], kept: Root | None, sizes: Sizes, events: KnownEvents
) -> Snapshot | None:
    """Compare every checkpoint with the fold of the commits; the newest state that can be known.

    Below the oldest commit only savepoints count: what other checkpoints there name may be gone. Theirs must not be. Between the oldest
    commit and the oldest readable version the lists count, and bitmap bases only of the newest checkpoint, by which reads go: the logs that
    they sum up may be gone, but what the newest version's logs mark has to be in them.
    """
    storage, findings = events.storage, events.findings
    oldest, savepoints = (
        (kept.oldest_version, frozenset(kept.savepoints.values())) if kept else (0, frozenset())
    )
    by_version = {commit.version: commit for commit in commits}
    first = min(by_version, default=0)
    counted = (
        root
        for root in _checkpoints(storage, sizes, findings)
        if root.version >= first or root.version in savepoints
    )
    roots = {root.version: root for root in counted}
    for version in sorted(savepoints & roots.keys()):
        with findings.going_on("I7", _root_path(roots[version])):
            check_sizes(roots[version], sizes, findings)
    state, last = None, None
    folded, stored, marked = FoldedLists(), StoredLists(), MarkedLogs()
    newest = max((*by_version, *roots), default=-1)
    for version in range(min((*by_version, *roots), default=0), newest + 1):
        commit = by_version.get(version)
        state = _next_state(state, commit, storage, findings)
        if state is not None and commit is not None and version >= oldest:
            _check_restored_bases(commit, state, events)
        checkpoint = roots.pop(
            version, None
        )  # its lists go with it: of all checkpoints at once they would be too many
        if checkpoint is None:
            continue
        if state is not None:
            folded.fold(state)
            marked = marked.after(folded.added_logs, state)
        stored.load(checkpoint, folded)
        if state is None:
            state = checkpoint  # damage before it: the checkpoint says what came of it
            marked = _marked_logs(state)
        else:
            _compare_roots(checkpoint.root, state.root, _root_path(checkpoint), findings)
            _compare_lists(checkpoint, state, findings)
        last = checkpoint
        if version >= oldest or version in savepoints:
            _check_bases(checkpoint, state, marked, events)
    if state is None or state.version != newest:
        return None
    if last is not None and last.version < oldest:
        _check_bases(last, state, _marked_logs(state), events)
    return state


def _marked_logs(state: Snapshot) -> MarkedLogs:
    try:
        return MarkedLogs(logs=sorted(state.logs.values(), key=lambda log: log.version))
    except DAMAGE:
        return MarkedLogs()  # reported already, or by whoever compares the lists


def _checkpoints(storage: Storage, sizes: Sizes, findings: Findings) -> Iterator[Snapshot]:
    for path in sizes:
        version = layout.checkpoint_version(path)
        if version is None:
            continue
        with findings.going_on("I6", path):
            root, sections = decode_root(read_sealed(storage, path), f"{storage.uri}/{path}")
            if findings.expect(
                root.version == version,
                "I6",
                path,
                f"it holds version {root.version}; delete it, it is derived",
            ):
                yield Snapshot(storage, root, sections, ())


def _root_path(checkpoint: Snapshot) -> str:
    return layout.checkpoint_path(checkpoint.version, checkpoint.root.write_id)


def _next_state(
    state: Snapshot | None, commit: Commit | None, storage: Storage, findings: Findings
) -> Snapshot | None:
    if commit is None:
        return None
    side = commit.actions.ingested_side
    path = side.path if side else layout.commit_path(commit.version)
    with findings.going_on("I9" if side else "I1", path):
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
    """Whether a commit gives out as many row ids as the files of its side file take."""
    path = layout.commit_path(commit.version)
    with findings.going_on("I9", path):
        fault = side_rows_fault(storage, commit)
        if fault is None:
            return True
        findings.add("I32", path, f"{fault}; restore the file from a backup")
    return False


_JSON_NAMES = {"incomplete_ingests": "thinned"}  # of a root's parts, where they differ


def _compare_roots(root: Root, expected: Root, path: str, findings: Findings) -> None:
    for part in fields(Root):
        here, there = getattr(root, part.name), getattr(expected, part.name)
        findings.expect(
            here == there,
            "I6",
            path,
            f"its {_JSON_NAMES.get(part.name, part.name)} is {here!r}, the commits add up to {there!r}; delete it, it is derived",
        )


def _compare_lists(checkpoint: Snapshot, expected: Snapshot, findings: Findings) -> None:
    for name, list_of in _LISTS.items():
        path = _list_path(checkpoint, name)
        with findings.going_on("I7", path):
            same = list_of(checkpoint) == list_of(expected)
            findings.expect(
                same,
                "I7",
                path,
                f"its {name} are not what the commits up to {checkpoint.version} add up to; delete {_root_path(checkpoint)}",
            )


def _check_bases(
    checkpoint: Snapshot, state: Snapshot, marked: MarkedLogs, events: KnownEvents
) -> None:
    """By the logs of a state: that of the checkpoint, or a later one."""
    is_later = checkpoint.version != state.version
    with events.findings.going_on("I7", _list_path(checkpoint, "bases")):
        _check_marks(checkpoint.bases, state, marked, events, is_later=is_later)


def _check_restored_bases(commit: Commit, state: Snapshot, events: KnownEvents) -> None:
    """Check what a restore says that serves, by the logs that it brought back."""
    restored = commit.actions.restored
    if restored is not None:
        _check_marks(restored.bases, state, _marked_logs(state), events, is_later=False)


def _check_marks(
    bases: Sequence[BitmapBase],
    state: Snapshot,
    marked: MarkedLogs,
    events: KnownEvents,
    *,
    is_later: bool,
) -> None:
    chains: dict[int, tuple[Bitmaps, ...]] = {}
    used: dict[BitmapBase, Bitmaps] = {}
    unchecked: list[tuple[BitmapBase, tuple[Bitmaps, ...]]] = []
    for base in bases:
        with events.findings.going_on("I8", base.path):
            here = events.decoded.get(base)
            if here is None:
                here = decode_base(read_verified(state.storage, base), base.path)
            used[base] = here
            before = () if base.after is None else chains.get(base.group, ())
            chains[base.group] = (*before, here)
            if base not in marked.checked:
                unchecked.append((base, chains[base.group]))
    events.decoded = used  # the next checkpoint has most of them again
    # Those of one chain rise. Of several groups the logs are to be marked once, too
    for base, chain in sorted(unchecked, key=lambda pair: pair[0].version):
        _check_base(base, chain, state, marked, events, is_later=is_later)
        marked.checked.add(base)


def _list_path(checkpoint: Snapshot, name: str) -> str:
    """The newest file of a list; the root, where the list is in it."""
    files = [*file_parts({name: checkpoint.sections.get(name, ())})]
    return files[-1].path if files else _root_path(checkpoint)


def _check_base(
    base: BitmapBase,
    chain: Sequence[Bitmaps],
    state: Snapshot,
    marked: MarkedLogs,
    events: KnownEvents,
    *,
    is_later: bool,
) -> None:
    """The base, and those that it follows, are the fold of all events up to its version, of the segments of its group.

    Those before it in its chain are checked already, so that only what came since counts. A merged log may hold younger events as well. A later
    state may have forgotten events of rows that are gone, so that marks beyond its logs are no damage there.
    """
    try:
        segments = state.segments
    except (FormatError, NotFoundError):
        return  # reported already: the state is a checkpoint whose own lists are damaged
    if base.version < marked.version:  # which only damage does
        marked = _marked_logs(state)
    if not marked.follow(base.version, events):
        return  # reported already: without the log the base cannot be checked
    since = -1 if base.after is None else base.after
    expected = {
        number
        for number in marked.since(since)
        if number in segments and segments[number].group == base.group
    }
    known = marked.up_to_version
    for number in sorted((chain[-1].keys() & segments.keys()) | expected):
        here = BitMap.union(*(part[number] for part in chain if number in part), BitMap())
        there = known.get(number, BitMap())
        if number not in expected and segments[number].group != base.group:
            there = BitMap()
        if here == there:
            continue  # and so within what all logs mark
        events.findings.expect(
            there <= here and (is_later or here <= marked.every.get(number, BitMap())),
            "I8",
            base.path,
            f"segment {number} has {len(here)} marked rows, the logs up to version {base.version} mark {len(there)}; "
            "delete the checkpoints that name it, they are derived",
        )
