"""Which snapshots a branch of an Iceberg table went through since the last look, from the parents that snapshots name."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

REMEMBERED = 100
EXPIRED = "expired"  # for the id of a snapshot that nobody knows any more


@dataclass(frozen=True, slots=True, kw_only=True)
class Lineage:
    """What earlier looks registered: the branch's head then, with its sequence number, the snapshot of the last event, and the heads
    before, the newest first.

    `turns` counts how often the branch went back, so that each time is an event of its own.
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
            **{name: position[name] for name in _PLAIN}, earlier=tuple(position["earlier"])
        )

    def to_json(self) -> dict[str, Any]:
        return {**{name: getattr(self, name) for name in _PLAIN}, "earlier": list(self.earlier)}

    def followed_by(self, head: int, sequence: int | None, registered: str | None) -> "Lineage":
        earlier = self.earlier if self.head is None else (self.head, *self.earlier)[:REMEMBERED]
        return replace(self, head=head, sequence=sequence, registered=registered, earlier=earlier)

    def restored(self, head: int, sequence: int | None) -> "Lineage":
        return replace(self.followed_by(head, sequence, str(head)), turns=self.turns + 1)


_PLAIN = ("head", "sequence", "registered", "turns")


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """What a snapshot says of its place: its parent, which may have expired, and its number, which counts the snapshots of a table.

    pyiceberg forgets the parents that it lets expire. The first format version has no numbers.
    """

    parent: int | None
    sequence: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """The way to a head: back to `restored`, which was registered before, or on from `after`; then over `ids`, oldest first.

    `after` is None where the way begins with the table, or with one that replaced it. `is_lost`: snapshots before the way expired.
    """

    ids: tuple[int, ...] = ()
    after: str | None = None
    restored: int | None = None
    is_lost: bool = False


def plan_course(head: int, links: Mapping[int, Link], lineage: Lineage) -> Course:
    """From the head back to what is registered, or as far as snapshots are kept."""
    ids: list[int] = []
    at: int | None = head
    earlier = {*lineage.earlier}
    while at is not None and at != lineage.head and at not in earlier and at in links:
        ids.append(at)
        at = links[at].parent
    way = tuple(reversed(ids))
    if at is not None and at == lineage.head:
        return Course(ids=way, after=lineage.registered)
    if at is not None:
        return (
            Course(ids=way, restored=at)
            if at in earlier
            else Course(ids=way, after=str(at), is_lost=lineage.head is not None)
        )
    return _from_root(way, links, lineage)


def _from_root(way: tuple[int, ...], links: Mapping[int, Link], lineage: Lineage) -> Course:
    """The first one names no parent. Numbers without a hole say that none between was lost."""
    first = links[way[0]].sequence
    if lineage.head is None:
        return Course(ids=way, after=EXPIRED if first is not None and first > 1 else None)
    if lineage.head in links:
        return Course(ids=way)  # the table was replaced
    if first is not None and lineage.sequence is not None and first == lineage.sequence + 1:
        return Course(ids=way, after=lineage.registered)
    return Course(ids=way, after=EXPIRED, is_lost=True)
