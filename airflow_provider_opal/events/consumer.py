"""Consumers of data-change events, from their watermarks to the newest event without a gap.

A cleared run gets the same range again. The watermark is in LakeChime, under the consumer's name
and the key `events`. It is a seq, and moves by compare-and-set.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol
from uuid import uuid4

from airflow.sdk.exceptions import AirflowFailException

from airflow_provider_opal.events.claims import Claims
from airflow_provider_opal.events.runs import Start, give_to, given_to
from airflow_provider_opal.events.state import AssetState, show
from lakechime.answers import SEEN_EVENTS

if TYPE_CHECKING:
    from airflow.sdk import Context

    from lakechime import DataChangeEvent, LakeChime, Watermark
    from lakechime.triggers.snapshot import Look, Mode

INTEREST = "interest"
PAGE = 1000
Range = dict[str, Any]  # "from" and "to": all events with from < seq <= to
HandOver = Callable[[Sequence["DataChangeEvent"]], Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class EventConsumer:
    """The consumer of a task: its name, its events, and how many it takes at once.

    With `acknowledges` its watermark passes the events that it takes. Otherwise an
    AcknowledgeOperator moves the watermark later. `mirrors` show the watermark in Airflow's UI.
    """

    context: "Context"
    client: "LakeChime"
    consumer: str
    tables: Sequence[tuple[str, str]]
    tags: Mapping[str, str]
    mode: "Mode" = "any"
    start: Start = "head"
    max_events: int = PAGE
    acknowledges: bool = True
    mirrors: Sequence[AssetState] = ()

    def take(self, hand_over: HandOver) -> Range | None:
        """Return the range of this run, or None if no event matches.

        If an earlier try of the run got a range, it is returned again. Otherwise the range has the
        matching events after the watermark. The run first hands these events over, then claims
        them (`events/claims.py`), and last stores the range as its own. If another run has claimed
        them first, this run takes the events back and begins again.
        """
        from lakechime import ConflictError

        note = given_to(self.context) or {}
        is_own = note.get("taken") or not self.acknowledges
        if "to" in note and is_own:
            return self._repeat(note, hand_over)
        run = str(note.get("run") or uuid4().hex)
        while True:
            claims, before = self._settled()
            if claim := claims.runs.get(run):
                return self._repeat({**claim, "run": run}, hand_over)
            look = self._look(seq_of(before))
            if look.fired is None:
                self._pass_over(claims, before, look.covered_seq)
                return None
            given = {
                "from": look.fired.from_seq,
                "to": look.fired.to_seq,
                "events": len(look.fired.events),
            }
            give_to(self.context, {**given, "run": run})
            hand_over(look.fired.events)
            if not self.acknowledges:
                return _span(given)
            try:
                claims.claim(self.client, before, given["to"], {run: given})
            except ConflictError:
                # Another run of this consumer claimed these events first
                give_to(self.context, {"run": run})
                hand_over(())
                continue
            return self._confirm({**given, "run": run})

    def _repeat(self, note: Range, hand_over: HandOver) -> Range:
        """Hand over the range that the run got before."""
        hand_over(self._events(note))
        if not self.acknowledges:
            return _span(note)
        return self._confirm(note)

    def _confirm(self, note: Range) -> Range:
        """Store a claimed range as the run's own, and drop the claim.

        The watermark passes the range first.
        """
        from lakechime import ConflictError

        self._settled()
        give_to(self.context, {**note, "taken": True})
        while True:
            with suppress(ConflictError):
                claims = Claims.read(self.client, self.consumer)
                claims.drop(self.client, self.consumer, str(note.get("run")))
                return _span(note)

    def _settled(self) -> tuple[Claims, "Watermark"]:
        """Return the claims and the watermark, after it has passed the last claimed step."""
        from lakechime import ConflictError

        while True:
            claims = Claims.read(self.client, self.consumer)
            before = self.watermark()
            if claims.at != before.revision:
                return claims, before
            # The run that claimed this step may have been killed before it moved the watermark
            with suppress(ConflictError):
                self._put(claims.to, before.revision)

    def _pass_over(self, claims: Claims, before: "Watermark", covered: int) -> None:
        """Move the watermark over events that do not match; retention may delete them."""
        from lakechime import ConflictError

        if covered > seq_of(before):
            with suppress(ConflictError):  # a run claimed events meanwhile
                claims.claim(self.client, before, covered)
                self._settled()

    def _events(self, given: Range) -> list["DataChangeEvent"]:
        """Return the matching events of a range; fail if some of them have expired."""
        from lakechime import Interest
        from lakechime.triggers.reader import read_all

        interest = Interest(tables=tuple(self.tables), tags=self.tags, after=given["from"])
        registered = read_all(self.client, interest, given["to"])
        events = [match.event for match in registered]
        if len(events) < given.get("events", 0):
            tables = ", ".join(table for _, table in self.tables)
            raise AirflowFailException(
                f"this run had {given['events']} events after seq {given['from']} up to "
                f"seq {given['to']}, but only {len(events)} of them are left: the others have "
                f"expired. Read {tables} as a whole, and keep events for longer than "
                "runs may be cleared"
            )
        return events

    def watermark(self) -> "Watermark":
        """Return the watermark; store that of a new consumer at its `start`.

        Events after the stored watermark count as new.
        """
        from lakechime import ConflictError

        check_interest(self.client, self.consumer, self.tables, self.tags)
        while True:
            watermark = self.client.watermark(self.consumer, SEEN_EVENTS)
            if watermark is not None:
                return watermark
            with suppress(ConflictError):  # another run stored it first
                return self._put(first_seq(self.client, self.start), None)

    def acknowledge(self, seq: int) -> None:
        """Raise the watermark; it never falls."""
        from lakechime import ConflictError

        while True:
            before = self.watermark()
            if seq_of(before) >= seq:
                return
            with suppress(ConflictError):  # another run moved it: look again
                self._put(seq, before.revision)

    def _put(self, seq: int, expected: int | None) -> "Watermark":
        watermark = self.client.put_watermark(self.consumer, SEEN_EVENTS, seq, expected=expected)
        for mirror in self.mirrors:
            show(mirror, "seen", {"seq": seq})
        return watermark

    def _look(self, seen: int) -> "Look":
        """Look for new events; fail if some expired unseen."""
        from lakechime.triggers.snapshot import SnapshotTrigger

        trigger = SnapshotTrigger(tables=tuple(self.tables), mode=self.mode, tags=self.tags)
        look = trigger.look(self.client, seen, self.max_events)
        check_expired(self, seen, look.expired_seq)
        return look


class Begun(Protocol):
    """A consumer with a name, the tables that it waits for, and its start."""

    @property
    def consumer(self) -> str: ...

    @property
    def tables(self) -> Sequence[Sequence[str]]: ...

    @property
    def start(self) -> Start: ...


def check_expired(consumer: Begun, seen: int, expired: int) -> None:
    """Fail if retention deleted events up to `expired` that the consumer missed.

    A consumer that begins with all existing events misses nothing before it has seen the first one.
    """
    if seen < expired and (seen > 0 or consumer.start == "head"):
        names = ", ".join(name for _, name in consumer.tables)
        raise AirflowFailException(
            f"consumer {consumer.consumer!r} has missed events: it has seen events up to {seen}, "
            f"and retention has deleted events up to {expired}. Read {names} as a whole. Then give "
            "the consumer another name (consumer=), so that it begins at its start"
        )


def first_seq(client: "LakeChime", start: Start) -> int:
    """Return the seq that counts as seen before a consumer's first look."""
    if start == "head":
        return client.head()
    return 0 if start == "all" else int(start)


