"""Events of one table as a chain of snapshots: the range that an incremental read takes, and what is wrong with it.

A reader of (start, end] is right only if every snapshot between them is known. What is missing, forked or restored is said, never read
over.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal

from lakechime.errors import ChainError, InvalidEventError
from lakechime.event import DataChangeEvent
from lakechime.tags import AGAIN, LOST, RESTORED

RESTORED_TAGS = (
    "opal.restored_version",
    RESTORED,
)  # a producer that knows of a restore tells it by one of these


class ProblemKind(StrEnum):
    """What an incremental reader must not read over."""

    NO_SNAPSHOT = "no snapshot"
    GAP = "gap"
    FORK = "fork"
    RESTORE = "restore"
    RECREATED = "created again"
    CONTRADICTION = "contradiction"
    CIRCLE = "circle"


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """`snapshots` are those that it is about, in the order of the events."""

    kind: ProblemKind
    snapshots: tuple[str, ...]
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """Changes after `start` (None: from the table's beginning) up to and with `end`. `snapshots` lie between, `end` last.

    With problems the range is that of the first and the last event, and a reader has to read the whole table instead.
    """

    table: str
    cluster: str
    start: str | None
    end: str
    snapshots: tuple[str, ...]
    problems: tuple[Problem, ...] = ()


@dataclass(slots=True, kw_only=True)
class _Links:
    """Snapshots in the order of their first events, and the one before each."""

    before: dict[str, str | None] = field(default_factory=dict)
    again: dict[str, str | None] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    def add(self, kind: ProblemKind, snapshots: Iterable[str], text: str) -> None:
        self.problems.append(Problem(kind=kind, snapshots=tuple(snapshots), text=text))


def chain(
    events: Iterable[DataChangeEvent], *, on_problems: Literal["raise", "report"] = "raise"
) -> Chain:
    """Of the events of one table, in whatever order they are given. Events of several partitions of a snapshot count once."""
    listed = sorted(events, key=lambda event: (event.seq is None, event.seq or 0))
    if not listed:
        raise InvalidEventError("there are no events to chain; ask first whether there are any")
    table, cluster = _one_table(listed)
    links = _Links()
    for event in listed:
        _link(links, event)
    if not links.before:
        raise ChainError(
            f"no event of {table} names a snapshot, as Hive's tables have none; read the partitions that the events name"
        )
    order = _follow(links)
    found = Chain(
        table=table,
        cluster=cluster,
        start=links.before[order[0]],
        end=order[-1],
        snapshots=tuple(order),
        problems=tuple(links.problems),
    )
    if found.problems and on_problems == "raise":
        said = "; ".join(problem.text for problem in found.problems)
        raise ChainError(
            f"the {len(listed):,} events of {table} are no chain of snapshots: {said}; read the whole table instead"
        )
    return found


def _one_table(events: Iterable[DataChangeEvent]) -> tuple[str, str]:
    names = sorted({(event.table, event.cluster) for event in events})
    if len(names) > 1:
        shown = ", ".join(table for table, _ in names[:5])
        raise InvalidEventError(
            f"events of {len(names)} tables ({shown}) are no one chain; chain each table's events by themselves"
        )
    return names[0]


def _link(links: _Links, event: DataChangeEvent) -> None:
    snapshot, before = event.snapshot_id, event.prev_snapshot_id
    if snapshot is None:
        links.add(ProblemKind.NO_SNAPSHOT, (), f"an event (seq {event.seq}) names no snapshot")
        return
    if snapshot in links.before:
        _check_again(links, event, snapshot)
        return
    _check_restore(links, event, snapshot)
    if LOST in event.tags:
        links.add(
            ProblemKind.GAP,
            (snapshot,),
            f"snapshots {event.tags[LOST]} expired before anybody registered them",
        )
    links.before[snapshot], links.again[snapshot] = before, event.tags.get(AGAIN)


def _check_again(links: _Links, event: DataChangeEvent, snapshot: str) -> None:
    """Another event of a snapshot that is there already: of another partition, or, as its producer says, of another course of the table."""
    first, before = links.before[snapshot], event.prev_snapshot_id
    if event.tags.get(AGAIN) != links.again[snapshot] and not any(
        tag in event.tags for tag in RESTORED_TAGS
    ):
        links.add(
            ProblemKind.RECREATED,
            (snapshot,),
            f"snapshot {snapshot} comes again, so the table was made again",
        )
    elif any(tag in event.tags for tag in RESTORED_TAGS):
        _check_restore(links, event, snapshot)
    elif first != before:
        links.add(
            ProblemKind.CONTRADICTION,
            (snapshot,),
            f"snapshot {snapshot} comes after {first} by one event and after {before} by another",
        )


def _check_restore(links: _Links, event: DataChangeEvent, snapshot: str) -> None:
    restored = next((event.tags[tag] for tag in RESTORED_TAGS if tag in event.tags), None)
    if restored is not None:
        links.add(
            ProblemKind.RESTORE, (restored, snapshot), f"snapshot {snapshot} restored {restored}"
        )


def _follow(links: _Links) -> list[str]:
    """From the first snapshot to the last. Where there is no such way, the events' own order stands."""
    after: dict[str, list[str]] = {}
    for snapshot, before in links.before.items():
        if before is not None:
            after.setdefault(before, []).append(snapshot)
    for before, successors in after.items():
        if len(successors) > 1:
            links.add(
                ProblemKind.FORK,
                (before, *successors),
                f"{' and '.join(successors)} both come after {before}",
            )
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
        links.add(
            ProblemKind.CIRCLE, circle, f"{', '.join(circle)} come after one another in a circle"
        )
    order = _walk(heads[0], after) if heads else []
    return order if len(order) == len(links.before) else list(links.before)


def _reached(heads: Iterable[str], after: Mapping[str, list[str]]) -> set[str]:
    reached, waiting = set(heads), list(heads)
    while waiting:
        new = [snapshot for snapshot in after.get(waiting.pop(), []) if snapshot not in reached]
        reached.update(new)
        waiting += new
    return reached


def _explain_head(links: _Links, snapshot: str, after: Mapping[str, list[str]]) -> None:
    before = links.before[snapshot]
    if before is None:
        links.add(
            ProblemKind.RECREATED,
            (snapshot,),
            f"snapshot {snapshot} comes after none, so the table was made again",
        )
    elif len(after[before]) == 1:
        links.add(
            ProblemKind.GAP,
            (before, snapshot),
            f"{before}, which comes before {snapshot}, is not among the events",
        )


def _walk(first: str, after: Mapping[str, list[str]]) -> list[str]:
    order, seen = [first], {first}
    while (successors := after.get(order[-1], [])) and successors[0] not in seen:
        order.append(successors[0])
        seen.add(successors[0])
    return order
