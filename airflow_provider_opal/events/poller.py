"""One look at LakeChime a poll for all that wait in this process, however many they are.

A triggerer runs a thousand triggers in one event loop. If each asked for its own events, that would be a thousand queries a poll; so all
triggers of a connection wait for one poller. Those who are new are answered by one query for all who are new (`find`), each from where it
has got to. After that one query a poll reads what came for anybody (`tail`), and events are matched here. Nothing is kept but who waits: a
triggerer that is killed and started again finds by `after` what came meanwhile.
"""

import asyncio
import contextvars
import logging
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from airflow_provider_opal.hooks.lakechime import LakeChimeHook
from opal_lake.clock import doubled_pause_s

if TYPE_CHECKING:
    from lakechime import DataChangeEvent, Found, Interest, LakeChime
    from lakechime.answers import TableName

log = logging.getLogger(__name__)

LONGEST_PAUSE_S = 60.0
GATHER_S = 0.1  # a triggerer starts its triggers one by one: those that come together are answered together
PAGE = 1000


@dataclass(eq=False, slots=True, kw_only=True)
class Waiter:
    """Waits for the first event after `interest.after`; if it does not stay, for an answer right away."""

    interest: "Interest"
    interval_s: float
    stays: bool
    partition: str | None
    answer: "asyncio.Future[int | None]"

    def wants(self, event: "DataChangeEvent", partition: str | None) -> bool:
        """Whether the event, of a table that it waits for, is of interest."""
        interest = self.interest
        is_new = event.seq is not None and event.seq > interest.after
        is_there = self.partition is None or self.partition == partition
        return (
            is_new
            and is_there
            and all(event.tags.get(name) == value for name, value in interest.tags.items())
        )

    @property
    def waits_for_partition(self) -> bool:
        """Whether any event of a partition is enough: if one expired, no other may come."""
        return self.partition is not None and not self.interest.tags

    def tell(self, seq: int | None) -> None:
        if not self.answer.done():
            self.answer.set_result(seq)

    def fail(self, error: Exception) -> None:
        if not self.answer.done():
            self.answer.set_exception(error)


