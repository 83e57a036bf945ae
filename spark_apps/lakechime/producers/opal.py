"""Opal tables, whose commit log is the outbox.

A version that changed the result of a read has one event, or one for each partition key whose rows
became visible. Rewrites, savepoints and changes of properties have none. An ingest without rows
under a partition key has an event too, so that a consumer does not wait for the key forever.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

from lakechime.client import LakeChime
from lakechime.event import DEFAULT_CLUSTER, DataChangeEvent, OperationType, TableFormat
from lakechime.producers.outbox import (
    Origin,
    Position,
    Step,
    Synced,
    Target,
    again_tags,
    canonical_uri,
    predecessor_of_lost,
    range_text,
    sync,
)
from lakechime.tags import LOST
from opal_lake import layout
from opal_lake.errors import NotFoundError
from opal_lake.ids import segment_part
from opal_lake.log.commit import Commit
from opal_lake.log.commit_log import CommitLog
from opal_lake.log.commit_times import CommitTimes
from opal_lake.log.lists import list_changes
from opal_lake.log.snapshot import Snapshot
from opal_lake.storage import open_storage
from opal_lake.storage.verified import missing_error
from opal_lake.table import Table, table_on

NAME_PROPERTY = "event_table"
_SHORT_ID = 8


def sync_opal(
    client: LakeChime,
    table: Table | str,
    name: str | None = None,
    *,
    cluster: str = DEFAULT_CLUSTER,
) -> Synced:
    """Register the table's commits that are not registered yet, once and in order.

    Several calls at once do no harm. `table` is an open table or its URI. The default name of the
    events is the property `event_table`, or without it the table's URI.
    """
    if isinstance(table, str):
        table = table_on(open_storage(table))
    head = table.log.head()
    target = Target(table=name or event_table(head), cluster=cluster)
    return sync(client, OpalSource(log=table.log, target=target, head=head))


@dataclass(frozen=True, slots=True, kw_only=True)
class OpalLocation:
    """An Opal table by its URI, opened at each look. Its default name is in the table."""

    path: str
    name: str | None = None
    cluster: str = DEFAULT_CLUSTER
    options: Mapping[str, str] = field(default_factory=dict)

    @property
    def target(self) -> Target:
        return Target(table=self.name or event_table(self._log.head()), cluster=self.cluster)

    @property
    def _log(self) -> CommitLog:
        return table_on(open_storage(self.path, self.options)).log

    def steps(self, position: Position | None) -> Iterator[Step]:
        log = self._log
        head = log.head()
        target = Target(table=self.name or event_table(head), cluster=self.cluster)
        return OpalSource(log=log, target=target, head=head).steps(position)


def event_table(head: Snapshot) -> str:
    """Return the default name under which a table's events are registered."""
    return str(head.spec.properties.get(NAME_PROPERTY) or canonical_uri(head.storage.uri))


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """The registered part of a log. Its fields are members of the stored position.

    `version` is the last version that was read, and `write_id` that of its commit. `snapshot` is
    the version of the last event. `again` distinguishes the versions of a table that replaced
    another one, or was restored from a backup. `untold` are partition keys of ingests without rows
    that are not registered yet, because other rows of the key are pending.
    """

    version: int = -1
    write_id: str | None = None
    snapshot: str | None = None
    again: str | None = None
    untold: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class OpalSource:
    """The log of an Opal table. A given `head` is not read again."""

    log: CommitLog
    target: Target
    head: Snapshot | None = None

    def steps(self, position: Position | None) -> Iterator[Step]:
        """Return the steps after a position, or from the beginning for None."""
        try:
            steps = list(self._steps(position, self._head_for(position)))
        except NotFoundError:
            # Retention deleted a commit meanwhile: the new head shows which ones are left
            steps = list(self._steps(position, self.log.head()))
        return iter(steps)

    def _head_for(self, position: Position | None) -> Snapshot:
        """Return the given head, or the newest one if the position is beyond it."""
        head = self.head
        if head is None:
            return self.log.head()
        if position is None or position.get("id") != head.root.table_id:
            return head
        if position["version"] > head.version:
            return self.log.head()
        return head

    def _progress(self, position: Position | None, origin: Origin, head: Snapshot) -> Progress:
        """Return the progress of a position.

        It begins again if another table is at this location, or if the table was restored from a
        backup.
        """
        if position is None:
            return Progress()
        is_same_table = origin.is_of(position, self.target)
        progress = Progress(**{name: position[name] for name in _PROGRESS_FIELDS})
        is_at_head = progress.version == head.version and progress.write_id == head.root.write_id
        is_in_history = progress.version < head.version or is_at_head
        if is_same_table and is_in_history:
            return progress
        return Progress(again=_history_id(head))

    def _steps(self, position: Position | None, head: Snapshot) -> Iterator[Step]:
        """Yield the steps after a position up to a head."""
        origin = Origin(
            table_format=TableFormat.OPAL, at=canonical_uri(head.storage.uri), id=head.root.table_id
        )
        progress = self._progress(position, origin, head)
        if progress.version == head.version:
            return
        commits = _commits_after(self.log, head, progress.version)
        if commits and _is_of_other_log(commits[0], progress):
            progress = Progress(again=_history_id(head))
            commits = _commits_after(self.log, head, progress.version)
        events = _Events(target=self.target, origin=origin, head=head, progress=progress)
        if _first_missing(commits, progress.version, head.version) is not None:
            base = self.log.at(head.root.oldest_version, head)
            commits = [commit for commit in commits if commit.version > base.version]
            first_needed = max(progress.version, base.version)
            missing = _first_missing(commits, first_needed, head.version)
            if missing is not None:
                raise missing_error(self.log.storage, layout.commit_path(missing))
            yield events.lost(base)
        events.prepare(commits)
        for commit in commits:
            yield events.step(commit)


