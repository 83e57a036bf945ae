"""The state of a table at a version: a small root that every writer holds, and long lists that are read only when they are asked for."""

import copy
import functools
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from opal_lake import checked, layout
from opal_lake.data.segment import DataFile, LogFile, PendingSegment, RunFile, Segment, Segments
from opal_lake.definition.business_snapshots import BusinessSnapshots
from opal_lake.definition.positions import advanced
from opal_lake.definition.table_spec import TableSpec
from opal_lake.errors import ExpiredError, FormatError, NotFoundError
from opal_lake.events.bitmap import BitmapBase, base_from_json
from opal_lake.log.commit import Commit, canonical_json
from opal_lake.log.lists import LISTS, ingested_files, list_changes, processed_fault
from opal_lake.log.sections import InlinePart, Part, Sections, decode_lines, decode_section
from opal_lake.storage.protocol import Storage
from opal_lake.storage.verified import missing_error, read_verified


@dataclass(frozen=True, slots=True, kw_only=True)
class Root:
    """What every reader and writer needs of a version. `viewed` is the last version up to it that changed what a read sees; `clock_repairs`
    are those that corrected times of versions that can be read.

    `incomplete_ingests` are the numbers of ingests with a partition key some of whose rows a major compaction dropped. `next_row_id`
    is the next row id for the outside; it never falls, not by a restore either.
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
    next_row_id: int = 0
    applications: Mapping[str, int] = field(default_factory=dict)
    rows: int = 0
    pending: int = 0
    events: int = 0
    vouchers: Mapping[int, str] = field(default_factory=dict)  # write ids, by version


def first_root(commit: Commit) -> Root:
    """The root of version 0."""
    if commit.actions.spec is None:
        raise FormatError(
            f"version {commit.version} has no definition of the table; restore the log from a backup"
        )
    return Root(
        table_id=commit.table_id,
        version=commit.version,
        write_id=commit.write_id,
        timestamp_us=commit.timestamp_us,
        spec=commit.actions.spec,
        vouchers={commit.version: commit.write_id},
    )


def row_id_fault(root: Root, commit: Commit) -> str | None:
    """Return how the row ids of a commit do not go on from the state before it, None if they do.

    A counter that no root could hold is a fault, too.
    """
    if not commit.actions.gives_row_ids:
        return (
            None
            if commit.first_row_id is None
            else "it gives no row ids, but says where they begin"
        )
    if not checked.is_count(root.next_row_id + commit.actions.row_ids):
        return (
            f"it gives out {commit.actions.row_ids:,} row ids from {root.next_row_id:,}, "
            "more than 63 bits hold"
        )
    if commit.first_row_id == root.next_row_id:
        return None
    return f"its row ids begin with {commit.first_row_id}, the next one is {root.next_row_id}"


def fold_root(root: Root, commit: Commit, ingested: Iterable[DataFile]) -> Root:
    """The root after one more commit."""
    fault = row_id_fault(root, commit)
    if fault is not None:
        path = layout.commit_path(commit.version)
        raise FormatError(f"{path}: {fault}; restore the file from a backup")
    groups, rows, pending = dict(root.groups), root.rows, root.pending
    for file in ingested:
        groups[file.group] = groups.get(file.group, 0) + file.rows
        rows += file.rows
        pending += 1
    actions = commit.actions
    events, incomplete = (
        root.events + sum(log.events for log in actions.add_logs) - actions.removed_events,
        root.incomplete_ingests,
    )
    pending -= len(actions.processed) + len(actions.discarded)
    for discarded in actions.discarded:
        groups[discarded.segment.group] -= discarded.segment.rows
        rows -= discarded.segment.rows
    if actions.rewrite:
        rows -= actions.rewrite.dropped_rows
        incomplete |= {*actions.rewrite.incomplete_ingests}
        for segment in actions.rewrite.gone:
            groups[segment.group] -= segment.rows
    if (restored := actions.restored) is not None:
        groups, rows, pending, events = (
            dict(restored.groups),
            restored.rows,
            restored.pending,
            restored.events,
        )
        incomplete = frozenset(restored.incomplete_ingests)
    oldest = root.oldest_version if actions.oldest_version is None else actions.oldest_version
    repairs = (
        (*root.clock_repairs, commit.version) if actions.corrected_times else root.clock_repairs
    )
    savepoints = {
        name: version for name, version in root.savepoints.items() if name not in actions.released
    }
    vouching, known = (
        layout.vouching_versions(commit.version),
        {**root.vouchers, commit.version: commit.write_id},
    )
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
        incomplete_ingests=incomplete,
        next_row_id=root.next_row_id + actions.row_ids,
        applications=applications_after(root.applications, commit),
        rows=rows,
        pending=pending,
        events=events,
        vouchers={version: write_id for version, write_id in known.items() if version in vouching},
    )


def applications_after(applications: Mapping[str, int], commit: Commit) -> dict[str, int]:
    """The last sequence that was applied of each application, after a commit."""
    return advanced(
        dict(applications) | dict((commit.application,) if commit.application else ()),
        commit.positions,
    )


def business_after(business: BusinessSnapshots, commit: Commit) -> BusinessSnapshots:
    """What business snapshots there are after a commit."""
    restored = commit.actions.restored
    if restored is not None and restored.business is not None:
        return restored.business
    known = business.release(commit.actions.released) if commit.actions.released else business
    if commit.actions.unheld:
        known = known.without_numbers(commit.actions.unheld)
    if commit.actions.finished is not None:
        return known.finish(commit.actions.finished)
    if commit.actions.corrected_times is not None:
        return known.with_repaired_clock(commit.timestamp_us)
    name = commit.business_snapshot
    return known if name is None else known.with_rows(name, commit.number, commit.timestamp_us)


def attribute_of(name: str) -> str:
    """Return the attribute of a snapshot that holds one of its lists."""
    return {"segments": "visible_segments", "pending": "pending_segments"}.get(name, name)


class Snapshot:
    """A version: the root, the checkpoint's sections, and the commits since. Immutable; lists are loaded once, when first asked for."""

    def __init__(
        self, storage: Storage, root: Root, sections: Sections, commits: tuple[Commit, ...]
    ) -> None:
        self.storage = storage
        self.root = root
        self.sections = sections
        self.commits = commits
        self.known_lists: dict[str, dict[Any, Any]] = {}  # which need not be folded again

    @property
    def version(self) -> int:
        return self.root.version

    @property
    def spec(self) -> TableSpec:
        return self.root.spec

    @property
    def positions(self) -> dict[str, int]:
        """Of each application the next position to read (FORMAT, positions)."""
        return {name: last + 1 for name, last in self.root.applications.items()}

    def followed_by(
        self, commits: Iterable[Commit], lists: Sequence[str] = ("runs",)
    ) -> "Snapshot":
        """The version after more commits. Which of these lists are known here are known there, too, without a look at the checkpoint."""
        more = tuple(commits)
        root = self.root
        for commit in more:
            root = fold_root(root, commit, ingested_files(self.storage, commit))
        after = Snapshot(self.storage, root, self.sections, self.commits + more)
        if all(commit.actions.restored is None for commit in more):
            for name in (name for name in lists if attribute_of(name) in self.__dict__):
                changes = (
                    item for commit in more for item in list_changes(name, self.storage, commit)
                )
                known = copy.copy(self.__dict__[attribute_of(name)])
                after.__dict__[attribute_of(name)] = extend_list(known, changes)
        return after

    def stored_as(self, sections: Sections) -> "Snapshot":
        """The same version, as the checkpoint with these sections has it."""
        state = Snapshot(self.storage, self.root, sections, ())
        if "runs" in self.__dict__:
            state.__dict__["runs"] = self.runs
        return state

    @functools.cached_property
    def files(self) -> dict[str, DataFile]:
        """Data files by path, pending ones too."""
        return self._list("files")

    @functools.cached_property
    def segments(self) -> dict[int, Segment]:
        """Segments by id, pending ones too."""
        pending = {
            segment.id: Segment(id=segment.id, rows=segment.rows, group=segment.group)
            for segment in self.pending_segments.values()
        }
        return Segments(self.visible_segments | pending)

    @functools.cached_property
    def visible_segments(self) -> dict[int, Segment]:
        """Segments by id whose rows are visible, with what they are for the outside."""
        return self._list("segments")

    def segments_of(self, files: Iterable[DataFile]) -> Segments:
        """Return the visible segments of some files; read only the newest parts that hold them."""
        wanted = {number for file in files for number in file.segments}
        if "visible_segments" in self.__dict__ or "segments" in self.known_lists:
            visible = self.visible_segments
            return Segments((number, visible[number]) for number in wanted & visible.keys())
        known = dict(self.changes("segments"))
        parts = [*self.sections.get("segments", ())]
        while parts and not wanted <= known.keys():
            part = self.part_bytes(parts.pop())
            known = dict(decode_section(*part, LISTS["segments"].change_from_json)) | known
        found = {number: known.get(number) for number in wanted}
        return Segments((number, segment) for number, segment in found.items() if segment)

    @functools.cached_property
    def pending_segments(self) -> dict[int, PendingSegment]:
        """By id the segments whose rows no MetaGen has looked at yet, with the ingests that brought them."""
        return self._list("pending")

    @functools.cached_property
    def pending(self) -> frozenset[int]:
        """The ids of these: their rows are not visible."""
        return frozenset(self.pending_segments)

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
        """The numbers of the ingests that carry each partition key, but for those that were withdrawn."""
        numbers_by_key: dict[str, set[int]] = {}
        for key, number in self._list("partitions"):
            numbers_by_key.setdefault(key, set()).add(number)
        return {key: frozenset(numbers) for key, numbers in numbers_by_key.items()}

    @functools.cached_property
    def bases(self) -> tuple[BitmapBase, ...]:
        """Bitmap bases that hold no other events than the logs, of each group oldest first.

        They are the checkpoint's; after a restore, those of the state that it brought back. None
        serves once a major compaction has forgotten events, which older bases hold still.
        """
        for commit in reversed(self.commits):
            if commit.actions.forgotten:
                restored = commit.actions.restored
                return () if restored is None else restored.bases
        return tuple(
            base
            for part in self.sections.get("bases", ())
            for base in decode_section(*self.part_bytes(part), base_from_json)
        )

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
        is_recent = any(
            token == commit.token or token in commit.actions.replaced_tokens
            for commit in self.commits
        )
        if "tokens" not in self.__dict__ and not is_recent:
            begins = canonical_json([token])[:-1] + b","
            parts = (
                decode_lines(*self.part_bytes(part)) for part in self.sections.get("tokens", ())
            )
            if not any(line.startswith(begins) for lines in parts for line in lines):
                return None
        return self.tokens.get(token)

    def changes(self, name: str) -> Iterator[tuple[Hashable, Any]]:
        """What the commits since the checkpoint brought into a list, and what they took out of it: None."""
        return (
            item for commit in self.commits for item in list_changes(name, self.storage, commit)
        )

    def part_bytes(self, part: Part) -> tuple[bytes, str]:
        """A part of a list, and where it lies."""
        if isinstance(part, InlinePart):
            return part.data, f"a list within {layout.CHECKPOINTS} of version {part.version}"
        return read_verified(self.storage, part), part.path

    def load_list(self, name: str) -> dict[Any, Any]:
        """Read a list from its sections, and fold the commits since into it."""
        return self._fold(name, self.sections.get(name, ()))

    def _list(self, name: str) -> dict[Any, Any]:
        known = self.known_lists.get(name)
        return self.load_list(name) if known is None else known

    def _fold(self, name: str, parts: Iterable[Part]) -> dict[Any, Any]:
        items: dict[Any, Any] = {}
        for part in parts:
            items = extend_list(
                items, decode_section(*self.part_bytes(part), LISTS[name].change_from_json)
            )
        for commit in self.commits:
            fault = processed_fault(self.storage, commit, items) if name == "pending" else None
            if fault is not None:
                path = layout.commit_path(commit.version)
                raise FormatError(f"{path}: {fault}; restore the file from a backup")
            extend_list(items, list_changes(name, self.storage, commit))
        return items


