"""LakeChimeTrigger, an event trigger for AssetWatcher, for DAGs with `schedule=[asset]`."""

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
LONGEST_QUIET_S = 600.0  # after this time the watermark moves even without a matching event


class LakeChimeTrigger(BaseEventTrigger):
    """A trigger that fires for new events of some tables, at most 100 together.

        trigger = LakeChimeTrigger(tables=["shop.raw"], consumer="raw")
        asset = Asset("raw_orders", watchers=[AssetWatcher(name="raw", trigger=trigger)])

    It fires with {"from": seq, "to": seq, "events": [...]}. The watermark of `consumer` is in
    LakeChime, and moves when Airflow has stored the event. So no event is left out, even if the
    triggerer is killed. A new consumer begins with the next event (`start="head"`), with all
    existing events (`start="all"`), or after a seq. Airflow's watchers emit no partition keys; use
    a relay for these.
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
        arguments = {name: getattr(self, name) for name in names}
        return f"{type(self).__module__}.{type(self).__qualname__}", arguments

    def shared_stream_key(self) -> Hashable:
        """Return the key of the shared stream: connection, consumer, tables and tags.

        Airflow reports only for shared streams when an event is stored.
        """
        tables = tuple(map(tuple, self.tables))
        tags = tuple(sorted(self.tags.items()))
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
        """Yield the events if the stream is not shared.

        An event counts as stored when Airflow asks for the next one.
        """
        stream = EventStream(self)
        async for payload, seq in stream.open_stream():
            yield TriggerEvent(payload)  # type: ignore[no-untyped-call]  # Airflow's
            await asyncio.to_thread(stream.acknowledge, seq)


class EventStream(SharedStreamProducer):
    """The events of one consumer, from its watermark on."""

    def __init__(
        self, trigger: LakeChimeTrigger, *, longest_quiet_s: float = LONGEST_QUIET_S
    ) -> None:
        self.trigger = trigger
        self.longest_quiet_s = longest_quiet_s

    async def open_stream(self) -> AsyncIterator[tuple[Any, Any]]:
        trigger = self.trigger
        seen = await asyncio.to_thread(self._seen)
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
                wait = wait_for_all(trigger.lakechime_conn_id, interests, trigger.poke_interval_s)
                with suppress(TimeoutError):
                    await asyncio.wait_for(wait, self.longest_quiet_s)

    async def advance(self, batch: Sequence["AdvanceItem"]) -> None:
        """Raise the watermark over stored events, or raise RuntimeError."""
        for item in batch:
            if not item.outcome.is_clean:
                raise RuntimeError(
                    f"Airflow did not store the event up to seq {item.broker_payload} of consumer "
                    f"{self.trigger.consumer!r}; the triggerer emits it again"
                )
        await asyncio.to_thread(self.acknowledge, batch[-1].broker_payload)

    def acknowledge(self, seq: int) -> None:
        """Raise the watermark; it never falls."""
        from lakechime import ConflictError

        consumer = self.trigger.consumer
        with closing(self._client()) as client:
            while True:
                watermark = client.watermark(consumer, SEEN_EVENTS)
                if watermark is not None and seq_of(watermark) >= seq:
                    return
                revision = None if watermark is None else watermark.revision
                with suppress(ConflictError):  # another process moved it: look again
                    client.put_watermark(consumer, SEEN_EVENTS, seq, expected=revision)

    def _pass_over(self, seen: int, covered: int) -> None:
        """Move the watermark over events that do not match; retention may delete them."""
        with closing(self._client()) as client:
            watermark = client.watermark(self.trigger.consumer, SEEN_EVENTS)
        # Only if Airflow has stored all earlier events
        if covered > seen and watermark is not None and seq_of(watermark) == seen:
            self.acknowledge(covered)

    def _client(self) -> "LakeChime":
        return LakeChimeHook(self.trigger.lakechime_conn_id).get_conn()

    def _seen(self) -> int:
        with closing(self._client()) as client:
            consumer = self.trigger.consumer
            check_interest(client, consumer, self.trigger.tables, self.trigger.tags)
            watermark = client.watermark(consumer, SEEN_EVENTS)
            if watermark is None:
                first = first_seq(client, self.trigger.start)
                watermark = client.put_watermark(consumer, SEEN_EVENTS, first, expected=None)
            return seq_of(watermark)

    def _page(self, seen: int) -> "Page":
        with closing(self._client()) as client:
            tables = [(cluster, table) for cluster, table in self.trigger.tables]
            return client.events(tables, after=seen, tags=self.trigger.tags, limit=MAX_EVENTS)
