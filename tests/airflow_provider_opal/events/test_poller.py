"""The poller: one look a poll for all waiters, which miss no event."""

import asyncio
import random
from collections.abc import Callable
from time import sleep
from typing import Any

import pytest

from airflow_provider_opal.events.interest import interests_of
from airflow_provider_opal.events.poller import poller_of, wait_for_all
from lakechime import AccessError, InvalidEventError, LakeChime, UnavailableError
from tests.airflow_provider_opal.chime import chime, event, put

__all__ = ["chime"]

CONN = "lakechime_default"


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the requests of the poller."""
    asked: list[str] = []
    for name in ("find", "tail"):
        monkeypatch.setattr(LakeChime, name, _noted(getattr(LakeChime, name), name, asked))
    return asked


def _noted(original: Callable[..., Any], name: str, asked: list[str]) -> Callable[..., Any]:
    def call(*arguments: Any) -> Any:
        asked.append(name)
        return original(*arguments)

    return call


def waiter(number: int, after: int = 0, interval_s: float = 0.2) -> "asyncio.Task[int]":
    [interest] = interests_of([("default", f"shop.t{number}")], after=after)
    return asyncio.ensure_future(poller_of(CONN).wait(interest, interval_s))


def test_a_thousand_that_wait_cost_one_query_a_poll(chime: LakeChime, calls: list[str]) -> None:
    async def wait() -> None:
        waiting = [waiter(number, interval_s=0.05) for number in range(1000)]
        await polled(2)
        calls.clear()
        polls = poller_of(CONN).polls
        await polled(5)
        assert set(calls) == {"tail"}
        assert len(calls) - (poller_of(CONN).polls - polls) in (0, 1), (
            "one a poll, and that of a poll that has just begun"
        )
        seqs = [put(chime, event(f"shop.t{number}")) for number in range(0, 1000, 100)]
        await polled(2)
        assert sorted(task.result() for task in waiting if task.done()) == seqs
        for task in waiting:
            task.cancel()

    asyncio.run(wait())


async def polled(times: int) -> None:
    """Wait until so many polls have begun and ended."""
    last = poller_of(CONN).polls + times + 1
    while poller_of(CONN).polls < last:
        await asyncio.sleep(0.01)


def test_a_late_or_returning_waiter_finds_earlier_events(chime: LakeChime) -> None:
    """Wait again as after the death of a triggerer, from `after`."""

    async def wait() -> list[int]:
        first = waiter(1)
        await asyncio.sleep(0.3)
        put(chime, event("shop.t2"), event("shop.t3"))
        return [
            await asyncio.wait_for(waiter(2), 10),
            await asyncio.wait_for(waiter(3, after=1), 10),
            first.cancel(),
        ]

    assert asyncio.run(wait()) == [1, 2, True]


def test_no_waiter_misses_an_event_when_waiters_come_and_go(chime: LakeChime) -> None:
    drawn = random.Random(7)

    async def follow(number: int) -> list[int]:
        """Wait as a sensor does run after run, each from where the last one was."""
        seen: list[int] = []
        while len(seen) < 10:
            [interest] = interests_of(
                [("default", f"shop.t{number}")], after=seen[-1] if seen else 0
            )
            seen.append(await poller_of(CONN).wait(interest, 0.02))
            await asyncio.sleep(drawn.random() * 0.02)
        return seen

    async def write() -> dict[int, list[int]]:
        seqs: dict[int, list[int]] = {number: [] for number in range(8)}
        order = [number for number in seqs for _ in range(10)]
        drawn.shuffle(order)
        for number in order:
            made = event(f"shop.t{number}", snapshot=len(seqs[number]) + 1)
            seqs[number].append(await asyncio.to_thread(put, chime, made))
        return seqs

    async def both() -> tuple[list[list[int]], dict[int, list[int]]]:
        writing = asyncio.ensure_future(write())
        followed = await asyncio.wait_for(
            asyncio.gather(*(follow(number) for number in range(8))), 120
        )
        return followed, await writing

    followed, seqs = asyncio.run(both())
    assert followed == list(seqs.values())


def test_the_poller_asks_nothing_once_all_waiters_are_cancelled(
    chime: LakeChime, calls: list[str]
) -> None:
    async def wait() -> None:
        waiting = [waiter(number, interval_s=0.05) for number in range(3)]
        await asyncio.sleep(0.5)
        assert calls
        for task in waiting:
            task.cancel()
        await asyncio.sleep(0.5)
        calls.clear()
        await asyncio.sleep(0.5)

    asyncio.run(wait())
    assert calls == []


def test_a_waiter_that_comes_while_the_last_one_leaves_is_answered(
    chime: LakeChime, monkeypatch: pytest.MonkeyPatch
) -> None:
    close = LakeChime.close
    monkeypatch.setattr(LakeChime, "close", lambda self: (sleep(0.5), close(self)))
    put(chime, event("shop.t1"), event("shop.t2"))

    async def wait() -> list[int]:
        first = await asyncio.wait_for(waiter(1), 10)
        await asyncio.sleep(0.2)
        return [first, await asyncio.wait_for(waiter(2), 10)]

    assert asyncio.run(wait()) == [1, 2]


def test_waiters_outlast_an_unavailable_database_and_fail_if_access_is_refused(
    chime: LakeChime, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures: list[Exception] = [UnavailableError("the database restarts")] * 2
    find = LakeChime.find

    def away(self: LakeChime, interests: Any) -> Any:
        if failures:
            raise failures.pop()
        return find(self, interests)

    monkeypatch.setattr(LakeChime, "find", away)

    async def wait() -> int:
        poller_of(CONN).longest_pause_s = 0.1
        waiting = waiter(1)
        await asyncio.sleep(0.2)
        put(chime, event("shop.t1"))
        return await asyncio.wait_for(waiting, 20)

    assert asyncio.run(wait()) == 1
    failures.append(AccessError("the token was revoked"))

    async def refused() -> None:
        await asyncio.wait_for(waiter(1), 20)

    with pytest.raises(AccessError, match="was revoked"):
        asyncio.run(refused())


def test_all_of_some_tables_are_waited_for(chime: LakeChime) -> None:
    async def wait() -> int:
        interests = interests_of([("default", "shop.t1"), ("default", "shop.t2")], mode="all")
        waiting = asyncio.ensure_future(wait_for_all(CONN, interests, 0.05))
        put(chime, event("shop.t1"))
        await asyncio.sleep(0.5)
        assert not waiting.done()
        put(chime, event("shop.t2"))
        return await asyncio.wait_for(waiting, 10)

    assert asyncio.run(wait()) == 2


def test_an_invalid_interest_fails_its_own_waiter_and_the_other_waiters_are_answered(
    chime: LakeChime,
) -> None:
    async def wait() -> list[Any]:
        waiting = waiter(1, interval_s=0.05)
        await polled(1)
        [wrong] = interests_of([("default", "")])
        together = [
            waiter(2, interval_s=0.05),
            asyncio.ensure_future(poller_of(CONN).wait(wrong, 0.05)),
            waiter(3, interval_s=0.05),
        ]
        with pytest.raises(InvalidEventError, match="table"):
            await asyncio.wait_for(together.pop(1), 10)
        put(chime, event("shop.t1"), event("shop.t3"), event("shop.t2"))
        return list(await asyncio.wait_for(asyncio.gather(waiting, *together), 10))

    assert asyncio.run(wait()) == [1, 3, 2]


def tagged(after: int = 0) -> "asyncio.Task[int]":
    [interest] = interests_of([("default", "shop.t1")], after=after, tags={"done": "yes"})
    return asyncio.ensure_future(poller_of(CONN).wait(interest, 0.05))


def lose(client: LakeChime, number: int) -> None:
    """Let an event expire that a tagged waiter waits for, and one of another table."""
    put(
        client,
        event("shop.t1", snapshot=number, tags={"done": "yes"}),
        event("shop.t1", snapshot=number + 1),
    )
    client.expire(2**50, keep_unseen=False)


def test_a_waiter_fails_if_its_events_expired_before_a_look(
    chime: LakeChime, monkeypatch: pytest.MonkeyPatch
) -> None:
    tail = LakeChime.tail
    losing: list[int] = []

    def slow(self: LakeChime, *arguments: int) -> Any:
        while losing:
            lose(chime, losing.pop())
        return tail(self, *arguments)

    monkeypatch.setattr(LakeChime, "tail", slow)

    async def wait() -> bool:
        waiting, other = tagged(), waiter(2, interval_s=0.05)
        await polled(1)
        losing.append(1)
        with pytest.raises(
            RuntimeError,
            match=r"events after 0 up to 1 of .*shop.t1.* expired before .*Read the tables",
        ):
            await asyncio.wait_for(waiting, 10)
        return other.cancel()

    assert asyncio.run(wait()), "whose table lost nothing waits on"


def test_a_returning_waiter_fails_if_its_events_expired(chime: LakeChime) -> None:
    """Come back as a triggerer does; new consumers begin with what is left."""
    lose(chime, 1)
    lose(chime, 3)

    async def wait() -> None:
        fresh = tagged()
        with pytest.raises(RuntimeError, match="events after 1 up to 3 of"):
            await asyncio.wait_for(tagged(after=1), 10)
        assert not fresh.done()
        fresh.cancel()

    asyncio.run(wait())


def test_a_waiter_for_an_expired_partition_fails(chime: LakeChime) -> None:
    """Wait for an expired partition, and for another one of the table."""
    put(chime, event("shop.t1", partition=("a",)), event("shop.t1", 2, partition=("b",)))
    chime.expire(1 << 60)

    async def wait() -> None:
        gone, coming = (
            interests_of([("default", "shop.t1")], partition=[name])[0] for name in ("a", "c")
        )
        waiting = asyncio.ensure_future(poller_of(CONN).wait(coming, 0.1))
        for asked in (poller_of(CONN).wait(gone, 0.1), poller_of(CONN).look(gone)):
            with pytest.raises(RuntimeError, match=r'up to 1 of partition \["a"\] of .* expired'):
                await asyncio.wait_for(asked, 10)
        assert await asyncio.wait_for(poller_of(CONN).look(coming), 10) is None
        assert not waiting.done()
        seq = put(chime, event("shop.t1", 3, partition=("c",)))
        assert await asyncio.wait_for(waiting, 10) == seq

    asyncio.run(wait())
