"""A consumer of data-change events: from its watermark to the newest event without a gap, and the same range again for a cleared run.

The watermark is in LakeChime, under the consumer's name and the key `events`: a place in their order. It moves by compare-and-set.
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
    """What a task waits for, under which name, and how much it takes at once. `acknowledges`: what it takes counts as done."""

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
        """The range of this run: what it was given before, or else what matched since the watermark. None when nothing did.

        The events are handed over first, then claimed (`events/claims.py`), and noted as the run's own last. Who comes second to claim them
        takes them back, and begins anew.
        """
        from lakechime import ConflictError

        note = given_to(self.context) or {}
        if "to" in note and (note.get("taken") or not self.acknowledges):
            return self._again(note, hand_over)
        run = str(note.get("run") or uuid4().hex)
        while True:
            claims, before = self._settled()
            if own := claims.runs.get(run):
                return self._again({**own, "run": run}, hand_over)
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
            except ConflictError:  # another run of this consumer took these events
                give_to(self.context, {"run": run})
                hand_over(())
                continue
            return self._own({**given, "run": run})

    def _again(self, note: Range, hand_over: HandOver) -> Range:
        """What the run was given before."""
        hand_over(self._events(note))
        return self._own(note) if self.acknowledges else _span(note)

    def _own(self, note: Range) -> Range:
        """The events are the run's for good: the watermark passes them, and the run knows them without its claim."""
        from lakechime import ConflictError

        self._settled()
        give_to(self.context, {**note, "taken": True})
        while True:
            with suppress(ConflictError):
                Claims.read(self.client, self.consumer).drop(
                    self.client, self.consumer, str(note.get("run"))
                )
                return _span(note)

    def _settled(self) -> tuple[Claims, "Watermark"]:
        """The claims, and the watermark behind the last one: who claimed it may have been killed before it moved."""
        from lakechime import ConflictError

        while True:
            claims, before = Claims.read(self.client, self.consumer), self.watermark()
            if claims.at != before.revision:
                return claims, before
            with suppress(ConflictError):
                self._put(claims.to, before.revision)

    def _pass_over(self, claims: Claims, before: "Watermark", covered: int) -> None:
        """Nothing that matches is up to there, so retention need not keep it for this consumer."""
        from lakechime import ConflictError

        if covered > seq_of(before):
            with suppress(ConflictError):  # a run took something meanwhile
                claims.claim(self.client, before, covered)
                self._settled()

    def _events(self, given: Range) -> list["DataChangeEvent"]:
        """Those of a range that match: as many as the run had when it got the range."""
        from lakechime import Interest
        from lakechime.triggers.reader import read_all

        interest = Interest(tables=tuple(self.tables), tags=self.tags, after=given["from"])
        found = [registered.event for registered in read_all(self.client, interest, given["to"])]
        if len(found) < given.get("events", 0):
            raise AirflowFailException(
                f"this run was given {given['events']} events after {given['from']} up to {given['to']}, and only {len(found)} of them are "
                f"left: the others have expired. Read the tables whole ({', '.join(table for _, table in self.tables)}), and keep events "
                "longer than runs are cleared"
            )
        return found

    def watermark(self) -> "Watermark":
        """A new consumer's begins at its start, which is kept, so that later events count as new."""
        from lakechime import ConflictError

        check_interest(self.client, self.consumer, self.tables, self.tags)
        while (kept := self.client.watermark(self.consumer, SEEN_EVENTS)) is None:
            try:
                return self._put(first_seq(self.client, self.start), None)
            except ConflictError:
                continue
        return kept

    def acknowledge(self, seq: int) -> None:
        """Raise the watermark; it never falls."""
        from lakechime import ConflictError

        while seq_of(before := self.watermark()) < seq:
            try:
                self._put(seq, before.revision)
            except ConflictError:
                continue

    def _put(self, seq: int, expected: int | None) -> "Watermark":
        kept = self.client.put_watermark(self.consumer, SEEN_EVENTS, seq, expected=expected)
        for mirror in self.mirrors:
            show(mirror, "seen", {"seq": seq})
        return kept

    def _look(self, seen: int) -> "Look":
        """What is new. What went unseen is never passed over in silence."""
        from lakechime.triggers.snapshot import SnapshotTrigger

        trigger = SnapshotTrigger(tables=tuple(self.tables), mode=self.mode, tags=self.tags)
        look = trigger.look(self.client, seen, self.max_events)
        check_expired(self, seen, look.expired_seq)
        return look


class Begun(Protocol):
    """What is known of a consumer: its name, what it waits for, and where it began."""

    @property
    def consumer(self) -> str: ...

    @property
    def tables(self) -> Sequence[Sequence[str]]: ...

    @property
    def start(self) -> Start: ...


def check_expired(consumer: Begun, seen: int, expired: int) -> None:
    """Whether retention deleted events of these tables up to `expired` that the consumer has not seen.

    To one that begins with whatever there is, nothing is missing before it has seen anything.
    """
    if seen < expired and (seen > 0 or consumer.start == "head"):
        names = ", ".join(name for _, name in consumer.tables)
        raise AirflowFailException(
            f"consumer {consumer.consumer!r} has seen the events up to {seen}, and later ones, up to {expired}, have expired unseen. Read "
            f"{names} whole, and give the consumer another name (consumer=); it then begins at its start"
        )


def first_seq(client: "LakeChime", start: Start) -> int:
    """What counts as seen before a consumer's first look."""
    return client.head() if start == "head" else 0 if start == "all" else int(start)


def _span(given: Range) -> Range:
    return {"from": given["from"], "to": given["to"]}


def check_interest(
    client: "LakeChime", consumer: str, tables: Sequence[Sequence[str]], tags: Mapping[str, str]
) -> None:
    """What a consumer waits for belongs to its watermark: whoever waits for other tables has not seen what it passed."""
    from lakechime import ConflictError

    meant: Any = {"tables": sorted([*table] for table in tables), "tags": dict(tags)}
    while (kept := client.watermark(consumer, INTEREST)) is None:
        try:
            kept = client.put_watermark(consumer, INTEREST, meant, expected=None)
            break
        except ConflictError:
            continue
    if kept.value != meant:
        raise AirflowFailException(
            f"consumer {consumer!r} has followed {kept.value} until now, and is asked for {meant}, whose earlier events it never saw. "
            "Give what follows those another name (consumer=)"
        )


def seq_of(watermark: "Watermark") -> int:
    """The place that it names. A consumer of another kind may have the same name."""
    if not isinstance(watermark.value, int) or isinstance(watermark.value, bool):
        raise AirflowFailException(
            f"the watermark of consumer {watermark.consumer!r} is {watermark.value!r}, which is no place in the order of events; give the "
            "consumer another name (consumer=)"
        )
    return watermark.value
