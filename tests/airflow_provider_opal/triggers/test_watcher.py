"""The event trigger of an AssetWatcher, whose watermark waits for Airflow."""

import asyncio
import json
from typing import Any

import pytest
from airflow.sdk import Asset, AssetWatcher
from airflow.sdk.exceptions import AirflowFailException
from airflow.triggers.base import BaseEventTrigger
from airflow.triggers.shared_stream import AdvanceItem, AdvanceOutcome

from airflow_provider_opal import LakeChimeTrigger
from airflow_provider_opal.triggers.watcher import EventStream
from lakechime import LakeChime
from tests.airflow_provider_opal.chime import chime, event, put

__all__ = ["chime"]


def trigger(**more: Any) -> LakeChimeTrigger:
    made = LakeChimeTrigger(
        **{"tables": ["shop.raw"], "consumer": "c", "poke_interval_s": 0.05, **more}
    )
    return LakeChimeTrigger(**json.loads(json.dumps(made.serialize()[1])))


def seen(client: LakeChime) -> Any:
    watermark = client.watermark("c", "events")
    return None if watermark is None else watermark.value


def item(seq: int, **outcome: int) -> AdvanceItem:
    return AdvanceItem(
        broker_payload=seq, outcome=AdvanceOutcome(**{"acked": 1, "failed": 0, **outcome})
    )


def test_airflow_takes_it_for_a_watcher_and_knows_it_again() -> None:
    asset = Asset("a", watchers=[AssetWatcher(name="w", trigger=trigger())])
    assert asset.watchers[0].trigger.shared_stream_key() == trigger().shared_stream_key()
    assert trigger(tables=["shop.other"]).shared_stream_key() != trigger().shared_stream_key()
    assert trigger(tags={"done": "yes"}).shared_stream_key() != trigger().shared_stream_key()
    path, arguments = trigger().serialize()
    assert BaseEventTrigger.hash(path, arguments) == BaseEventTrigger.hash(*trigger().serialize())


def test_the_watermark_moves_when_the_event_is_stored_and_what_was_not_comes_again(
    chime: LakeChime,
) -> None:
    put(chime, event(snapshot=1))

    async def first() -> tuple[Any, int]:
        stream = LakeChimeTrigger.create_shared_stream_producer(trigger().serialize()[1])
        events = stream.open_stream()
        next_event = asyncio.ensure_future(anext(events))
        # A new consumer begins at the newest event: those below come after its start
        while seen(chime) != 1:
            await asyncio.sleep(0.05)
        put(chime, event(snapshot=2), event("shop.other"), event(snapshot=3))
        payload, seq = await asyncio.wait_for(next_event, 10)
        with pytest.raises(RuntimeError, match="did not store the event"):
            await stream.advance([item(seq, failed=1, acked=0)])
        return payload, seq

    payload, seq = asyncio.run(first())
    assert (
        [stored["snapshot_id"] for stored in payload["events"]],
        payload["from"],
        seen(chime),
    ) == (
        ["2", "3"],
        1,
        1,
    )

    async def again() -> Any:
        stream = LakeChimeTrigger.create_shared_stream_producer(trigger().serialize()[1])
        got, where = await asyncio.wait_for(anext(stream.open_stream()), 10)
        await stream.advance([item(where)])
        return got

    assert asyncio.run(again()) == payload
    assert seen(chime) == seq == 4


def test_alone_it_counts_an_event_as_stored_when_the_next_one_is_asked_for(
    chime: LakeChime,
) -> None:
    chime.put_watermark("c", "events", 0, expected=None)
    put(chime, event(snapshot=1))

    async def run() -> list[Any]:
        events = trigger().run()
        first = await asyncio.wait_for(anext(events), 10)
        before = seen(chime)
        put(chime, event(snapshot=2))
        second = await asyncio.wait_for(anext(events), 10)
        return [
            before,
            seen(chime),
            *(stored.payload["events"][0]["snapshot_id"] for stored in (first, second)),
        ]

    assert asyncio.run(run()) == [0, 1, "1", "2"]


def test_the_stream_fails_if_events_expired_before_airflow_stored_them(chime: LakeChime) -> None:
    put(chime, *(event(snapshot=number) for number in range(1, 5)))
    chime.put_watermark("c", "events", 1, expected=None)
    chime.expire(2**50, keep_unseen=False)

    async def run() -> None:
        await asyncio.wait_for(anext(trigger().run()), 10)

    with pytest.raises(
        AirflowFailException,
        match="has seen events up to 1, and retention has deleted events up to 3",
    ):
        asyncio.run(run())
    assert seen(chime) == 1


def test_a_watcher_of_quiet_tables_does_not_hold_back_retention(chime: LakeChime) -> None:
    chime.put_watermark("c", "events", 0, expected=None)

    async def run() -> Any:
        events = EventStream(trigger(), longest_quiet_s=0.2).open_stream()
        first = asyncio.ensure_future(anext(events))
        put(chime, *(event("shop.busy", snapshot=number) for number in range(1, 6)))
        await asyncio.sleep(1)
        moved = seen(chime)
        put(chime, event(snapshot=1))
        payload, _ = await asyncio.wait_for(first, 10)
        return moved, payload["to"], seen(chime)

    assert asyncio.run(run()) == (5, 6, 5)


@pytest.mark.parametrize("start, first", [("all", 1), (2, 3), ("head", 4)])
def test_a_new_watcher_begins_at_its_start_and_an_old_one_where_it_was(
    chime: LakeChime, start: Any, first: int
) -> None:
    put(chime, *(event(snapshot=number) for number in range(1, 4)))

    async def run(**more: Any) -> Any:
        events = trigger(**more).run()
        got = asyncio.ensure_future(anext(events))
        while seen(chime) is None:
            await asyncio.sleep(0.02)
        put(chime, event(snapshot=4))
        return (await asyncio.wait_for(got, 10)).payload["events"][0]["snapshot_id"]

    assert asyncio.run(run(start=start)) == str(first)
    assert asyncio.run(run(start="all" if start == "head" else "head")) == str(first), (
        "nothing was stored yet"
    )
    with pytest.raises(ValueError, match="use 'head', 'all' or the number"):
        trigger(start="tail")
