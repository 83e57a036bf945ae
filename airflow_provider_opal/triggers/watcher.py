"""LakeChimeTrigger: an event trigger for AssetWatcher, for DAGs with a plain `schedule=[asset]`."""

import asyncio
from collections.abc import AsyncIterator, Hashable, Mapping, Sequence
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Any

from airflow.triggers.base import BaseEventTrigger, TriggerEvent
from airflow.triggers.shared_stream import SharedStreamProducer

from airflow_provider_opal.assets import DEFAULT_CLUSTER, DEFAULT_LAKECHIME_CONN_ID
from airflow_provider_opal.events.consumer import check_expired, check_interest, first_seq, seq_of
from airflow_provider_opal.events.interest import (
    checked_tables,
    checked_tags,
    interests_of,
    table_pairs,
)
from airflow_provider_opal.events.poller import wait_for_all
from airflow_provider_opal.events.runs import Start, checked_start
from airflow_provider_opal.hooks.lakechime import LakeChimeHook
from lakechime.answers import SEEN_EVENTS

if TYPE_CHECKING:
    from airflow.triggers.shared_stream import AdvanceItem

    from lakechime import LakeChime, Page

MAX_EVENTS = 100
LONGEST_QUIET_S = 600.0  # then its watermark moves, though nothing came


class LakeChimeTrigger(BaseEventTrigger):
    """Fires for what is new of some tables, at most 100 events at once: {"from": a, "to": b, "events": [...]}.

        asset = Asset("raw_orders", watchers=[AssetWatcher(name="raw", trigger=LakeChimeTrigger(tables=["shop.raw"], consumer="raw"))])

    The watermark of `consumer` is in LakeChime, and moves when Airflow has stored the event: whatever becomes of the triggerer, nothing is
    left out. A new consumer begins with what comes next (`start="head"`), with all that is there (`start="all"`), or after a place. Airflow
    drops events of DAGs that are paused, and its watchers know no partition keys: for both there is the relay.
    """

    def __init__(
        self,
        *,
        tables: Sequence[Any],
        consumer: str,
        tags: Mapping[str, str] | None = None,
        cluster: str = DEFAULT_CLUSTER,
        start: Start = "head",
        lakechime_conn_id: str = DEFAULT_LAKECHIME_CONN_ID,
        poke_interval_s: float = 1.0,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # Airflow's
        self.tables = [list(table) for table in table_pairs(checked_tables(tables), cluster)]
        self.consumer = consumer
        self.tags = checked_tags(tags)
        self.start = checked_start(start)
        self.lakechime_conn_id = lakechime_conn_id
        self.poke_interval_s = poke_interval_s

    def serialize(self) -> tuple[str, dict[str, Any]]:
        names = ("tables", "consumer", "tags", "start", "lakechime_conn_id", "poke_interval_s")
        return f"{type(self).__module__}.{type(self).__qualname__}", {
            name: getattr(self, name) for name in names
        }

    def shared_stream_key(self) -> Hashable:
        """One stream a consumer of the same tables and tags: by it Airflow tells when an event is stored."""
        tables, tags = tuple(map(tuple, self.tables)), tuple(sorted(self.tags.items()))
        return ("lakechime", self.lakechime_conn_id, self.consumer, tables, tags)

    @classmethod
    def create_shared_stream_producer(cls, kwargs: dict[str, Any]) -> SharedStreamProducer:
        return EventStream(cls(**kwargs))

    async def filter_shared_stream(
        self, shared_stream: AsyncIterator[Any]
    ) -> AsyncIterator[TriggerEvent]:
        async for payload in shared_stream:
            yield TriggerEvent(payload)  # type: ignore[no-untyped-call]  # Airflow's

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Where nothing shares its stream: what was fired counts as stored when the next one is asked for."""
        stream = EventStream(self)
        async for payload, seq in stream.open_stream():
            yield TriggerEvent(payload)  # type: ignore[no-untyped-call]  # Airflow's
            await asyncio.to_thread(stream.acknowledge, seq)


class EventStream(SharedStreamProducer):
    """The events of one consumer, from its watermark on."""

    def __init__(self, trigger: LakeChimeTrigger) -> None:
        self.trigger = trigger

    async def open_stream(self) -> AsyncIterator[tuple[Any, Any]]:
        trigger, seen = self.trigger, await asyncio.to_thread(self._seen)
        while True:
            page = await asyncio.to_thread(self._page, seen)
            check_expired(trigger, seen, page.expired)
            if page.events:
                events = [registered.event.to_json() for registered in page.events]
                yield {"from": seen, "to": page.next_after, "events": events}, page.next_after
            else:
                await asyncio.to_thread(self._pass_over, seen, page.next_after)
            seen = page.next_after
            if not page.more:
                interests = interests_of(trigger.tables, after=seen, tags=trigger.tags)
                with suppress(TimeoutError):
                    await asyncio.wait_for(
                        wait_for_all(trigger.lakechime_conn_id, interests, trigger.poke_interval_s),
                        LONGEST_QUIET_S,
                    )

    async def advance(self, batch: Sequence["AdvanceItem"]) -> None:
        """All up to the last one are stored, unless one failed: then it comes again."""
        for item in batch:
            if not item.outcome.is_clean:
                raise RuntimeError(
                    f"the event up to {item.broker_payload} of consumer {self.trigger.consumer!r} was not stored"
                )
        await asyncio.to_thread(self.acknowledge, batch[-1].broker_payload)

    def acknowledge(self, seq: int) -> None:
        """Raise the watermark; it never falls."""
        from lakechime import ConflictError

        with closing(self._client()) as client:
            while (kept := client.watermark(self.trigger.consumer, SEEN_EVENTS)) is None or seq_of(
                kept
            ) < seq:
                try:
                    client.put_watermark(
                        self.trigger.consumer,
                        SEEN_EVENTS,
                        seq,
                        expected=None if kept is None else kept.revision,
                    )
                except ConflictError:
                    continue

    def _pass_over(self, seen: int, covered: int) -> None:
        """Nothing that matches is up to there: retention need not keep it, once all before it is stored."""
        with closing(self._client()) as client:
            kept = client.watermark(self.trigger.consumer, SEEN_EVENTS)
        if covered > seen and kept is not None and seq_of(kept) == seen:
            self.acknowledge(covered)

    def _client(self) -> "LakeChime":
        return LakeChimeHook(self.trigger.lakechime_conn_id).get_conn()

    def _seen(self) -> int:
        with closing(self._client()) as client:
            check_interest(client, self.trigger.consumer, self.trigger.tables, self.trigger.tags)
            kept = client.watermark(self.trigger.consumer, SEEN_EVENTS)
            if kept is not None:
                return seq_of(kept)
            return seq_of(
                client.put_watermark(
                    self.trigger.consumer,
                    SEEN_EVENTS,
                    first_seq(client, self.trigger.start),
                    expected=None,
                )
            )

    def _page(self, seen: int) -> "Page":
        with closing(self._client()) as client:
            tables = [(cluster, table) for cluster, table in self.trigger.tables]
            return client.events(tables, after=seen, tags=self.trigger.tags, limit=MAX_EVENTS)