def chain(commits: Sequence[Commit], start: Snapshot) -> list[Commit]:
    """The commits that follow on from a snapshot; a break in the chain is damage."""
    version, write_id, table_id = start.version, start.root.write_id, start.root.table_id
    for commit in commits:
        if commit.version != version + 1:
            raise FormatError(
                f"{start.storage.uri}/{layout.commit_path(version + 1)} is missing; restore the file from a backup"
            )
        if commit.previous_write_id != write_id or commit.table_id != table_id:
            path = f"{start.storage.uri}/{layout.commit_path(commit.version)}"
            raise FormatError(
                f"{path} does not follow on from the version before; restore it from a backup"
            )
        version, write_id = commit.version, commit.write_id
    return list(commits)


def newest_first(head: Snapshot, read_commit: Callable[[int], Commit]) -> Iterator[Commit]:
    """Yield the commits of the versions that can be read, newest first.

    A checkpoint may have replaced the commit of the oldest version. Where any other one is missing,
    the versions below it have expired meanwhile, or the log is damaged: FormatError.
    """
    known = {commit.version: commit for commit in head.commits}
    oldest = head.root.oldest_version
    for version in range(head.version, oldest - 1, -1):
        try:
            commit = known.get(version) or read_commit(version)
        except NotFoundError as error:
            if version == oldest > 0:
                return
            missing = missing_error(head.storage, layout.commit_path(version))
            if isinstance(missing, ExpiredError):
                return
            raise missing from error
        yield commit


def extend_list(items: dict[Any, Any], changes: Iterable[tuple[Hashable, Any]]) -> dict[Any, Any]:
    """In place: what comes again comes last."""
    for key, value in changes:
        items.pop(key, None)
        if value is not None:
            items[key] = value
    return items