def _span(given: Range) -> Range:
    return {"from": given["from"], "to": given["to"]}


def check_interest(
    client: "LakeChime", consumer: str, tables: Sequence[Sequence[str]], tags: Mapping[str, str]
) -> None:
    """Fail if a consumer waits for other tables or tags than before.

    Its watermark has already passed events of the new tables, which the consumer never saw.
    """
    interest: Any = {"tables": sorted([*table] for table in tables), "tags": dict(tags)}
    stored = _stored_interest(client, consumer, interest)
    if stored != interest:
        raise AirflowFailException(
            f"consumer {consumer!r} has followed {stored} until now, and now has to follow "
            f"{interest}. It would miss earlier events: give it another name (consumer=)"
        )


def _stored_interest(client: "LakeChime", consumer: str, interest: Any) -> Any:
    """Return the stored interest of a consumer, and store that of a new one."""
    from lakechime import ConflictError

    while True:
        watermark = client.watermark(consumer, INTEREST)
        if watermark is not None:
            return watermark.value
        with suppress(ConflictError):  # another run stored it first
            return client.put_watermark(consumer, INTEREST, interest, expected=None).value


def seq_of(watermark: "Watermark") -> int:
    """Return the seq of a watermark; fail if its value is not a number."""
    if not isinstance(watermark.value, int) or isinstance(watermark.value, bool):
        raise AirflowFailException(
            f"the watermark of consumer {watermark.consumer!r} is {watermark.value!r}, and not the "
            "seq of an event; give the consumer another name (consumer=)"
        )
    return watermark.value
