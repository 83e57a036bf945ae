"""The inputs of an engine for a read: of visible rows, of a history view, or of changes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from opal_lake.definition.conditions.condition import Condition
from opal_lake.events.bitmap import Bitmaps
from opal_lake.key_store.cache.protocol import RunCache
from opal_lake.log.commit_log import CommitLog
from opal_lake.log.snapshot import Snapshot
from opal_lake.log.version_window import is_readable
from opal_lake.read.change_range import VersionRange
from opal_lake.read.partition_net import key_of_net
from opal_lake.read.read import event_time_of, narrowed, segments_after, segments_of_partition
from opal_lake.read.where import where_condition

if TYPE_CHECKING:
    from opal_lake.operations.read import Changes


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """The part of a state to read.

    `only` are the segments whose rows are read; None for all segments. `net_of` is the partition
    key whose net rows are read; None for visible rows.
    """

    snapshot: Snapshot
    as_of: int | None = None
    columns: Sequence[str] | None = None
    condition: Condition | None = None
    only: frozenset[int] | None = None
    net_of: str | None = None

    def narrowed(self, invalid: Bitmaps) -> Bitmaps:
        """Return the bitmaps with all rows of unwanted segments marked as invalid."""
        if self.only is None:
            return invalid
        return narrowed(self.snapshot, self.only, invalid)


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryPlan:
    """The history view of a state, or of some keys in it."""

    snapshot: Snapshot
    cache: RunCache
    keys: Sequence[Mapping[str, Any]] | None = None
    columns: Sequence[str] | None = None
    condition: Condition | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangesPlan:
    """The changes of a range of versions."""

    log: CommitLog
    cache: RunCache
    versions: VersionRange
    feed: "Changes"
    condition: Condition | None = None


def view_of(
    log: CommitLog,
    snapshot: Snapshot,
    *,
    event_time: object = None,
    columns: Sequence[str] | None = None,
    where: str | None = None,
    partition_key: str | None = None,
    after: int | None = None,
    net: bool = False,
) -> View:
    """Return the part of a state that a read asks for."""
    as_of = event_time_of(snapshot, event_time)
    condition = where_condition(where, snapshot.spec)
    only, net_of = None, None
    if net:
        net_of = key_of_net(partition_key, after)
    else:
        only = _wanted_segments(log, snapshot, partition_key, after)
    return View(
        snapshot=snapshot,
        as_of=as_of,
        columns=columns,
        condition=condition,
        only=only,
        net_of=net_of,
    )


def _wanted_segments(
    log: CommitLog, snapshot: Snapshot, partition_key: str | None, after: int | None
) -> frozenset[int] | None:
    """Return the segments of a partition key that became visible after a version.

    Both conditions are optional; without any, return None for all segments.
    """
    wanted = None
    if partition_key is not None:
        wanted = segments_of_partition(snapshot, partition_key)
    if after is not None:
        fresh = segments_after(snapshot, state_seen_at(log, after), log.read_commit)
        wanted = fresh if wanted is None else wanted & fresh
    return wanted


def state_seen_at(log: CommitLog, version: int) -> Snapshot | None:
    """Return the state that a consumer saw at a version.

    If the version has expired, return the oldest readable version, provided that it shows the same
    rows. Return None for version 0 once it has expired: it had no rows.
    """
    root = log.head().root
    if version == 0 and not is_readable(root, version):
        return None
    if version < root.oldest_version and not is_readable(root, version):
        oldest = log.at(root.oldest_version)
        # No commit after `version` changed the visible rows
        if oldest.root.viewed <= version:
            return oldest
    return log.at(version)
