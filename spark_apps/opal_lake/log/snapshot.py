"""The state of a table at a version: a small root that every writer holds, and long lists that are read only when they are asked for."""

import functools
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from threading import Lock
from typing import Any

from opal_lake import checked, layout
from opal_lake.data.segment import DataFile, LogFile, RunFile, Segment, Segments, segment_from_json, segment_to_json
from opal_lake.errors import FormatError
from opal_lake.events.bitmap import BitmapBase
from opal_lake.layout import PathKind, own_path
from opal_lake.log.commit import (
    Commit,
    Rewrite,
    SideFile,
    business_after,
    canonical_json,
    file_from_json,
    file_to_json,
    log_from_json,
    log_to_json,
    run_from_json,
    run_to_json,
)
from opal_lake.log.sections import GONE, InlinePart, Part, Sections, decode_lines, decode_section, is_gone
from opal_lake.spec.business_snapshots import BusinessSnapshots
from opal_lake.spec.table_spec import TableSpec
from opal_lake.storage.protocol import Storage
from opal_lake.storage.verified import read_verified


@dataclass(frozen=True, slots=True, kw_only=True)
class Root:
    """What every reader and writer needs of a version. `viewed` is the last version up to it that changed what a read sees; `clock_repairs`
    are those that corrected times of versions that can be read.

    `incomplete_ingests` are the numbers of ingests with a partition key some of whose rows a major compaction dropped.
    """

    table_id: str
    version: int
    write_id: str
    timestamp_us: int
    spec: TableSpec
    epoch: int = 0
    floor: int | None = None
    oldest_version: int = 0
    viewed: int = 0
    clock_repairs: tuple[int, ...] = ()
    savepoints: Mapping[str, int] = field(default_factory=dict)
    business: BusinessSnapshots = field(default_factory=BusinessSnapshots)
    greatest_number: int = 0
    groups: Mapping[int, int] = field(default_factory=dict)
    abandoned: frozenset[int] = frozenset()
    incomplete_ingests: frozenset[int] = frozenset()
    applications: Mapping[str, int] = field(default_factory=dict)
    rows: int = 0
    pending: int = 0
    events: int = 0
    vouchers: Mapping[int, str] = field(default_factory=dict, compare=False)  # write ids of commits that vouch for later ones


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
        vouchers={commit.version: commit.write_id},
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
    oldest = root.oldest_version if actions.oldest_version is None else actions.oldest_version
    repairs = (*root.clock_repairs, commit.version) if actions.corrected_times else root.clock_repairs
    savepoints = {name: version for name, version in root.savepoints.items() if name not in actions.released}
    vouching, known = layout.vouching_versions(commit.version), {**root.vouchers, commit.version: commit.write_id}
    return replace(
        root,
        version=commit.version,
        write_id=commit.write_id,
        timestamp_us=commit.timestamp_us,
        spec=actions.spec or root.spec,
        epoch=commit.epoch,
        floor=root.floor if actions.floor is None else actions.floor,
        oldest_version=oldest,
        clock_repairs=tuple(version for version in repairs if version > oldest),
        viewed=commit.version if commit.changes_view else root.viewed,
        savepoints=savepoints | dict(actions.savepoints),
        business=business_after(root.business, commit),
        greatest_number=max(root.greatest_number, commit.number or 0),
        groups=groups,
        abandoned=root.abandoned | set(actions.abandoned),
        incomplete_ingests=root.incomplete_ingests | set(actions.rewrite.incomplete_ingests)
        if actions.rewrite
        else root.incomplete_ingests,
        applications=applications,
        rows=rows,
        pending=pending - len(actions.processed),
        events=root.events + sum(log.events for log in actions.add_logs) - actions.removed_events,
        vouchers={version: write_id for version, write_id in known.items() if version in vouching},
    )


_SIDES_KEPT = 16
_NO_REWRITE = Rewrite()
_side_files: dict[tuple[str, SideFile], tuple[DataFile | str, ...]] = {}
_side_lock = Lock()


