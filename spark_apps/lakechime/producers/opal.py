"""An Opal table registers what it commits: its log is the outbox.

An event for each version that changed what a read shows, one a partition key whose rows became visible with it. Rewrites, savepoints and
changes of properties register nothing. An ingest without rows under a partition key shows nothing new either; its event says that the key
has come, so that nobody waits for it for ever.
"""

from collections.abc import Iterator, Mapping, Sequence
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
    place_of,
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
    """Register what the table committed and nobody registered yet, once and in order; several at once do no harm.

    `table` is an open one, or where it lies. Without a name it is that of the property `event_table`, or the place itself.
    """
    opened = table_on(open_storage(table)) if isinstance(table, str) else table
    head = opened.log.head()
    return sync(
        client,
        OpalSource(
            log=opened.log,
            target=Target(table=name or event_table(head), cluster=cluster),
            head=head,
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class OpalPlace:
    """An Opal table by where it lies: opened at each look. Without a name it is the table's own."""

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
    """The name under which a table's events are registered where nobody gives another."""
    return str(head.spec.properties.get(NAME_PROPERTY) or place_of(head.storage.uri))


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """What was registered: up to this version, whose commit has this write id, and the snapshot of the last event.

    `untold` are partition keys of ingests without rows that came while other rows of the key were pending.
    """

    version: int = -1
    write_id: str | None = None
    snapshot: str | None = None
    again: str | None = None
    untold: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class OpalSource:
    """The log of an Opal table. A head that the caller read already saves reading it again."""

    log: CommitLog
    target: Target
    head: Snapshot | None = None

    def steps(self, position: Position | None) -> Iterator[Step]:
        try:
            return iter([*self._after(position, self._head_for(position))])
        except NotFoundError:  # retention was faster
            return iter([*self._after(position, self.log.head())])

    def _head_for(self, position: Position | None) -> Snapshot:
        """The given one, unless somebody registered more than it knows."""
        head = self.head
        if head is None or (
            position is not None
            and position.get("id") == head.root.table_id
            and position["version"] > head.version
        ):
            return self.log.head()
        return head

    def _kept(self, position: Position | None, origin: Origin, head: Snapshot) -> Kept:
        """Where another table is at this place, or this one went back to a backup, its versions are counted once more."""
        if position is None:
            return Kept()
        is_same_table = origin.is_of(position, self.target)
        kept = Kept(**{name: position[name] for name in _KEPT})
        is_followed = kept.version < head.version or (
            kept.version == head.version and kept.write_id == head.root.write_id
        )
        return kept if is_same_table and is_followed else Kept(again=_course(head))

    def _after(self, position: Position | None, head: Snapshot) -> Iterator[Step]:
        origin = Origin(
            table_format=TableFormat.OPAL, at=place_of(head.storage.uri), id=head.root.table_id
        )
        kept = self._kept(position, origin, head)
        if kept.version == head.version:
            return
        commits = _commits_after(self.log, head, kept.version)
        if (
            commits
            and commits[0].version == kept.version + 1
            and kept.write_id not in (None, commits[0].previous_write_id)
        ):
            kept = Kept(again=_course(head))  # the log of a copy, or of a backup
            commits = _commits_after(self.log, head, kept.version)
        writer = _Events(target=self.target, origin=origin, head=head, kept=kept)
        if _first_missing(commits, kept.version, head.version) is not None:
            base = self.log.at(head.root.oldest_version, head)
            commits = [commit for commit in commits if commit.version > base.version]
            lost = _first_missing(commits, max(kept.version, base.version), head.version)
            if lost is not None:
                raise missing_error(self.log.storage, layout.commit_path(lost))
            yield writer.lost(base)
        writer.know(commits)
        for commit in commits:
            yield writer.step(commit)


_KEPT = tuple(Kept.__dataclass_fields__)


def _course(head: Snapshot) -> str:
    """Tells versions from earlier ones of the same numbers."""
    return f"{head.root.table_id}@{head.root.write_id[:_SHORT_ID]}"


def _commits_after(log: CommitLog, head: Snapshot, version: int) -> list[Commit]:
    known = {commit.version: commit for commit in head.commits}
    asked = range(version + 1, head.version + 1)
    return (
        [known[number] for number in asked]
        if all(number in known for number in asked)
        else log.commits_after(version, head.version)
    )


def _first_missing(commits: Sequence[Commit], after: int, last: int) -> int | None:
    """Return the first version after one, up to the last, whose commit is not among these."""
    known = {commit.version for commit in commits}
    return next((version for version in range(after + 1, last + 1) if version not in known), None)


@dataclass(slots=True, kw_only=True)
class _Events:
    """Makes the events of one version after the other."""

    target: Target
    origin: Origin
    head: Snapshot
    kept: Kept
    keys: dict[int, str] = field(default_factory=dict)
    waiting: set[int] | None = None

    def know(self, commits: Sequence[Commit]) -> None:
        """The partition keys of ingests: of these commits, or, for ingests that came before, of the whole table.

        Also which segments are pending before these commits, if that decides what is told.
        """
        has_empty = any(map(is_empty_ingest, commits))
        came = {commit.number for commit in commits if commit.number is not None}
        keyed = ((commit.number, commit.partition_key) for commit in commits)
        self.keys = {number: key for number, key in keyed if number is not None and key is not None}
        is_older = any(
            segment_part(segment.id) not in came
            for commit in commits
            for segment in commit.actions.processed
        )
        if is_older or has_empty or self.kept.untold:
            self.keys |= {
                number: key for key, numbers in self.head.partitions.items() for number in numbers
            }
        if has_empty or self.kept.untold:
            withdrawn = (pair for commit in commits for pair in commit.actions.withdrawn)
            self.keys |= {number: key for key, number in withdrawn}
            self.waiting = _pending_before(self.head, commits)

    def step(self, commit: Commit) -> Step:
        keys = self._keys_of(commit)
        events = tuple(self._events(commit, keys)) if keys or commit.changes_view else ()
        snapshot = str(commit.version) if events else self.kept.snapshot
        self.kept = replace(
            self.kept,
            version=commit.version,
            write_id=commit.write_id,
            snapshot=snapshot,
            untold=self._untold_after(commit, keys),
        )
        return Step(position=self._position(), events=events)

    def lost(self, base: Snapshot) -> Step:
        """Versions that expired before they were registered: the last of them that changed something stands for all. What it names as its
        predecessor is a version that nobody registered, unless none was lost but itself.
        """
        first, viewed = self.kept.version + 1, base.root.viewed
        self.kept = replace(self.kept, version=base.version, write_id=base.root.write_id)
        if viewed < first:
            return Step(position=self._position())  # they were rewrites
        lost = str(viewed) if first == viewed else f"{first}-{viewed}"
        event = DataChangeEvent(
            table=self.target.table,
            cluster=self.target.cluster,
            snapshot_id=str(viewed),
            prev_snapshot_id=self.kept.snapshot if first in (0, viewed) else str(viewed - 1),
            table_format=TableFormat.OPAL,
            tags=self._tags({LOST: lost}),
        )
        self.kept = replace(self.kept, snapshot=str(viewed))
        said = f"{self.head.storage.uri}: versions {lost} expired before they were registered; version {viewed} stands for all of them"
        return Step(position=self._position(), events=(event,), note=said)

    def _events(self, commit: Commit, keys: Sequence[str]) -> Iterator[DataChangeEvent]:
        restored = commit.actions.restored
        tags = {"opal.operation": commit.operation}
        if restored is not None:
            tags["opal.restored_version"] = str(restored.version)
        if commit.business_snapshot is not None:
            tags["opal.business_snapshot"] = commit.business_snapshot
        event = DataChangeEvent(
            table=self.target.table,
            cluster=self.target.cluster,
            snapshot_id=str(commit.version),
            snapshot_ts=CommitTimes(self.head).corrected(commit.version, commit.timestamp_us)
            // 1000,
            prev_snapshot_id=self.kept.snapshot,
            table_format=TableFormat.OPAL,
            operation_type=_operation(commit),
            tags=self._tags(tags),
        )
        yield from (replace(event, partition=(key,)) for key in keys) if keys else [event]

    def _keys_of(self, commit: Commit) -> list[str]:
        """The partition keys of the rows that a commit made visible, or of an ingest that had none.

        As long as other rows of its key are pending, an ingest without rows is not told: the MetaGen of the key tells it, or, if they
        are discarded, the commit that does that.
        """
        numbers = dict.fromkeys(segment_part(segment.id) for segment in commit.actions.processed)
        keys = [self.keys[number] for number in numbers if number in self.keys]
        if self.waiting is None:
            return [*dict.fromkeys(keys)]
        for segment, pending in list_changes("pending", self.head.storage, commit):
            (self.waiting.discard if pending is None else self.waiting.add)(cast(int, segment))
        empty = [*self.kept.untold, *_key_without_rows(commit)]
        pending_keys = self._pending_keys()
        keys += [key for key in empty if key not in pending_keys]
        return [*dict.fromkeys(keys)]

    def _untold_after(self, commit: Commit, told: Sequence[str]) -> tuple[str, ...]:
        untold = dict.fromkeys([*self.kept.untold, *_key_without_rows(commit)])
        return tuple(key for key in untold if key not in told)

    def _pending_keys(self) -> set[str]:
        numbers = {*map(segment_part, self.waiting or ())}
        return {self.keys[number] for number in numbers if number in self.keys}

    def _tags(self, tags: Mapping[str, str]) -> dict[str, str]:
        return {"opal.table_id": self.head.root.table_id, **tags, **again_tags(self.kept.again)}

    def _position(self) -> dict[str, Any]:
        return {**self.origin.to_json(), **{name: getattr(self.kept, name) for name in _KEPT}}


def _pending_before(head: Snapshot, commits: Sequence[Commit]) -> set[int]:
    """The segments that were pending before commits that lead to a head: what each did, taken back."""
    waiting = {*head.pending}
    for commit in reversed(commits):
        for segment, pending in reversed([*list_changes("pending", head.storage, commit)]):
            (waiting.add if pending is None else waiting.discard)(cast(int, segment))
    return waiting


def _key_without_rows(commit: Commit) -> list[str]:
    """The partition key of an ingest that brought no rows."""
    key = commit.partition_key
    return [key] if key is not None and is_empty_ingest(commit) else []


def is_empty_ingest(commit: Commit) -> bool:
    """Of no rows, under a partition key."""
    has_rows = commit.actions.ingested or commit.actions.ingested_side is not None
    return commit.operation == "ingest" and commit.partition_key is not None and not has_rows


def _operation(commit: Commit) -> OperationType:
    """By what the job counted. In doubt it is an update."""
    counts = commit.result.get("counts", {})
    rows, deletes = counts.get("rows", 0), counts.get("deletes", 0)
    if commit.operation == "create" or is_empty_ingest(commit):
        return OperationType.APPEND
    if commit.actions.restored is not None or not rows:
        return OperationType.UPDATE
    if deletes == rows:
        return OperationType.DELETE
    return OperationType.UPDATE if deletes or commit.actions.add_logs else OperationType.APPEND
