"""The state of a table at a version: a small root that every writer holds, and long lists that are read only when they are asked for."""

import functools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from threading import Lock
from typing import Any

from opal_lake.bitmap import BitmapBase
from opal_lake.commit import (
    Commit,
    Rewrite,
    SideFile,
    file_from_json,
    file_to_json,
    log_from_json,
    log_to_json,
    run_from_json,
    run_to_json,
)
from opal_lake.errors import FormatError
from opal_lake.sections import SectionRef, decode_section
from opal_lake.segment import DataFile, LogFile, RunFile, Segment, segment_from_json, segment_to_json
from opal_lake.storage.protocol import Storage
from opal_lake.storage.verified import read_verified
from opal_lake.table_spec import TableSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Root:
    """What every reader and writer needs of a version. `viewed` is the last version up to it that changed what a read sees."""

    table_id: str
    version: int
    write_id: str
    timestamp_us: int
    spec: TableSpec
    epoch: int = 0
    floor: int | None = None
    oldest_version: int = 0
    viewed: int = 0
    savepoints: Mapping[str, int] = field(default_factory=dict)
    greatest_number: int = 0
    groups: Mapping[int, int] = field(default_factory=dict)
    abandoned: frozenset[int] = frozenset()
    applications: Mapping[str, int] = field(default_factory=dict)
    rows: int = 0
    pending: int = 0
    events: int = 0


def first_root(commit: Commit) -> Root:
    """The root of version 0."""
    if commit.actions.spec is None:
        raise FormatError(f"version {commit.version} does not say what the table is; restore the log from a backup")
    return Root(
        table_id=commit.table_id,
        version=commit.version,
        write_id=commit.write_id,
        timestamp_us=commit.timestamp_us,
        spec=commit.actions.spec,
    )


def fold_root(root: Root, commit: Commit, ingested: Iterable[DataFile]) -> Root:
    """The root after one more commit."""
    groups, rows, pending = dict(root.groups), root.rows, root.pending
    for file in ingested:
        groups[file.group] = groups.get(file.group, 0) + file.rows
        rows += file.rows
        pending += 1
    actions = commit.actions
    if actions.rewrite:
        rows -= actions.rewrite.dropped_rows
        for segment in actions.rewrite.gone:
            groups[segment.group] -= segment.rows
    applications = dict(root.applications) | ({commit.application[0]: commit.application[1]} if commit.application else {})
    savepoints = {name: version for name, version in root.savepoints.items() if name not in actions.released}
    return replace(
        root,
        version=commit.version,
        write_id=commit.write_id,
        timestamp_us=commit.timestamp_us,
        spec=actions.spec or root.spec,
        epoch=commit.epoch,
        floor=root.floor if actions.floor is None else actions.floor,
        oldest_version=root.oldest_version if actions.oldest_version is None else actions.oldest_version,
        viewed=commit.version if commit.changes_view else root.viewed,
        savepoints=savepoints | dict(actions.savepoints),
        greatest_number=max(root.greatest_number, commit.number or 0),
        groups=groups,
        abandoned=root.abandoned | set(actions.abandoned),
        applications=applications,
        rows=rows,
        pending=pending - len(actions.processed),
        events=root.events + sum(log.events for log in actions.add_logs) - actions.removed_events,
    )


_SIDES_KEPT = 16
_NO_REWRITE = Rewrite()
_side_files: dict[tuple[str, SideFile], tuple[DataFile | str, ...]] = {}
_side_lock = Lock()


