"""Snapshot triggers: what changed since the consumer's last success? The consumer's watermark is a seq, and moves only after success."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from lakechime.answers import Interest, Registered, TableName, table_name
from lakechime.errors import InvalidEventError
from lakechime.event import DEFAULT_CLUSTER, DataChangeEvent, checked_tags
from lakechime.triggers.reader import Reader, read_all

Mode = Literal["any", "all"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fired:
    """Events with from_seq < seq <= to_seq that match; once they are processed, the watermark moves from `from_seq` to `to_seq`.

    `expired`: retention deleted events that the watermark had not passed, so some may be missing here.
    """

    events: tuple[DataChangeEvent, ...]
    from_seq: int
    to_seq: int
    expired: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What a look after the watermark found.

    `covered_seq`: no event that matches is up to there but those of `fired`, so where it did not fire the watermark may move there, and
    retention need not wait for a consumer whose tables are quiet. `expired_seq`: the greatest seq of these tables that retention deleted;
    if it is after the watermark, some may be missing.
    """

    fired: Fired | None
    covered_seq: int
    expired_seq: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotTrigger:
    """Fires when any of the tables, or each of them, has an event with all of the tags after the watermark."""

    tables: Sequence[TableName]
    mode: Mode = "any"
    tags: Mapping[str, str] = field(default_factory=dict)
    cluster: str = DEFAULT_CLUSTER

    def __post_init__(self) -> None:
        if isinstance(self.tables, str) or not self.tables:
            raise InvalidEventError(
                f"tables={self.tables!r} names no table; write a list of one or more"
            )
        if self.mode not in ("any", "all"):
            raise InvalidEventError(f"mode={self.mode!r} is unknown; write any or all")
        named = dict.fromkeys(
            table_name((self.cluster, table) if isinstance(table, str) else table)
            for table in self.tables
        )
        object.__setattr__(self, "tables", tuple(named))
        object.__setattr__(self, "tags", checked_tags(self.tags))

    def interests(self, after_seq: int) -> tuple[Interest, ...]:
        """To ask of many triggers at once, by `find`: it fires when each of these finds a seq."""
        groups = [tuple(self.tables)] if self.mode == "any" else [(table,) for table in self.tables]
        return tuple(Interest(tables=group, tags=self.tags, after=after_seq) for group in groups)

    def evaluate(self, reader: Reader, after_seq: int, max_events: int = 1000) -> Fired | None:
        """The events after the watermark, at most `max_events`: the rest is for the next run.

        Where each table has to have one there may be more: the first of every table is always among them.
        """
        return self.look(reader, after_seq, max_events).fired

    def look(self, reader: Reader, after_seq: int, max_events: int = 1000) -> Look:
        """The same, with what a look that found too little says."""
        least = 0
        if self.mode == "all":
            found = reader.find(self.interests(after_seq))
            firsts = [seq for seq in found.seqs if seq is not None]
            if len(firsts) < len(found.seqs):
                # Found in several requests, one beyond the head may hide others before it
                covered = min([found.head, *(first - 1 for first in firsts)])
                page = reader.events(
                    self.tables, after=after_seq, until=after_seq, limit=1
                )  # for what has expired alone
                return Look(
                    fired=None, covered_seq=max(after_seq, covered), expired_seq=page.expired
                )
            least = max(firsts)
        page = reader.events(self.tables, after=after_seq, tags=self.tags, limit=max_events)
        if not page.events:
            return Look(fired=None, covered_seq=page.next_after, expired_seq=page.expired)
        events, to_seq = list(page.events), page.next_after
        if to_seq < least:
            events += self._up_to(reader, to_seq, least)
            to_seq = least
        matching = tuple(registered.event for registered in events)
        fired = Fired(
            events=matching, from_seq=after_seq, to_seq=to_seq, expired=after_seq < page.expired
        )
        return Look(fired=fired, covered_seq=to_seq, expired_seq=page.expired)

    def _up_to(self, reader: Reader, after: int, until: int) -> list[Registered]:
        return list(
            read_all(
                reader, Interest(tables=tuple(self.tables), tags=self.tags, after=after), until
            )
        )
