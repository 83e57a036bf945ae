"""The state of a table at a version: a small root, and long lists that are read when needed."""

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
    """The small part of a state, which every reader and writer holds.

    - `viewed` is the last version, up to this one, that changed the result of a read.
    - `clock_repairs` are the versions of commits that corrected times of readable versions.
    - `groups` has the number of rows of each group, and `applications` the last applied sequence
      of each application.
    - `incomplete_ingests` are the numbers of ingests with a partition key of which a major
      compaction dropped rows.
    - `next_row_id` is the next outside row id. It never decreases, not even by a restore.
    - `vouchers` are write ids by version (FORMAT, §12).
    - `unfinished` is true for a version 0 that waits for its rows; no checkpoint has it.
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
    vouchers: Mapping[int, str] = field(default_factory=dict)
    unfinished: bool = False


def first_root(commit: Commit) -> Root:
    """Return the root of version 0."""
    if commit.actions.spec is None:
        raise FormatError(
            f"{layout.commit_path(commit.version)} has no definition of the table; "
            "restore the file from a backup"
        )
    return Root(
        table_id=commit.table_id,
        version=commit.version,
        write_id=commit.write_id,
        timestamp_us=commit.timestamp_us,
        spec=commit.actions.spec,
        vouchers={commit.version: commit.write_id},
        unfinished=commit.actions.unfinished,
    )


def row_id_fault(root: Root, commit: Commit) -> str | None:
    """Return the fault in the row ids of a commit after `root`, None if there is none.

    I32: the `first_row_id` of the commit is the `next_row_id` of the root, and the ids must fit
    into 63 bits.
    """
    if not commit.actions.gives_row_ids:
        if commit.first_row_id is None:
            return None
        return f"it assigns no row ids, but has the `first_row_id` {commit.first_row_id}"
    if not checked.is_count(root.next_row_id + commit.actions.row_ids):
        return (
            f"it assigns {commit.actions.row_ids:,} row ids from {root.next_row_id:,} on, but row "
            "ids must fit into 63 bits"
        )
    if commit.first_row_id == root.next_row_id:
        return None
    return f"its row ids begin with {commit.first_row_id} instead of {root.next_row_id}"


def fold_root(root: Root, commit: Commit, ingested: Iterable[DataFile]) -> Root:
    """Return the root after one more commit; `ingested` are the commit's new files."""
    fault = row_id_fault(root, commit)
    if fault is not None:
        path = layout.commit_path(commit.version)
        raise FormatError(f"{path}: {fault}; restore the file from a backup")
    actions = commit.actions
    groups = dict(root.groups)
    rows = root.rows
    pending = root.pending
    for file in ingested:
        groups[file.group] = groups.get(file.group, 0) + file.rows
        rows += file.rows
        pending += 1
    pending -= len(actions.processed) + len(actions.discarded)
    for discarded in actions.discarded:
        groups[discarded.segment.group] -= discarded.segment.rows
        rows -= discarded.segment.rows
    added_events = sum(log.events for log in actions.add_logs)
    events = root.events + added_events - actions.removed_events
    incomplete = root.incomplete_ingests
    if actions.rewrite:
        rows -= actions.rewrite.dropped_rows
        incomplete |= {*actions.rewrite.incomplete_ingests}
        for segment in actions.rewrite.gone:
            groups[segment.group] -= segment.rows
    restored = actions.restored
    if restored is not None:
        groups = dict(restored.groups)
        rows, pending, events = restored.rows, restored.pending, restored.events
        incomplete = frozenset(restored.incomplete_ingests)
    oldest = root.oldest_version if actions.oldest_version is None else actions.oldest_version
    repairs = root.clock_repairs
    if actions.corrected_times:
        repairs = (*repairs, commit.version)
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
        savepoints=_savepoints_after(root.savepoints, commit),
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
        vouchers=_vouchers_after(root.vouchers, commit),
        unfinished=False,
    )


def _savepoints_after(savepoints: Mapping[str, int], commit: Commit) -> dict[str, int]:
    released = commit.actions.released
    remaining = {name: version for name, version in savepoints.items() if name not in released}
    return remaining | dict(commit.actions.savepoints)


def _vouchers_after(vouchers: Mapping[int, str], commit: Commit) -> dict[int, str]:
    """Return the write ids, by version, that later commits need (FORMAT, §12)."""
    vouching = layout.vouching_versions(commit.version)
    known = {**vouchers, commit.version: commit.write_id}
    return {version: write_id for version, write_id in known.items() if version in vouching}


def applications_after(applications: Mapping[str, int], commit: Commit) -> dict[str, int]:
    """Return the last applied sequence of each application, after a commit."""
    known = dict(applications)
    if commit.application:
        name, sequence = commit.application
        known[name] = sequence
    return advanced(known, commit.positions)


