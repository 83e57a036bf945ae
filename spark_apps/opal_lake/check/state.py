"""The state that the commits add up to, and every checkpoint against it (I6 to I8)."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from pyroaring import BitMap

from opal_lake import layout
from opal_lake.bitmap import BitmapBase, Bitmaps, add_events, decode_base
from opal_lake.check.chain import Sizes
from opal_lake.check.files import check_sizes
from opal_lake.check.finding import Findings
from opal_lake.checkpoint import decode_root
from opal_lake.commit import Commit
from opal_lake.errors import FormatError, NotFoundError
from opal_lake.segment import LogFile
from opal_lake.segment_log import Events, read_events
from opal_lake.snapshot import Root, Snapshot, first_root
from opal_lake.storage.protocol import Storage
from opal_lake.storage.verified import read_verified

_LISTS: dict[str, Callable[[Snapshot], Any]] = {
    "files": lambda snapshot: snapshot.files,
    "segments": lambda snapshot: snapshot.segments,
    "pending": lambda snapshot: snapshot.pending,
    "logs": lambda snapshot: snapshot.logs,
    "runs": lambda snapshot: snapshot.runs,
    "partitions": lambda snapshot: snapshot.partitions,
    "tokens": lambda snapshot: [*snapshot.tokens.items()],
}


@dataclass(slots=True, kw_only=True)
class KnownEvents:
    """Segment logs, each read once; None where it cannot be."""

    storage: Storage
    findings: Findings
    read: dict[str, Events | None] = field(default_factory=dict)

    def of(self, log: LogFile) -> Events | None:
        if log.path not in self.read:
            self.read[log.path] = None
            with self.findings.going_on("I9", log.path):
                self.read[log.path] = read_events(self.storage, log)
        return self.read[log.path]


def check_state(commits: Sequence[Commit], savepoints: frozenset[int], sizes: Sizes, events: KnownEvents) -> Snapshot | None:
    """Compare every checkpoint with the fold of the commits; the newest state that can be known.

    Below the oldest commit only savepoints count: what other checkpoints there name may be gone. Theirs must not be.
    """
    storage, findings = events.storage, events.findings
    by_version = {commit.version: commit for commit in commits}
    first = min(by_version, default=0)
    counted = (root for root in _checkpoints(storage, sizes, findings) if root.version >= first or root.version in savepoints)
    roots = {root.version: root for root in counted}
    for version in sorted(savepoints & roots.keys()):
        with findings.going_on("I7", _root_path(roots[version])):
            check_sizes(roots[version], sizes, findings)
    state: Snapshot | None = None
    newest = max((*by_version, *roots), default=-1)
    for version in range(min((*by_version, *roots), default=0), newest + 1):
        state = _next_state(state, by_version.get(version), storage, findings)
        found = roots.get(version)
        if found is None:
            continue
        if state is None:
            state = found  # damage before it: the checkpoint says what came of it
        else:
            _compare_roots(found.root, state.root, _root_path(found), findings)
            _compare_lists(found, state, findings)
        _check_bases(found, state, events)
    return state if state is not None and state.version == newest else None


def _checkpoints(storage: Storage, sizes: Sizes, findings: Findings) -> Iterator[Snapshot]:
    for path in sizes:
        version = layout.checkpoint_version(path)
        if version is None:
            continue
        with findings.going_on("I6", path):
            root, sections = decode_root(storage.get(path), f"{storage.uri}/{path}")
            if findings.expect(root.version == version, "I6", path, f"it holds version {root.version}; delete it, it is derived"):
                yield Snapshot(storage, root, sections, ())


def _root_path(found: Snapshot) -> str:
    return layout.checkpoint_path(found.version, found.root.write_id)


def _next_state(state: Snapshot | None, commit: Commit | None, storage: Storage, findings: Findings) -> Snapshot | None:
    if commit is None:
        return None
    side = commit.actions.ingested_side
    path = side.path if side else layout.commit_path(commit.version)
    with findings.going_on("I9" if side else "I1", path):
        if side:
            read_verified(storage, side)
        if commit.version == 0:
            return Snapshot(storage, first_root(commit), {}, (commit,))
        return state.followed_by([commit]) if state else None
    return None


def _compare_roots(found: Root, wanted: Root, path: str, findings: Findings) -> None:
    for part in fields(Root):
        here, there = getattr(found, part.name), getattr(wanted, part.name)
        findings.expect(
            here == there, "I6", path, f"its {part.name} is {here!r}, the commits add up to {there!r}; delete it, it is derived"
        )


def _compare_lists(found: Snapshot, wanted: Snapshot, findings: Findings) -> None:
    for name, list_of in _LISTS.items():
        path = found.sections[name].path if name in found.sections else _root_path(found)
        with findings.going_on("I7", path):
            same = list_of(found) == list_of(wanted)
            findings.expect(
                same, "I7", path, f"its {name} are not what the commits up to {found.version} add up to; delete {_root_path(found)}"
            )


def _check_bases(found: Snapshot, state: Snapshot, events: KnownEvents) -> None:
    findings = events.findings
    path = found.sections["bases"].path if "bases" in found.sections else _root_path(found)
    with findings.going_on("I7", path):
        for base in found.bases.values():
            with findings.going_on("I8", base.path):
                _check_base(base, state, events)


def _check_base(base: BitmapBase, state: Snapshot, events: KnownEvents) -> None:
    """The base is the fold of all events up to its version, of the segments of its group. A merged log may hold younger ones as well."""
    marked = decode_base(read_verified(state.storage, base), base.path)
    wanted: Bitmaps = {}
    every: Bitmaps = {}
    try:
        logs, segments = [*state.logs.values()], state.segments
    except (FormatError, NotFoundError):
        return  # found already: the state is a checkpoint whose own lists are damaged
    for log in logs:
        known = events.of(log)
        if known is None:
            return  # found already: without the log nothing can be said of the base
        add_events(every, known)
        if log.version <= base.version:
            add_events(wanted, known)
    wanted = {number: marks for number, marks in wanted.items() if number in segments and segments[number].group == base.group}
    for number in sorted((marked.keys() & segments.keys()) | wanted.keys()):
        here, there = marked.get(number, BitMap()), wanted.get(number, BitMap())
        events.findings.expect(
            there <= here <= every.get(number, BitMap()),
            "I8",
            base.path,
            f"segment {number} has {len(here)} marked rows, the logs up to version {base.version} mark {len(there)}; "
            "delete the checkpoints that name it, they are derived",
        )
