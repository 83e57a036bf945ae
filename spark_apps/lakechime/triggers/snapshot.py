"""Snapshot triggers, which ask what changed since the consumer's last success.

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
    """The events with from_seq < seq <= to_seq that match.

    Once they are processed, the watermark moves from `from_seq` to `to_seq`. `expired`: retention
    deleted events that the watermark had not passed, so some may be missing here.
    """

    events: tuple[DataChangeEvent, ...]
    from_seq: int
    to_seq: int
    expired: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """The result of a look for events after the watermark.

    `covered_seq`: up to there, only the events of `fired` match. Where the trigger did not fire,
    the watermark may move there, and retention need not wait for a consumer whose tables are quiet.
    `expired_seq`: the greatest seq of these tables that retention deleted. If it is after the
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
                f"tables={self.tables!r} names no table; write a list of one or more"
            )
        if self.mode not in ("any", "all"):
            raise InvalidEventError(f"mode={self.mode!r} is unknown; write any or all")
        names = dict.fromkeys(self._full_name(table) for table in self.tables)
        object.__setattr__(self, "tables", tuple(names))
        object.__setattr__(self, "tags", checked_tags(self.tags))

    def _full_name(self, table: TableName) -> tuple[str, str]:
        if isinstance(table, str):
            return table_name((self.cluster, table))
        return table_name(table)

    def interests(self, after_seq: int) -> tuple[Interest, ...]:
        """Return the interests, with which one `find` asks for many triggers.

        The trigger fires when each of them finds a seq.
        """
        if self.mode == "any":
            return (Interest(tables=tuple(self.tables), tags=self.tags, after=after_seq),)
        return tuple(
            Interest(tables=(table,), tags=self.tags, after=after_seq) for table in self.tables
        )

    def evaluate(self, reader: Reader, after_seq: int, max_events: int = 1000) -> Fired | None:
        """Return the events after the watermark, at most `max_events`.

        The rest is for the next run. With mode `all` there may be more: the first event of every
        table is always among them.
        """
        return self.look(reader, after_seq, max_events).fired

    def look(self, reader: Reader, after_seq: int, max_events: int = 1000) -> Look:
        """Return what `evaluate` returns, and how far a look without a result covers."""
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
        # Answers of several requests: a seq beyond the head may hide others before it
        covered = min([head, *(first - 1 for first in firsts)])
        # Only the page's `expired` is of interest
        page = reader.events(self.tables, after=after_seq, until=after_seq, limit=1)
        return Look(fired=None, covered_seq=max(after_seq, covered), expired_seq=page.expired)

    def _up_to(self, reader: Reader, after: int, until: int) -> list[Registered]:
        interest = Interest(tables=tuple(self.tables), tags=self.tags, after=after)
        return list(read_all(reader, interest, until))