def business_after(business: BusinessSnapshots, commit: Commit) -> BusinessSnapshots:
    """Return the business snapshots after a commit."""
    actions = commit.actions
    restored = actions.restored
    if restored is not None and restored.business is not None:
        return restored.business
    known = business
    if actions.released:
        known = known.release(actions.released)
    if actions.unheld:
        known = known.without_numbers(actions.unheld)
    if actions.finished is not None:
        return known.finish(actions.finished)
    if actions.corrected_times is not None:
        return known.with_repaired_clock(commit.timestamp_us)
    if commit.business_snapshot is None:
        return known
    return known.with_rows(commit.business_snapshot, commit.number, commit.timestamp_us)


def attribute_of(name: str) -> str:
    """Return the name of the snapshot's attribute that holds a list."""
    return {"segments": "visible_segments", "pending": "pending_segments"}.get(name, name)


class Snapshot:
    """A version: its root, the sections of a checkpoint, and the commits since.

    It is immutable. Its lists are loaded once, when they are first needed.
    """

    def __init__(
        self, storage: Storage, root: Root, sections: Sections, commits: tuple[Commit, ...]
    ) -> None:
        self.storage = storage
        self.root = root
        self.sections = sections
        self.commits = commits
        # Lists that a caller has folded already
        self.known_lists: dict[str, dict[Any, Any]] = {}

    @property
    def version(self) -> int:
        return self.root.version

    @property
    def spec(self) -> TableSpec:
        return self.root.spec

    @property
    def positions(self) -> dict[str, int]:
        """The position that each application reads next (FORMAT, §14)."""
        return {name: last + 1 for name, last in self.root.applications.items()}

    def followed_by(
        self, commits: Iterable[Commit], lists: Sequence[str] = ("runs",)
    ) -> "Snapshot":
        """Return the version after more commits.

        If one of the named `lists` is loaded in this snapshot, the new one gets it with the changes
        of the commits, without reading the checkpoint.
        """
        more = tuple(commits)
        root = self.root
        for commit in more:
            root = fold_root(root, commit, ingested_files(self.storage, commit))
        after = Snapshot(self.storage, root, self.sections, self.commits + more)
        # A restore changes lists by its side file, so they are loaded again
        if any(commit.actions.restored is not None for commit in more):
            return after
        for name in lists:
            attribute = attribute_of(name)
            if attribute in self.__dict__:
                items = copy.copy(self.__dict__[attribute])
                for commit in more:
                    extend_list(items, list_changes(name, self.storage, commit))
                after.__dict__[attribute] = items
        return after

    def read_as(self, spec: TableSpec) -> "Snapshot":
        """Return the same version, whose rows are read with another version's columns."""
        if spec is self.spec:
            return self
        state = Snapshot(self.storage, replace(self.root, spec=spec), self.sections, self.commits)
        # Lists that are loaded stay loaded
        state.__dict__.update({**self.__dict__, "root": state.root})
        return state

    def stored_as(self, sections: Sections) -> "Snapshot":
        """Return the same version, based on a checkpoint with these sections."""
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
        """Segments with visible rows by id, with their outside row ids."""
        return self._list("segments")

    def segments_of(self, files: Iterable[DataFile]) -> Segments:
        """Return the visible segments of some files.

        The parts of the list are read from the newest one on, until all segments are found.
        """
        wanted = {number for file in files for number in file.segments}
        if "visible_segments" in self.__dict__ or "segments" in self.known_lists:
            visible = self.visible_segments
            return Segments((number, visible[number]) for number in wanted & visible.keys())
        known = dict(self.changes("segments"))
        parts = [*self.sections.get("segments", ())]
        while parts and not wanted <= known.keys():
            part = self.part_bytes(parts.pop())
            known = dict(decode_section(*part, LISTS["segments"].change_from_json)) | known
        visible_pairs = []
        for number in wanted:
            segment = known.get(number)
            if segment:
                visible_pairs.append((number, segment))
        return Segments(visible_pairs)

    @functools.cached_property
    def pending_segments(self) -> dict[int, PendingSegment]:
        """Segments by id that no MetaGen has processed yet, with their ingests."""
        return self._list("pending")

    @functools.cached_property
    def pending(self) -> frozenset[int]:
        """The ids of pending segments: their rows are not visible."""
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
        tokens = list(self._list("tokens").items())
        max_tokens = self.spec.integer("token_keep")
        return dict(tokens[-max_tokens:])

    @functools.cached_property
    def partitions(self) -> dict[str, frozenset[int]]:
        """The numbers of the ingests of each partition key, without withdrawn ones."""
        numbers_by_key: dict[str, set[int]] = {}
        for key, number in self._list("partitions"):
            numbers_by_key.setdefault(key, set()).add(number)
        return {key: frozenset(numbers) for key, numbers in numbers_by_key.items()}

    @functools.cached_property
    def bases(self) -> tuple[BitmapBase, ...]:
        """Bitmap bases that hold only events of the logs; those of a group oldest first.

        They are those of the checkpoint, or of the restored state after a restore. There are none
        after a major compaction that forgets events: the older bases still hold these events.
        """
        for commit in reversed(self.commits):
            if commit.actions.forgotten:
                restored = commit.actions.restored
                return () if restored is None else restored.bases
        bases: list[BitmapBase] = []
        for part in self.sections.get("bases", ()):
            bases += decode_section(*self.part_bytes(part), base_from_json)
        return tuple(bases)

    def logs_after(self, version: int) -> Iterable[LogFile]:
        """Return the logs with events of versions after `version`.

        Older parts of the list hold none of these logs, and are not read.
        """
        if "logs" in self.__dict__ or version < 0:
            logs = self.logs
        else:
            parts = [part for part in self.sections.get("logs", ()) if part.version > version]
            logs = self._fold("logs", parts)
        return [log for log in logs.values() if log.version > version]

    def recent_files(self) -> dict[str, DataFile]:
        """Return the files since the last checkpoint, and those of its last inline part."""
        parts = self.sections.get("files", ())
        inline_parts = [part for part in parts[-1:] if isinstance(part, InlinePart)]
        return self._fold("files", inline_parts)

    def version_of_token(self, token: str) -> int | None:
        """Return the version that applied a token, None if the token is not remembered.

        An unknown token is usually found missing by a search of bytes, without decoding the list.
        """
        is_recent = any(
            token == commit.token or token in commit.actions.replaced_tokens
            for commit in self.commits
        )
        is_loaded = "tokens" in self.__dict__
        if not is_loaded and not is_recent and not self._is_in_checkpoint(token):
            return None
        return self.tokens.get(token)

    def _is_in_checkpoint(self, token: str) -> bool:
        # A line is `["token",version]`: each one is compared up to its comma
        begin = canonical_json([token])[:-1] + b","
        for part in self.sections.get("tokens", ()):
            lines = decode_lines(*self.part_bytes(part))
            if any(line.startswith(begin) for line in lines):
                return True
        return False

    def changes(self, name: str) -> Iterator[tuple[Hashable, Any]]:
        """Yield the changes of a list by the commits since the checkpoint.

        A change is a key with its value, or with None if the item was removed.
        """
        for commit in self.commits:
            yield from list_changes(name, self.storage, commit)

    def part_bytes(self, part: Part) -> tuple[bytes, str]:
        """Return the bytes of a part, and its path or description for messages."""
        if isinstance(part, InlinePart):
            return part.data, f"a list within {layout.CHECKPOINTS} of version {part.version}"
        return read_verified(self.storage, part), part.path

    def load_list(self, name: str) -> dict[Any, Any]:
        """Read a list from its sections, and fold the commits since into it."""
        return self._fold(name, self.sections.get(name, ()))

    def _list(self, name: str) -> dict[Any, Any]:
        """Return a list that a caller has folded, or else load it."""
        known = self.known_lists.get(name)
        return self.load_list(name) if known is None else known

    def _fold(self, name: str, parts: Iterable[Part]) -> dict[Any, Any]:
        """Return the items of some parts of a list, changed by the commits since."""
        items: dict[Any, Any] = {}
        for part in parts:
            changes = decode_section(*self.part_bytes(part), LISTS[name].change_from_json)
            extend_list(items, changes)
        for commit in self.commits:
            if name == "pending":
                # I15: segments are processed as they were ingested
                fault = processed_fault(self.storage, commit, items)
                if fault is not None:
                    path = layout.commit_path(commit.version)
                    raise FormatError(f"{path}: {fault}; restore the file from a backup")
            extend_list(items, list_changes(name, self.storage, commit))
        return items