class Snapshot:
    """A version: the root, the checkpoint's sections, and the commits since. Immutable; lists are loaded once, when first asked for."""

    def __init__(self, storage: Storage, root: Root, sections: Sections, commits: tuple[Commit, ...]) -> None:
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
        return self._list("files")

    @functools.cached_property
    def segments(self) -> dict[int, Segment]:
        """Segments by id, pending ones too."""
        return Segments(self._list("segments"))

    @functools.cached_property
    def pending(self) -> frozenset[int]:
        """Segments whose rows no MetaGen has looked at yet: their rows are not visible."""
        return frozenset(self._list("pending"))

    @functools.cached_property
    def logs(self) -> dict[str, LogFile]:
        return self._list("logs")

    @functools.cached_property
    def runs(self) -> dict[str, RunFile]:
        return self._list("runs")

    @functools.cached_property
    def tokens(self) -> dict[str, int]:
        """The version that applied each remembered token, oldest first."""
        return dict(list(self._list("tokens").items())[-self.spec.integer("token_keep") :])

    @functools.cached_property
    def partitions(self) -> dict[str, frozenset[int]]:
        """The numbers of the ingests that carry each partition key."""
        numbers_by_key: dict[str, set[int]] = {}
        for key, number in self._list("partitions"):
            numbers_by_key.setdefault(key, set()).add(number)
        return {key: frozenset(numbers) for key, numbers in numbers_by_key.items()}

    @functools.cached_property
    def bases(self) -> tuple[BitmapBase, ...]:
        """The checkpoint's bitmap bases, of each group oldest first; none once events were forgotten, which they hold still."""
        if any(commit.actions.forgotten for commit in self.commits):
            return ()
        return tuple(base for part in self.sections.get("bases", ()) for base in decode_section(*self.part_bytes(part), base_from_json))

    def logs_after(self, version: int) -> Iterable[LogFile]:
        """The logs with events of later versions. Parts of the list that are older hold none of them, and are not opened."""
        if "logs" in self.__dict__ or version < 0:
            return [log for log in self.logs.values() if log.version > version]
        parts = [part for part in self.sections.get("logs", ()) if part.version > version]
        return [log for log in self._fold("logs", parts).values() if log.version > version]

    def recent_files(self) -> dict[str, DataFile]:
        """The files that came since the last part of the list that lies in a file: not all, and few."""
        newest = self.sections.get("files", ())[-1:]
        return self._fold("files", [part for part in newest if isinstance(part, InlinePart)])

    def version_of_token(self, token: str) -> int | None:
        """As in `tokens`; a token that is not there is not looked for item by item."""
        if "tokens" not in self.__dict__ and all(commit.token != token for commit in self.commits):
            begins = canonical_json([token])[:-1] + b","
            parts = (decode_lines(*self.part_bytes(part)) for part in self.sections.get("tokens", ()))
            if not any(line.startswith(begins) for lines in parts for line in lines):
                return None
        return self.tokens.get(token)

    def changes(self, name: str) -> Iterator[tuple[Hashable, Any]]:
        """What the commits since the checkpoint brought into a list, and what they took out of it: None."""
        change = LISTS[name].changes
        return (item for commit in self.commits for item in change(self.storage, commit))

    def part_bytes(self, part: Part) -> tuple[bytes, str]:
        """A part of a list, and where it lies."""
        if isinstance(part, InlinePart):
            return part.data, f"a list within {layout.CHECKPOINTS} of version {part.version}"
        return read_verified(self.storage, part), part.path

    def _list(self, name: str) -> dict[Any, Any]:
        return self._fold(name, self.sections.get(name, ()))

    def _fold(self, name: str, parts: Iterable[Part]) -> dict[Any, Any]:
        items: dict[Any, Any] = {}
        for part in parts:
            items = _extended(items, decode_section(*self.part_bytes(part), LISTS[name].change_from_json))
        return _extended(items, self.changes(name))


def _extended(items: dict[Any, Any], changes: Iterable[tuple[Hashable, Any]]) -> dict[Any, Any]:
    """In place: what comes again comes last."""
    for key, value in changes:
        items.pop(key, None)
        if value is not None:
            items[key] = value
    return items


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
        items = _side_files.get((storage.uri, side))
    if items is None:
        items = tuple(decode_section(read_verified(storage, side), side.path, _side_item))
        with _side_lock:
            if len(_side_files) >= _SIDES_KEPT:
                _side_files.clear()
            _side_files[storage.uri, side] = items
    return items


def _side_item(data: Any) -> DataFile | str:
    """A file, or the path of one that is removed."""
    return data if isinstance(data, str) else file_from_json(data)  # a path of that kind is only taken off a list


def segment_of_file(file: DataFile) -> Segment:
    """The segment that an ingested file brought."""
    return Segment(id=file.segments[0], rows=file.rows, group=file.group)


def _pair_from_json(data: list[Any]) -> int:
    """Of a text and a number, the number."""
    name, number = data
    checked.text(name)
    return checked.count(number)


