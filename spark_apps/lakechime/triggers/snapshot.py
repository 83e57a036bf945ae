"""Snapshot triggers, which find the changes since a consumer's last success.

The consumer's watermark is a seq, and moves only after success.
"""

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
    """The matching events with from_seq < seq <= to_seq.

    Once they are processed, the watermark moves from `from_seq` to `to_seq`. `expired`: retention
    deleted events after `from_seq`, so some may be missing here.
    """

    events: tuple[DataChangeEvent, ...]
    from_seq: int
    to_seq: int
    expired: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """The result of a look for events after the watermark.

    Up to `covered_seq`, only the events in `fired` match. If the trigger did not fire, the
    watermark may move there, so that retention need not wait for a consumer without new events.
    `expired_seq` is the greatest seq that retention deleted of these tables. If it is after the
    watermark, events may be missing.
    """

    fired: Fired | None
    covered_seq: int
    expired_seq: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotTrigger:
    """A trigger that fires when tables have events with its tags after the watermark.

    Mode `any` needs an event of one of the tables, mode `all` an event of each.
    """

    tables: Sequence[TableName]
    mode: Mode = "any"
    tags: Mapping[str, str] = field(default_factory=dict)
    cluster: str = DEFAULT_CLUSTER

    def __post_init__(self) -> None:
        if isinstance(self.tables, str) or not self.tables:
            raise InvalidEventError(
                f"tables={self.tables!r} does not name tables; write a list of one or more names"
            )
        if self.mode not in ("any", "all"):
            raise InvalidEventError(f"mode={self.mode!r} is unknown; write 'any' or 'all'")
        names = dict.fromkeys(self._full_name(table) for table in self.tables)
        object.__setattr__(self, "tables", tuple(names))
        object.__setattr__(self, "tags", checked_tags(self.tags))

    def _full_name(self, table: TableName) -> tuple[str, str]:
        if isinstance(table, str):
            return table_name((self.cluster, table))
        return table_name(table)

    def interests(self, after_seq: int) -> tuple[Interest, ...]:
        """Return the interests of this trigger. One `find` takes those of many triggers.

        The trigger fires if each of its interests finds a seq.
        """
        if self.mode == "any":
            return (Interest(tables=tuple(self.tables), tags=self.tags, after=after_seq),)
        return tuple(
            Interest(tables=(table,), tags=self.tags, after=after_seq) for table in self.tables
        )

    def evaluate(self, reader: Reader, after_seq: int, max_events: int = 1000) -> Fired | None:
        """Return the events after the watermark, at most `max_events`, or None.

        Further events are for the next run. With mode `all` the result may have more than
        `max_events`, because it always has the first event of every table.
        """
        return self.look(reader, after_seq, max_events).fired

    def look(self, reader: Reader, after_seq: int, max_events: int = 1000) -> Look:
        """Return the result of `evaluate`, and the seq up to which it is complete."""
        least_to_seq = 0
        if self.mode == "all":
            answer = reader.find(self.interests(after_seq))
            firsts = [seq for seq in answer.seqs if seq is not None]
            if len(firsts) < len(answer.seqs):
                return self._unfired_look(reader, after_seq, firsts, answer.head)
            least_to_seq = max(firsts)
        page = reader.events(self.tables, after=after_seq, tags=self.tags, limit=max_events)
        if not page.events:
            return Look(fired=None, covered_seq=page.next_after, expired_seq=page.expired)
        events = list(page.events)
        to_seq = page.next_after
        if to_seq < least_to_seq:
            events += self._up_to(reader, to_seq, least_to_seq)
            to_seq = least_to_seq
        fired = Fired(
            events=tuple(registered.event for registered in events),
            from_seq=after_seq,
            to_seq=to_seq,
            expired=after_seq < page.expired,
        )
        return Look(fired=fired, covered_seq=to_seq, expired_seq=page.expired)

    def _unfired_look(
        self, reader: Reader, after_seq: int, firsts: Sequence[int], head: int
    ) -> Look:
        # After the head, an event may be missing in the answer: see LakeChime.find
        covered = min([head, *(first - 1 for first in firsts)])
        # Asked only for `expired` of the page
        page = reader.events(self.tables, after=after_seq, until=after_seq, limit=1)
        return Look(fired=None, covered_seq=max(after_seq, covered), expired_seq=page.expired)

    def _up_to(self, reader: Reader, after: int, until: int) -> list[Registered]:
        interest = Interest(tables=tuple(self.tables), tags=self.tags, after=after)
        return list(read_all(reader, interest, until))