def chain(commits: Sequence[Commit], start: Snapshot) -> list[Commit]:
    """Return the commits; raise FormatError unless they continue a snapshot's chain."""
    version = start.version
    write_id = start.root.write_id
    table_id = start.root.table_id
    for commit in commits:
        if commit.version != version + 1:
            missing = f"{start.storage.uri}/{layout.commit_path(version + 1)}"
            raise FormatError(f"{missing} is missing; restore the file from a backup")
        # I2: a commit holds its predecessor's write id and the table's id
        if commit.previous_write_id != write_id or commit.table_id != table_id:
            path = f"{start.storage.uri}/{layout.commit_path(commit.version)}"
            raise FormatError(
                f"{path} does not follow on from the version before; restore the file from a backup"
            )
        version, write_id = commit.version, commit.write_id
    return list(commits)


def newest_first(head: Snapshot, read_commit: Callable[[int], Commit]) -> Iterator[Commit]:
    """Yield the commits of the readable versions, newest first.

    The commit of the oldest version may be missing, if its checkpoint replaced it. If another
    commit is missing because it has expired meanwhile, the iteration ends. Otherwise the log is
    damaged, and FormatError is raised.
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
    """Apply changes to a list in place; return it. A changed item moves to the end."""
    for key, value in changes:
        items.pop(key, None)
        if value is not None:
            items[key] = value
    return items
