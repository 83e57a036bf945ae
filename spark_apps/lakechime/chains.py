"""Events of one table as a chain of snapshots: the range of an incremental read, and its problems.

A reader of the changes after `start` up to `end` is right only if every snapshot between them is
known. Missing, forked and restored snapshots are reported as problems.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal

from lakechime.errors import ChainError, InvalidEventError
from lakechime.event import DataChangeEvent
from lakechime.tags import AGAIN, LOST, RESTORED

# The tags by which a producer reports that a snapshot restored an older one
RESTORED_TAGS = ("opal.restored_version", RESTORED)
_SHOWN_TABLES = 5


class ProblemKind(StrEnum):
    """The kind of a problem that an incremental reader must not ignore."""

    NO_SNAPSHOT = "no snapshot"
    GAP = "gap"
    FORK = "fork"
    RESTORE = "restore"
    RECREATED = "created again"
    CONTRADICTION = "contradiction"
    CIRCLE = "circle"


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A problem of a chain. `snapshots` has the affected ones, in order of the events."""

    kind: ProblemKind
    snapshots: tuple[str, ...]
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """The changes after `start` up to and including `end`.

    A `start` of None is the table's beginning. `snapshots` follow `start`, and the last one is
    `end`. If there are problems, a reader has to read the whole table instead.
    """

    table: str
    cluster: str
    start: str | None
    end: str
    snapshots: tuple[str, ...]
    problems: tuple[Problem, ...] = ()


@dataclass(slots=True, kw_only=True)
class _Links:
    """The snapshots of the events read so far, in the order of their first events."""

    before: dict[str, str | None] = field(default_factory=dict)  # predecessor by snapshot
    again: dict[str, str | None] = field(default_factory=dict)  # tag AGAIN by snapshot
    problems: list[Problem] = field(default_factory=list)

    def add(self, kind: ProblemKind, snapshots: Iterable[str], text: str) -> None:
        self.problems.append(Problem(kind=kind, snapshots=tuple(snapshots), text=text))


def chain(
    events: Iterable[DataChangeEvent], *, on_problems: Literal["raise", "report"] = "raise"
) -> Chain:
    """Return the chain of one table's events, which may come in any order.

    The events of one snapshot, such as those of its partitions, are one link. Problems raise
    ChainError, or are reported in the chain.
    """
    # Events that are not registered yet have no seq, and come last
    ordered = sorted(events, key=lambda event: (event.seq is None, event.seq or 0))
    if not ordered:
        raise InvalidEventError("chain() got no events; call it with at least one")
    table, cluster = _only_table(ordered)
    links = _Links()
    for event in ordered:
        _link(links, event)
    if not links.before:
        raise ChainError(
            f"no event of {table} names a snapshot, as Hive's tables have none; "
            "read the partitions that the events name"
        )
    snapshots = _follow(links)
    result = Chain(
        table=table,
        cluster=cluster,
        start=links.before[snapshots[0]],
        end=snapshots[-1],
        snapshots=tuple(snapshots),
        problems=tuple(links.problems),
    )
    if result.problems and on_problems == "raise":
        problems = "; ".join(problem.text for problem in result.problems)
        raise ChainError(
            f"the {len(ordered):,} events of {table} do not form a chain of snapshots: "
            f"{problems}; read the whole table instead"
        )
    return result


def _only_table(events: Iterable[DataChangeEvent]) -> tuple[str, str]:
    """Return the (table, cluster) of all events."""
    names = sorted({(event.table, event.cluster) for event in events})
    if len(names) > 1:
        shown = ", ".join(table for table, _ in names[:_SHOWN_TABLES])
        raise InvalidEventError(
            f"events of {len(names)} tables ({shown}) do not form one chain; "
            "chain the events of each table separately"
        )
    return names[0]


