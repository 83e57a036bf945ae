"""The snapshots that a branch of an Iceberg table went through since the last look.

Each snapshot names its parent, which leads from the new head back to the last one.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

REMEMBERED = 100  # earlier heads; a branch that goes back to one of them was restored
EXPIRED = "expired"  # stands for the id of a snapshot that is no longer known


@dataclass(frozen=True, slots=True, kw_only=True)
class Lineage:
    """The part of a branch that earlier looks registered.

    `head` is the head of the branch at the last look, and `sequence` its sequence number.
    `registered` is the snapshot of the last event. `earlier` has the heads before `head`, the
    newest first. `turns` counts how often the branch went back, so that each time has its event.
    """

    head: int | None = None
    sequence: int | None = None
    registered: str | None = None
    earlier: tuple[int, ...] = ()
    turns: int = 0

    @staticmethod
    def of(position: Mapping[str, Any] | None) -> "Lineage":
        if position is None:
            return Lineage()
        return Lineage(
            head=position["head"],
            sequence=position["sequence"],
            registered=position["registered"],
            earlier=tuple(position["earlier"]),
            turns=position["turns"],
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "head": self.head,
            "sequence": self.sequence,
            "registered": self.registered,
            "turns": self.turns,
            "earlier": list(self.earlier),
        }

    def followed_by(self, head: int, sequence: int | None, registered: str | None) -> "Lineage":
        earlier = self.earlier
        if self.head is not None:
            earlier = (self.head, *earlier)[:REMEMBERED]
        return replace(self, head=head, sequence=sequence, registered=registered, earlier=earlier)

    def restored(self, head: int, sequence: int | None) -> "Lineage":
        return replace(self.followed_by(head, sequence, str(head)), turns=self.turns + 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """A snapshot's parent, which may have expired, and its sequence number.

    pyiceberg removes the parents that it expires. Format version 1 has no sequence numbers.
    """

    parent: int | None
    sequence: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """The way of a branch to its head, from `restored` or `after` over `ids`.

    `ids` has the oldest first. `restored` is a registered snapshot that the branch went back to.
    `after` is None if `ids` begins with the first snapshot of the table, or of one that replaced
    it. `is_lost`: snapshots before `ids` expired before they were registered.
    """

    ids: tuple[int, ...] = ()
    after: str | None = None
    restored: int | None = None
    is_lost: bool = False


def plan_course(head: int, links: Mapping[int, Link], lineage: Lineage) -> Course:
    """Return the course to a head.

    It follows the parents from the head back to a registered snapshot, or to the oldest known one.
    """
    newest_first: list[int] = []
    current: int | None = head
    earlier = {*lineage.earlier}
    while current is not None and current in links:
        if current == lineage.head or current in earlier:
            break
        newest_first.append(current)
        current = links[current].parent
    ids = tuple(reversed(newest_first))
    if current is None:
        return _course_from_root(ids, links, lineage)
    if current == lineage.head:
        return Course(ids=ids, after=lineage.registered)
    if current in earlier:
        return Course(ids=ids, restored=current)
    return Course(ids=ids, after=str(current), is_lost=lineage.head is not None)


def _course_from_root(ids: tuple[int, ...], links: Mapping[int, Link], lineage: Lineage) -> Course:
    """Return the course of snapshots whose first one names no parent."""
    first = links[ids[0]].sequence
    if lineage.head is None:
        has_expired = first is not None and first > 1
        return Course(ids=ids, after=EXPIRED if has_expired else None)
    if lineage.head in links:
        return Course(ids=ids)  # the table was replaced
    # Consecutive sequence numbers prove that no snapshot in between was lost
    if first is not None and lineage.sequence is not None and first == lineage.sequence + 1:
        return Course(ids=ids, after=lineage.registered)
    return Course(ids=ids, after=EXPIRED, is_lost=True)