class Snapshot:
    """A version: the root, the checkpoint's sections, and the commits since. Immutable; lists are loaded once, when first asked for."""

    def __init__(self, storage: Storage, root: Root, sections: Mapping[str, SectionRef], commits: tuple[Commit, ...]) -> None:
        self.storage = storage
        self.root = root
        self.sections = sections
        self.commits = commits

    @property
    def version(self) -> int:
        return self.root.version

    @property
    def spec(self) -> TableSpec:
        return self.root.spec

    def followed_by(self, commits: Iterable[Commit]) -> "Snapshot":
        """The version after more commits."""
        more = tuple(commits)
        root = self.root
        for commit in more:
            root = fold_root(root, commit, ingested_files(self.storage, commit))
        return Snapshot(self.storage, root, self.sections, self.commits + more)

    @functools.cached_property
    def files(self) -> dict[str, DataFile]:
        """Data files by path, pending ones too."""
        found = {file.path: file for file in self._section("files", file_from_json)}
        for commit in self.commits:
            found.update((file.path, file) for file in ingested_files(self.storage, commit))
            rewritten = rewritten_files(self.storage, commit)
            found.update((file.path, file) for file in rewritten.add)
            for path in rewritten.remove:
                found.pop(path, None)
        return found

    @functools.cached_property
    def segments(self) -> dict[int, Segment]:
        """Segments by id, pending ones too."""
        found = {segment.id: segment for segment in self._section("segments", segment_from_json)}
        for commit in self.commits:
            found.update((file.segments[0], segment_of_file(file)) for file in ingested_files(self.storage, commit))
            for segment in commit.actions.rewrite.gone if commit.actions.rewrite else ():
                found.pop(segment.id, None)
        return found

    @functools.cached_property
    def pending(self) -> frozenset[int]:
        """Segments whose rows no MetaGen has looked at yet: their rows are not visible."""
        found = set(self._section("pending", int))
        for commit in self.commits:
            found.update(file.segments[0] for file in ingested_files(self.storage, commit))
            found.difference_update(commit.actions.processed)
        return frozenset(found)

    @functools.cached_property
    def logs(self) -> dict[str, LogFile]:
        found = {log.path: log for log in self._section("logs", log_from_json)}
        for commit in self.commits:
            brought = (log if log.version >= 0 else replace(log, version=commit.version) for log in commit.actions.add_logs)
            found.update((log.path, log) for log in brought)
            for path in commit.actions.remove_logs:
                found.pop(path, None)
        return found

    @functools.cached_property
    def runs(self) -> dict[str, RunFile]:
        found = {run.path: run for run in self._section("runs", run_from_json)}
        for commit in self.commits:
            found.update((run.path, run) for run in commit.actions.add_runs)
            for path in commit.actions.remove_runs:
                found.pop(path, None)
        return found

    @functools.cached_property
    def tokens(self) -> dict[str, int]:
        """The version that applied each remembered token, oldest first."""
        found = dict(self._section("tokens", token_from_json))
        for commit in self.commits:
            if commit.token:
                found.pop(commit.token, None)  # a token that was forgotten and came again is a new one
                found[commit.token] = commit.version
        keep = self.spec.integer("token_keep")
        return dict(list(found.items())[-keep:])

    @functools.cached_property
    def partitions(self) -> dict[str, frozenset[int]]:
        """The numbers of the ingests that carry each partition key."""
        found: dict[str, set[int]] = {}
        for key, number in self._section("partitions", list):
            found.setdefault(key, set()).add(number)
        for commit in self.commits:
            if commit.partition_key is not None and commit.number is not None:
                found.setdefault(commit.partition_key, set()).add(commit.number)
        return {key: frozenset(numbers) for key, numbers in found.items()}

    @functools.cached_property
    def bases(self) -> dict[int, BitmapBase]:
        """The checkpoint's bitmap bases by group; none once events were forgotten, which they hold still."""
        if any(commit.actions.forgotten for commit in self.commits):
            return {}
        return {base.group: base for base in self._section("bases", base_from_json)}

    def _section(self, name: str, from_json: Callable[[Any], Any]) -> list[Any]:
        ref = self.sections.get(name)
        return decode_section(read_verified(self.storage, ref), ref.path, from_json) if ref else []


def ingested_files(storage: Storage, commit: Commit) -> tuple[DataFile, ...]:
    """The files that a commit ingested, wherever it lists them."""
    side = commit.actions.ingested_side
    if side is None:
        return commit.actions.ingested
    return tuple(item for item in _side_items(storage, side) if isinstance(item, DataFile))


def rewritten_files(storage: Storage, commit: Commit) -> Rewrite:
    """What a commit rewrote, wherever it lists it."""
    rewrite = commit.actions.rewrite or _NO_REWRITE
    if rewrite.side is None:
        return rewrite
    items = _side_items(storage, rewrite.side)
    added = tuple(item for item in items if isinstance(item, DataFile))
    return replace(rewrite, add=added, remove=tuple(item for item in items if isinstance(item, str)))


def _side_items(storage: Storage, side: SideFile) -> tuple[DataFile | str, ...]:
    with _side_lock:
        found = _side_files.get((storage.uri, side))
    if found is None:
        found = tuple(decode_section(read_verified(storage, side), side.path, _side_item))
        with _side_lock:
            if len(_side_files) >= _SIDES_KEPT:
                _side_files.clear()
            _side_files[storage.uri, side] = found
    return found


def _side_item(data: Any) -> DataFile | str:
    """A file, or the path of one that is removed."""
    return data if isinstance(data, str) else file_from_json(data)


def segment_of_file(file: DataFile) -> Segment:
    """The segment that an ingested file brought."""
    return Segment(id=file.segments[0], rows=file.rows, group=file.group)


def token_from_json(data: list[Any]) -> tuple[str, int]:
    return data[0], data[1]


def base_to_json(base: BitmapBase) -> list[Any]:
    return [base.group, base.path, base.size, base.crc32, base.version, base.write_id]


def base_from_json(data: list[Any]) -> BitmapBase:
    return BitmapBase(group=data[0], path=data[1], size=data[2], crc32=data[3], version=data[4], write_id=data[5])


# How each section's items are written; the order is the one a checkpoint writes them in.
SECTION_WRITERS: dict[str, tuple[Callable[[Snapshot], Iterable[Any]], Callable[[Any], Any]]] = {
    "files": (lambda snapshot: snapshot.files.values(), file_to_json),
    "segments": (lambda snapshot: snapshot.segments.values(), segment_to_json),
    "pending": (lambda snapshot: sorted(snapshot.pending), int),
    "logs": (lambda snapshot: snapshot.logs.values(), log_to_json),
    "runs": (lambda snapshot: snapshot.runs.values(), run_to_json),
    "partitions": (lambda snapshot: [(key, number) for key in snapshot.partitions for number in sorted(snapshot.partitions[key])], list),
    "tokens": (lambda snapshot: snapshot.tokens.items(), list),
    "bases": (lambda snapshot: snapshot.bases.values(), base_to_json),
}