def _link(links: _Links, event: DataChangeEvent) -> None:
    """Add the snapshot of an event to the links, and its problems."""
    snapshot = event.snapshot_id
    if snapshot is None:
        links.add(ProblemKind.NO_SNAPSHOT, (), f"an event (seq {event.seq}) names no snapshot")
        return
    if snapshot in links.before:
        _check_again(links, event, snapshot)
        return
    _check_restore(links, event, snapshot)
    if LOST in event.tags:
        text = f"snapshots {event.tags[LOST]} expired before anybody registered them"
        links.add(ProblemKind.GAP, (snapshot,), text)
    links.before[snapshot] = event.prev_snapshot_id
    links.again[snapshot] = event.tags.get(AGAIN)


def _check_again(links: _Links, event: DataChangeEvent, snapshot: str) -> None:
    """Check another event of a known snapshot.

    Usually the event is of another partition. Its tags show if the table was created again or
    restored.
    """
    is_restore = any(tag in event.tags for tag in RESTORED_TAGS)
    first, before = links.before[snapshot], event.prev_snapshot_id
    if is_restore:
        _check_restore(links, event, snapshot)
    elif event.tags.get(AGAIN) != links.again[snapshot]:
        text = f"snapshot {snapshot} comes again, so the table was created again"
        links.add(ProblemKind.RECREATED, (snapshot,), text)
    elif first != before:
        text = f"one event puts snapshot {snapshot} after {first}, and another after {before}"
        links.add(ProblemKind.CONTRADICTION, (snapshot,), text)


def _check_restore(links: _Links, event: DataChangeEvent, snapshot: str) -> None:
    for tag in RESTORED_TAGS:
        if tag in event.tags:
            restored = event.tags[tag]
            text = f"snapshot {snapshot} restored {restored}"
            links.add(ProblemKind.RESTORE, (restored, snapshot), text)
            return


def _follow(links: _Links) -> list[str]:
    """Return the snapshots in order, and add the problems of their order.

    Snapshots whose predecessors do not form one line stay in the order of the events.
    """
    after: dict[str, list[str]] = {}
    for snapshot, before in links.before.items():
        if before is not None:
            after.setdefault(before, []).append(snapshot)
    for before, successors in after.items():
        if len(successors) > 1:
            text = f"{' and '.join(successors)} both come after {before}"
            links.add(ProblemKind.FORK, (before, *successors), text)
    heads = [
        snapshot
        for snapshot, before in links.before.items()
        if before is None or before not in links.before
    ]
    for snapshot in heads[1:]:
        _explain_head(links, snapshot, after)
    reached = _reached(heads, after)
    circle = [snapshot for snapshot in links.before if snapshot not in reached]
    if circle:
        text = f"{', '.join(circle)} come after one another in a circle"
        links.add(ProblemKind.CIRCLE, circle, text)
    if heads:
        order = _walk(heads[0], after)
        if len(order) == len(links.before):
            return order
    return list(links.before)


def _reached(heads: Iterable[str], after: Mapping[str, list[str]]) -> set[str]:
    """Return the heads, and all snapshots that follow them directly or indirectly."""
    reached, waiting = set(heads), list(heads)
    while waiting:
        successors = after.get(waiting.pop(), [])
        new = [snapshot for snapshot in successors if snapshot not in reached]
        reached.update(new)
        waiting += new
    return reached


def _explain_head(links: _Links, snapshot: str, after: Mapping[str, list[str]]) -> None:
    """Add the problem of a snapshot whose predecessor is not among the events."""
    before = links.before[snapshot]
    if before is None:
        text = f"snapshot {snapshot} has no predecessor, so the table was created again"
        links.add(ProblemKind.RECREATED, (snapshot,), text)
    # A predecessor with several successors is reported as a fork
    elif len(after[before]) == 1:
        text = f"{before}, which comes before {snapshot}, is not among the events"
        links.add(ProblemKind.GAP, (before, snapshot), text)


def _walk(first: str, after: Mapping[str, list[str]]) -> list[str]:
    """Return the line of snapshots from `first` on.

    At a fork it takes the first successor. It ends before a circle closes.
    """
    order, seen = [first], {first}
    while True:
        successors = after.get(order[-1], [])
        if not successors or successors[0] in seen:
            return order
        order.append(successors[0])
        seen.add(successors[0])