_PROGRESS_FIELDS = tuple(Progress.__dataclass_fields__)


def _is_of_other_log(commit: Commit, progress: Progress) -> bool:
    """Return whether the next commit does not follow the registered one.

    This is so in a copy of the table, or after it was restored from a backup.
    """
    is_next = commit.version == progress.version + 1
    return is_next and progress.write_id not in (None, commit.previous_write_id)


def _history_id(head: Snapshot) -> str:
    """Return a text that distinguishes versions from earlier ones of equal numbers."""
    return f"{head.root.table_id}@{head.root.write_id[:_SHORT_ID]}"


def _commits_after(log: CommitLog, head: Snapshot, version: int) -> list[Commit]:
    """Return the commits after a version up to the head."""
    known = {commit.version: commit for commit in head.commits}
    wanted = range(version + 1, head.version + 1)
    if all(number in known for number in wanted):
        return [known[number] for number in wanted]
    return log.commits_after(version, head.version)


def _first_missing(commits: Sequence[Commit], after: int, last: int) -> int | None:
    """Return the first version in after < version <= last without a commit, or None."""
    known = {commit.version for commit in commits}
    for version in range(after + 1, last + 1):
        if version not in known:
            return version
    return None


@dataclass(slots=True, kw_only=True)
class _Events:
    """The events of the versions, one after the other."""

    target: Target
    origin: Origin
    head: Snapshot
    progress: Progress
    keys: dict[int, str] = field(default_factory=dict)  # partition key by number of the ingest
    # The segments that are pending after the last step; None if no key depends on them
    pending: set[int] | None = None

    def prepare(self, commits: Sequence[Commit]) -> None:
        """Read the partition keys of ingests, and the pending segments if needed.

        The keys of earlier ingests are read only if one of these commits processes their rows.
        """
        new_numbers = set()
        for commit in commits:
            if commit.number is not None:
                new_numbers.add(commit.number)
                if commit.partition_key is not None:
                    self.keys[commit.number] = commit.partition_key
        has_empty = any(map(is_empty_ingest, commits))
        needs_pending = has_empty or bool(self.progress.untold)
        processed_numbers: set[int] = set()
        for commit in commits:
            processed_numbers.update(
                segment_part(segment.id) for segment in commit.actions.processed
            )
        has_older = not processed_numbers <= new_numbers
        if has_older or needs_pending:
            for key, numbers in self.head.partitions.items():
                self.keys.update(dict.fromkeys(numbers, key))
        if needs_pending:
            for commit in commits:
                self.keys.update((number, key) for key, number in commit.actions.withdrawn)
            self.pending = _pending_before(self.head, commits)

    def step(self, commit: Commit) -> Step:
        keys = self._keys_of(commit)
        events: tuple[DataChangeEvent, ...] = ()
        snapshot = self.progress.snapshot
        if keys or commit.changes_view:
            events = tuple(self._events(commit, keys))
            snapshot = str(commit.version)
        self.progress = replace(
            self.progress,
            version=commit.version,
            write_id=commit.write_id,
            snapshot=snapshot,
            untold=self._untold_after(commit, keys),
        )
        return Step(position=self._position(), events=events)

    def lost(self, base: Snapshot) -> Step:
        """Return the step of versions that expired before they were registered.

        `base` is the oldest version that is left. The event is of the last version up to it that
        changed the view, and stands for all lost versions.
        """
        first, viewed = self.progress.version + 1, base.root.viewed
        self.progress = replace(self.progress, version=base.version, write_id=base.root.write_id)
        if viewed < first:
            return Step(position=self._position())  # all lost versions were rewrites
        lost = range_text(first, viewed)
        previous = predecessor_of_lost(first, viewed, self.progress.snapshot)
        event = DataChangeEvent(
            table=self.target.table,
            cluster=self.target.cluster,
            snapshot_id=str(viewed),
            prev_snapshot_id=previous,
            table_format=TableFormat.OPAL,
            tags=self._tags({LOST: lost}),
        )
        self.progress = replace(self.progress, snapshot=str(viewed))
        note = (
            f"{self.head.storage.uri}: versions {lost} expired before they were registered; "
            f"version {viewed} stands for all of them"
        )
        return Step(position=self._position(), events=(event,), note=note)

    def _events(self, commit: Commit, keys: Sequence[str]) -> Iterator[DataChangeEvent]:
        restored = commit.actions.restored
        tags = {"opal.operation": commit.operation}
        if restored is not None:
            tags["opal.restored_version"] = str(restored.version)
        if commit.business_snapshot is not None:
            tags["opal.business_snapshot"] = commit.business_snapshot
        committed_us = CommitTimes(self.head).corrected(commit.version, commit.timestamp_us)
        event = DataChangeEvent(
            table=self.target.table,
            cluster=self.target.cluster,
            snapshot_id=str(commit.version),
            snapshot_ts=committed_us // 1000,
            prev_snapshot_id=self.progress.snapshot,
            table_format=TableFormat.OPAL,
            operation_type=_operation(commit),
            tags=self._tags(tags),
        )
        if not keys:
            yield event
        for key in keys:
            yield replace(event, partition=(key,))

    def _keys_of(self, commit: Commit) -> list[str]:
        """Return the partition keys of newly visible rows, and of ingests without rows.

        An ingest without rows waits while other rows of its key are pending. Its key is returned
        with the commit that makes these rows visible or discards them.
        """
        numbers = [segment_part(segment.id) for segment in commit.actions.processed]
        keys = [self.keys[number] for number in numbers if number in self.keys]
        if self.pending is not None:
            self._update_pending(self.pending, commit)
            pending_keys = self._keys_of_segments(self.pending)
            empty_keys = [*self.progress.untold, *_key_without_rows(commit)]
            keys += [key for key in empty_keys if key not in pending_keys]
        return [*dict.fromkeys(keys)]  # each once

    def _update_pending(self, pending: set[int], commit: Commit) -> None:
        for segment, entry in list_changes("pending", self.head.storage, commit):
            if entry is None:
                pending.discard(cast(int, segment))
            else:
                pending.add(cast(int, segment))

    def _untold_after(self, commit: Commit, registered: Sequence[str]) -> tuple[str, ...]:
        """Return the keys of ingests without rows that are still not registered."""
        untold = dict.fromkeys([*self.progress.untold, *_key_without_rows(commit)])
        return tuple(key for key in untold if key not in registered)

    def _keys_of_segments(self, segments: Iterable[int]) -> set[str]:
        numbers = {segment_part(segment) for segment in segments}
        return {self.keys[number] for number in numbers if number in self.keys}

    def _tags(self, tags: Mapping[str, str]) -> dict[str, str]:
        again = again_tags(self.progress.again)
        return {"opal.table_id": self.head.root.table_id, **tags, **again}

    def _position(self) -> dict[str, Any]:
        progress = {name: getattr(self.progress, name) for name in _PROGRESS_FIELDS}
        return {**self.origin.to_json(), **progress}