@dataclass(slots=True, kw_only=True)
class Poller:
    """All that wait on one connection. It runs as long as somebody waits."""

    conn_id: str
    polls: int = 0
    _new: list[Waiter] = field(default_factory=list)
    _waiting: dict[tuple[str, str], list[Waiter]] = field(default_factory=dict)
    _cursor: int = 0
    _wake: asyncio.Event = field(default_factory=asyncio.Event)
    _task: "asyncio.Task[None] | None" = None

    async def wait(self, interest: "Interest", interval_s: float) -> int:
        """The place of the first event that is of interest."""
        seq = await self._answer(interest, interval_s, stays=True)
        assert seq is not None
        return seq

    async def look(self, interest: "Interest") -> int | None:
        """The same without waiting for one."""
        return await self._answer(interest, LONGEST_PAUSE_S, stays=False)

    async def _answer(self, interest: "Interest", interval_s: float, *, stays: bool) -> int | None:
        from lakechime.event import partition_text

        partition = None if interest.partition is None else partition_text(interest.partition)
        future: asyncio.Future[int | None] = asyncio.get_running_loop().create_future()
        self._new.append(
            Waiter(
                interest=interest,
                interval_s=interval_s,
                stays=stays,
                partition=partition,
                answer=future,
            )
        )
        self._wake.set()
        if self._task is None:
            # With no context of its own, or all that it logs would go to the log of the task whose trigger came first
            self._task = asyncio.create_task(
                self._run(), name=f"LakeChime {self.conn_id}", context=contextvars.Context()
            )
        return await future  # a trigger that is cancelled cancels it, and the next poll forgets it

    async def _run(self) -> None:
        """Until nobody waits. Of an error that no waiting mends all who wait are told."""
        client: LakeChime | None = None
        failures = 0
        try:
            while self._somebody():
                try:
                    if client is None:
                        client = await asyncio.to_thread(LakeChimeHook(self.conn_id).get_conn)
                    await self._poll(client)
                    failures = 0
                except Exception as error:  # noqa: BLE001  # whoever waits has to hear of it
                    if not _may_pass(error):
                        self._fail(error)
                        continue
                    failures += 1
                    log.log(
                        logging.WARNING if failures == 1 else logging.DEBUG,
                        "LakeChime %s is away: %s",
                        self.conn_id,
                        error,
                    )
                await self._pause(failures)
        finally:
            self._task = None  # whoever comes while the client is being closed needs another one
            if client is not None:
                await asyncio.to_thread(client.close)

    async def _poll(self, client: "LakeChime") -> None:
        self._wake.clear()
        if self._waiting:
            await self._read_on(client)
        if self._new:
            await asyncio.sleep(GATHER_S)
            await self._find(client)
        self.polls += 1

    async def _find(self, client: "LakeChime") -> None:
        asking = list(self._new)
        found = await self._asked(client, asking)
        if not self._waiting:
            self._cursor = found.head  # else what is known of the others stays: they may see an event twice, and never miss one
        self._new = self._new[len(asking) :]
        for waiter, seq in zip(asking, found.seqs, strict=True):
            self._take(waiter, seq)
        try:
            await self._fail_behind(client, asking, found.head)
        finally:
            for waiter in asking:
                if not waiter.stays:
                    waiter.tell(None)

    async def _fail_behind(self, client: "LakeChime", asking: Sequence[Waiter], head: int) -> None:
        """Those who are new, and for whom something expired before they looked."""
        # To one who begins with whatever there is nothing is missing; but a partition that was there comes no more
        behind = [
            (waiter, waiter.interest.after)
            for waiter in asking
            if (waiter.interest.after > 0 or waiter.waits_for_partition)
            and not waiter.answer.done()
        ]
        if behind:
            page = await asyncio.to_thread(client.tail, head, 1)
            await self._fail_expired(client, behind, page.expired)

    async def _asked(self, client: "LakeChime", asking: Sequence[Waiter]) -> "Found":
        """By one query; or, if that is refused, one by one, so that only who asks what cannot be asked is told so."""
        from lakechime import Found, InvalidEventError

        with suppress(InvalidEventError):
            return await asyncio.to_thread(client.find, [waiter.interest for waiter in asking])
        answers: list[Found | None] = []
        for waiter in asking:
            try:
                answers.append(await asyncio.to_thread(client.find, [waiter.interest]))
            except InvalidEventError as error:
                waiter.fail(error)
                answers.append(None)
        seqs = tuple(None if answer is None else answer.seqs[0] for answer in answers)
        return Found(
            seqs=seqs,
            head=min((answer.head for answer in answers if answer is not None), default=0),
        )

    async def _read_on(self, client: "LakeChime") -> None:
        from lakechime.event import partition_text

        begun, expired, more = self._cursor, 0, True
        while more and self._waiting:
            page = await asyncio.to_thread(client.tail, self._cursor, PAGE)
            for registered in page.events:
                event = registered.event
                waiting = self._waiting.get((event.cluster, event.table), ())
                partition = (
                    None
                    if event.partition is None or not waiting
                    else partition_text(event.partition)
                )
                for waiter in waiting:
                    if waiter.wants(event, partition):
                        waiter.tell(event.seq)
            expired, self._cursor, more = max(expired, page.expired), page.next_after, page.more
            self._forget()
        await self._fail_expired(
            client,
            [(waiter, max(begun, waiter.interest.after)) for waiter in self._waiters()],
            expired,
        )

    async def _fail_expired(
        self, client: "LakeChime", waiters: Sequence[tuple[Waiter, int]], expired: int
    ) -> None:
        """Those whose tables have lost events that nobody matched with what they wait for: each with the place up to which it was."""
        lost: dict[tuple[tuple[TableName, ...], str | None], int] = {}
        for waiter, seen in waiters:
            if expired <= seen or waiter.answer.done():
                continue
            tables = waiter.interest.tables
            meant = (tables, waiter.partition)
            if meant not in lost:
                page = await asyncio.to_thread(
                    partial(
                        client.events,
                        tables,
                        after=seen,
                        until=seen,
                        partition=waiter.interest.partition,
                        limit=1,
                    )
                )  # what expired alone
                lost[meant] = page.expired
            if lost[meant] > seen:
                of_partition = (
                    "" if waiter.partition is None else f"partition {waiter.partition} of "
                )
                names = ", ".join(str(table) for table in tables)
                waiter.fail(
                    RuntimeError(
                        f"events after {seen} up to {lost[meant]} of {of_partition}{names} have expired before they were looked at. "
                        "Read the tables whole, and keep events for longer than anybody waits"
                    )
                )

    def _take(self, waiter: Waiter, seq: int | None) -> None:
        """An answer, or a place among those who wait. Who does not stay is answered last."""
        if seq is not None:
            waiter.tell(seq)
        if not waiter.stays or waiter.answer.done():
            return
        for table in waiter.interest.tables:
            assert not isinstance(table, str)
            self._waiting.setdefault(table, []).append(waiter)

    def _forget(self) -> None:
        """Those who were answered, and those whose trigger was cancelled."""
        self._new = [waiter for waiter in self._new if not waiter.answer.done()]
        left = {
            table: [waiter for waiter in waiting if not waiter.answer.done()]
            for table, waiting in self._waiting.items()
        }
        self._waiting = {table: waiting for table, waiting in left.items() if waiting}

    def _somebody(self) -> bool:
        self._forget()
        return bool(self._new or self._waiting)

    def _waiters(self) -> list[Waiter]:
        """Each once, though it waits for several tables."""
        return list(
            {
                id(waiter): waiter for waiting in self._waiting.values() for waiter in waiting
            }.values()
        )

    def _everybody(self) -> Iterator[Waiter]:
        yield from self._new
        yield from self._waiters()

    def _fail(self, error: Exception) -> None:
        for waiter in self._everybody():
            waiter.fail(error)

    async def _pause(self, failures: int) -> None:
        """As long as the most impatient one wants, or until somebody new comes."""
        shortest = min((waiter.interval_s for waiter in self._everybody()), default=0.0)
        if failures:
            await asyncio.sleep(doubled_pause_s(failures, max(shortest, 1.0), LONGEST_PAUSE_S))
            return
        with suppress(TimeoutError):
            await asyncio.wait_for(self._wake.wait(), shortest)


def _may_pass(error: Exception) -> bool:
    """Whether it may be better at the next poll: a database that is away, a service that restarts."""
    from lakechime import UnavailableError

    return isinstance(error, UnavailableError | OSError)


_pollers: "WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, Poller]]" = WeakKeyDictionary()


def poller_of(conn_id: str) -> Poller:
    """The one of this event loop, of which a triggerer has one."""
    return _pollers.setdefault(asyncio.get_running_loop(), {}).setdefault(
        conn_id, Poller(conn_id=conn_id)
    )


async def wait_for_all(conn_id: str, interests: Sequence["Interest"], interval_s: float) -> int:
    """Wait until each of the interests has an event; the place of the last one."""
    poller = poller_of(conn_id)
    waiting = [asyncio.ensure_future(poller.wait(interest, interval_s)) for interest in interests]
    try:
        return max(await asyncio.gather(*waiting))
    finally:
        for one in waiting:
            one.cancel()  # of several that fail together, none stays behind
