"""A consumer of data-change events: from its watermark to the newest event without a gap, and the same range again for a cleared run.

The watermark is in LakeChime, under the consumer's name and the key `events`: a place in their order. It moves by compare-and-set.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import AirflowFailException

from airflow_provider_opal.events.runs import Start, give_to, given_to
from airflow_provider_opal.events.state import AssetState, show

if TYPE_CHECKING:
    from airflow.sdk import Context

    from lakechime import DataChangeEvent, LakeChime, Watermark
    from lakechime.triggers.snapshot import Mode

WATERMARK = "events"  # as lakechime.triggers.snapshot names it
INTEREST = "interest"
PAGE = 1000
Range = dict[str, Any]  # "from" and "to": all events with from < seq <= to


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

    def take(self) -> Range | None:
        """The range of this run: what it was given before, or else what matched since the watermark. None when nothing did."""
        from lakechime import ConflictError

        if given := given_to(self.context):
            if self.acknowledges:
                self.acknowledge(given["to"])
            return given
        while True:
            before = self.watermark()
            seen = seq_of(before)
            last = self._last(seen)
            if last is None:
                return None
            given = give_to(self.context, {"from": seen, "to": last})
            if not self.acknowledges:
                return given
            try:
                self._put(last, before.revision)
            except ConflictError:  # another run of this consumer took these events
                give_to(self.context, {})
                continue
            return given

    def events(self, given: Range) -> list["DataChangeEvent"]:
        """Those of a range that match."""
        from lakechime import Interest
        from lakechime.triggers.reader import read_all

        interest = Interest(tables=tuple(self.tables), tags=self.tags, after=given["from"])
        return [registered.event for registered in read_all(self.client, interest, given["to"])]

    def watermark(self) -> "Watermark":
        """A new consumer's begins at its start, which is kept, so that later events count as new."""
        from lakechime import ConflictError

        check_interest(self.client, self.consumer, self.tables, self.tags)
        while (kept := self.client.watermark(self.consumer, WATERMARK)) is None:
            try:
                return self._put(self.client.head() if self.start == "head" else 0 if self.start == "all" else int(self.start), None)
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
        kept = self.client.put_watermark(self.consumer, WATERMARK, seq, expected=expected)
        for mirror in self.mirrors:
            show(mirror, "seen", {"seq": seq})
        return kept

    def _last(self, seen: int) -> int | None:
        """Where the next range ends, if there is one."""
        from lakechime.triggers.snapshot import SnapshotTrigger

        trigger = SnapshotTrigger(tables=tuple(self.tables), mode=self.mode, tags=self.tags)
        fired = trigger.evaluate(self.client, seen, self.max_events)
        if fired is not None and fired.expired and seen > 0:
            raise AirflowFailException(
                f"consumer {self.consumer!r} has seen the events up to {seen}, and later ones have expired unseen. Read the tables whole, "
                "and give the consumer another name (consumer=); it then begins at its start"
            )
        return None if fired is None else fired.to_seq


def check_interest(client: "LakeChime", consumer: str, tables: Sequence[Sequence[str]], tags: Mapping[str, str]) -> None:
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
            f"consumer {consumer!r} has a watermark for {kept.value}, and is asked for {meant}: what that passed was not seen for these. "
            "Give the consumer another name (consumer=)"
        )


def seq_of(watermark: "Watermark") -> int:
    """The place that it names. A consumer of another kind may have the same name."""
    if not isinstance(watermark.value, int) or isinstance(watermark.value, bool):
        raise AirflowFailException(
            f"the watermark of consumer {watermark.consumer!r} is {watermark.value!r}, which is no place in the order of events; give the "
            "consumer another name (consumer=)"
        )
    return watermark.value