def _pending_before(head: Snapshot, commits: Sequence[Commit]) -> set[int]:
    """Return the segments that were pending before the commits that led to `head`.

    The changes of each commit are undone, the newest first.
    """
    pending = {*head.pending}
    for commit in reversed(commits):
        changes = list(list_changes("pending", head.storage, commit))
        for segment, entry in reversed(changes):
            if entry is None:
                pending.add(cast(int, segment))
            else:
                pending.discard(cast(int, segment))
    return pending


def _key_without_rows(commit: Commit) -> list[str]:
    """Return [partition key] for an ingest without rows, [] for other commits."""
    key = commit.partition_key
    if key is None or not is_empty_ingest(commit):
        return []
    return [key]


def is_empty_ingest(commit: Commit) -> bool:
    """Return whether a commit is an ingest without rows, under a partition key."""
    has_rows = commit.actions.ingested or commit.actions.ingested_side is not None
    return commit.operation == "ingest" and commit.partition_key is not None and not has_rows


def _operation(commit: Commit) -> OperationType:
    """Return the kind of a commit's change; UPDATE if it is uncertain.

    The counts of the commit's job show it.
    """
    counts = commit.result.get("counts", {})
    rows, deletes = counts.get("rows", 0), counts.get("deletes", 0)
    if commit.operation == "create" or is_empty_ingest(commit):
        return OperationType.APPEND
    if commit.actions.restored is not None or not rows:
        return OperationType.UPDATE
    if deletes == rows:
        return OperationType.DELETE
    if deletes or commit.actions.add_logs:  # it hides rows
        return OperationType.UPDATE
    return OperationType.APPEND