def base_to_json(base: BitmapBase) -> list[Any]:
    where = [base.group, base.path, base.size, base.crc32, base.version, base.write_id]
    return where if base.after is None else [*where, base.after]


def base_from_json(data: list[Any]) -> BitmapBase:
    return BitmapBase(
        group=checked.count(data[0]),
        path=own_path(PathKind.BASE, data[1]),
        size=checked.count(data[2]),
        crc32=checked.crc(data[3]),
        version=checked.count(data[4]),
        write_id=checked.plain_id(data[5]),
        after=checked.count(data[6]) if len(data) > 6 else None,
    )


def _file_changes(storage: Storage, commit: Commit) -> Iterator[tuple[str, DataFile | None]]:
    yield from ((file.path, file) for file in ingested_files(storage, commit))
    rewritten = rewritten_files(storage, commit)
    yield from ((file.path, file) for file in rewritten.add)
    yield from ((path, None) for path in rewritten.remove)


def _segment_changes(storage: Storage, commit: Commit) -> Iterator[tuple[int, Segment | None]]:
    yield from ((file.segments[0], segment_of_file(file)) for file in ingested_files(storage, commit))
    yield from ((segment.id, None) for segment in (commit.actions.rewrite.gone if commit.actions.rewrite else ()))


def _pending_changes(storage: Storage, commit: Commit) -> Iterator[tuple[int, int | None]]:
    yield from ((file.segments[0], file.segments[0]) for file in ingested_files(storage, commit))
    yield from ((segment, None) for segment in commit.actions.processed)


def _log_changes(_: Storage, commit: Commit) -> Iterator[tuple[str, LogFile | None]]:
    for log in commit.actions.add_logs:
        yield log.path, log if log.version >= 0 else replace(log, version=commit.version)
    yield from ((path, None) for path in commit.actions.remove_logs)


def _run_changes(_: Storage, commit: Commit) -> Iterator[tuple[str, RunFile | None]]:
    yield from ((run.path, run) for run in commit.actions.add_runs)
    yield from ((path, None) for path in commit.actions.remove_runs)


def _token_changes(_: Storage, commit: Commit) -> Iterator[tuple[str, int]]:
    """A token that was forgotten and came again is a new one."""
    if commit.token:
        yield commit.token, commit.version


def _partition_changes(_: Storage, commit: Commit) -> Iterator[tuple[tuple[str, int], int]]:
    if commit.partition_key is not None and commit.number is not None:
        yield (commit.partition_key, commit.number), commit.number


def _path_of(item: Any) -> Hashable:
    return str(item["path"])


def _first_of(item: Any) -> Hashable:
    key: Hashable = item[0]
    return key


@dataclass(frozen=True, slots=True, kw_only=True)
class ListKind:
    """One of the long lists: what commits do to it, what names an item of it, and how an item is written. Values are never None."""

    changes: Callable[[Storage, Commit], Iterator[tuple[Hashable, Any]]]
    key_of: Callable[[Any], Hashable]
    from_json: Callable[[Any], Any]
    to_json: Callable[[Any, Any], Any]

    def change_from_json(self, item: Any) -> tuple[Hashable, Any]:
        if not is_gone(item):
            value = self.from_json(item)
            return self.key_of(item), value
        return checked.word(item[GONE]) if isinstance(item[GONE], int) else checked.text(item[GONE]), None


# In the order in which a checkpoint writes them.
LISTS: dict[str, ListKind] = {
    "files": ListKind(changes=_file_changes, key_of=_path_of, from_json=file_from_json, to_json=lambda _, file: file_to_json(file)),
    "segments": ListKind(
        changes=_segment_changes, key_of=_first_of, from_json=segment_from_json, to_json=lambda _, segment: segment_to_json(segment)
    ),
    "pending": ListKind(changes=_pending_changes, key_of=int, from_json=checked.count, to_json=lambda segment, _: segment),
    "logs": ListKind(changes=_log_changes, key_of=_path_of, from_json=log_from_json, to_json=lambda _, log: log_to_json(log)),
    "runs": ListKind(changes=_run_changes, key_of=_path_of, from_json=run_from_json, to_json=lambda _, run: run_to_json(run)),
    "partitions": ListKind(changes=_partition_changes, key_of=tuple, from_json=_pair_from_json, to_json=lambda pair, _: list(pair)),
    "tokens": ListKind(
        changes=_token_changes, key_of=_first_of, from_json=_pair_from_json, to_json=lambda token, version: [token, version]
    ),
}
