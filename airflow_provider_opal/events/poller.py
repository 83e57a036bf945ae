"""The poller, which looks at LakeChime once a poll for all waiters of this process.

A triggerer runs a thousand triggers in one event loop. If each asked for its own events, that would
be a thousand queries a poll. So all triggers of a connection wait for one poller. One query
(`find`) answers all new waiters, each from its own seq. After that, one query a poll (`tail`) reads
the new events of all tables, and the poller matches them with the waiters. It stores nothing: the
triggers of a triggerer that starts again know the seq `after` which they wait.
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
# A triggerer starts its triggers one by one: those within this time are answered together
GATHER_S = 0.1
PAGE = 1000


@dataclass(eq=False, slots=True, kw_only=True)
class Waiter:
    """A wait for the first event after `interest.after`.

    Its answer is the seq of that event. A waiter with `stays=False` gets None at the first look
    if no such event exists.
    """

    interest: "Interest"
    interval_s: float
    stays: bool
    partition: str | None
    answer: "asyncio.Future[int | None]"

    def wants(self, event: "DataChangeEvent", partition: str | None) -> bool:
        """Return whether an event of one of the waiter's tables matches."""
        interest = self.interest
        if event.seq is None or event.seq <= interest.after:
            return False
        if self.partition is not None and self.partition != partition:
            return False
        return all(event.tags.get(name) == value for name, value in interest.tags.items())

    @property
    def waits_for_partition(self) -> bool:
        """True if any event of a partition is enough.

        If the event has expired, no other one may follow.
        """
        return self.partition is not None and not self.interest.tags

    def answer_with(self, seq: int | None) -> None:
        if not self.answer.done():
            self.answer.set_result(seq)

    def fail(self, error: Exception) -> None:
        if not self.answer.done():
            self.answer.set_exception(error)


@dataclass(slots=True, kw_only=True)
class Poller:
    """The poller of one connection. It runs as long as there are waiters."""

    conn_id: str
    longest_pause_s: float = LONGEST_PAUSE_S
    polls: int = 0
    _new: list[Waiter] = field(default_factory=list)
    _waiting: dict[tuple[str, str], list[Waiter]] = field(default_factory=dict)
    _cursor: int = 0
    _wake: asyncio.Event = field(default_factory=asyncio.Event)
    _task: "asyncio.Task[None] | None" = None

    async def wait(self, interest: "Interest", interval_s: float) -> int:
        """Return the seq of the first event that matches, once it is registered."""
        seq = await self._answer(interest, interval_s, stays=True)
        assert seq is not None
        return seq

    async def look(self, interest: "Interest") -> int | None:
        """Return the seq of the first event that matches now, or None."""
        return await self._answer(interest, self.longest_pause_s, stays=False)

    async def _answer(self, interest: "Interest", interval_s: float, *, stays: bool) -> int | None:
        from lakechime.event import partition_text

        partition = None if interest.partition is None else partition_text(interest.partition)
        future: asyncio.Future[int | None] = asyncio.get_running_loop().create_future()
        waiter = Waiter(
            interest=interest,
            interval_s=interval_s,
            stays=stays,
            partition=partition,
            answer=future,
        )
        self._new.append(waiter)
        self._wake.set()
        if self._task is None:
            # In an empty context: otherwise its log would go to the task whose trigger came first
            self._task = asyncio.create_task(
                self._run(), name=f"LakeChime {self.conn_id}", context=contextvars.Context()
            )
        # A trigger that is cancelled cancels it, and the next poll forgets it
        return await future

    async def _run(self) -> None:
        """Poll until no waiter is left; a permanent error fails all waiters."""
        client: LakeChime | None = None
        failures = 0
        try:
            while self._has_waiters():
                try:
                    if client is None:
                        client = await asyncio.to_thread(LakeChimeHook(self.conn_id).get_conn)
                    await self._poll(client)
                    failures = 0
                except Exception as error:  # noqa: BLE001  # the waiters have to get it
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
            # A waiter that comes while the client is being closed needs another task
            self._task = None
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
        """Look for the events of the new waiters; let the unanswered ones wait."""
        new = list(self._new)
        answers = await self._first_seqs(client, new)
        if not self._waiting:
            # With earlier waiters the cursor stays: they may see an event twice, but miss none
            self._cursor = answers.head
        # More waiters may have come during the query
        self._new = self._new[len(new) :]
        for waiter, seq in zip(new, answers.seqs, strict=True):
            self._answer_or_keep(waiter, seq)
        try:
            await self._fail_behind(client, new, answers.head)
        finally:
            for waiter in new:
                if not waiter.stays:
                    waiter.answer_with(None)

    async def _fail_behind(self, client: "LakeChime", new: Sequence[Waiter], head: int) -> None:
        """Fail new waiters whose events expired before they looked."""
        behind = []
        for waiter in new:
            # A waiter from the beginning misses nothing, unless it waits for a partition, whose
            # expired event may have been the only one
            can_miss = waiter.interest.after > 0 or waiter.waits_for_partition
            if can_miss and not waiter.answer.done():
                behind.append((waiter, waiter.interest.after))
        if behind:
            page = await asyncio.to_thread(client.tail, head, 1)
            await self._fail_expired(client, behind, page.expired)

    async def _first_seqs(self, client: "LakeChime", new: Sequence[Waiter]) -> "Found":
        """Return the first matching seq of each new waiter, by one query.

        If LakeChime refuses the query, each waiter gets its own, so that only an invalid one fails.
        """
        from lakechime import Found, InvalidEventError

        with suppress(InvalidEventError):
            return await asyncio.to_thread(client.find, [waiter.interest for waiter in new])
        seqs: list[int | None] = []
        heads: list[int] = []
        for waiter in new:
            try:
                answer = await asyncio.to_thread(client.find, [waiter.interest])
            except InvalidEventError as error:
                waiter.fail(error)
                seqs.append(None)
            else:
                seqs.append(answer.seqs[0])
                heads.append(answer.head)
        return Found(seqs=tuple(seqs), head=min(heads, default=0))

    async def _read_on(self, client: "LakeChime") -> None:
        """Read the new events of all tables, and answer the waiters that they match."""
        start = self._cursor
        expired = 0
        has_more = True
        while has_more and self._waiting:
            page = await asyncio.to_thread(client.tail, self._cursor, PAGE)
            for registered in page.events:
                self._match(registered.event)
            expired = max(expired, page.expired)
            self._cursor = page.next_after
            has_more = page.more
            self._forget()
        seen = [(waiter, max(start, waiter.interest.after)) for waiter in self._waiters()]
        await self._fail_expired(client, seen, expired)

    def _match(self, event: "DataChangeEvent") -> None:
        from lakechime.event import partition_text

        waiting = self._waiting.get((event.cluster, event.table))
        if not waiting:
            return
        partition = None if event.partition is None else partition_text(event.partition)
        for waiter in waiting:
            if waiter.wants(event, partition):
                waiter.answer_with(event.seq)

    async def _fail_expired(
        self, client: "LakeChime", waiters: Sequence[tuple[Waiter, int]], expired: int
    ) -> None:
        """Fail waiters whose tables lost events before these were matched.

        `waiters` holds pairs of a waiter and the seq up to which its events were matched.
        """
        lost: dict[tuple[tuple[TableName, ...], str | None], int] = {}
        for waiter, seen in waiters:
            if expired <= seen or waiter.answer.done():
                continue
            tables = waiter.interest.tables
            key = (tables, waiter.partition)
            if key not in lost:
                # Only the page's `expired` is of interest
                query = partial(
                    client.events,
                    tables,
                    after=seen,
                    until=seen,
                    partition=waiter.interest.partition,
                    limit=1,
                )
                page = await asyncio.to_thread(query)
                lost[key] = page.expired
            if lost[key] > seen:
                names = ", ".join(str(table) for table in tables)
                if waiter.partition is not None:
                    names = f"partition {waiter.partition} of {names}"
                error = RuntimeError(
                    f"events after {seen} up to {lost[key]} of {names} expired before anything "
                    "looked at them. Read the tables as a whole, and keep events for longer than "
                    "a consumer may be paused"
                )
                waiter.fail(error)

    def _answer_or_keep(self, waiter: Waiter, seq: int | None) -> None:
        """Answer a waiter, or let it wait for the events of its tables.

        The caller answers a waiter that does not stay and has no answer yet.
        """
        if seq is not None:
            waiter.answer_with(seq)
        if not waiter.stays or waiter.answer.done():
            return
        for table in waiter.interest.tables:
            assert not isinstance(table, str)
            self._waiting.setdefault(table, []).append(waiter)

    def _forget(self) -> None:
        """Forget waiters that were answered, and those whose trigger was cancelled."""
        self._new = _unanswered(self._new)
        waiting = {}
        for table, waiters in self._waiting.items():
            if unanswered := _unanswered(waiters):
                waiting[table] = unanswered
        self._waiting = waiting

    def _has_waiters(self) -> bool:
        self._forget()
        return bool(self._new or self._waiting)

    def _waiters(self) -> list[Waiter]:
        """Return the waiting waiters, each once even if it waits for several tables."""
        by_id: dict[int, Waiter] = {}
        for waiters in self._waiting.values():
            for waiter in waiters:
                by_id[id(waiter)] = waiter
        return list(by_id.values())

    def _all_waiters(self) -> Iterator[Waiter]:
        yield from self._new
        yield from self._waiters()

    def _fail(self, error: Exception) -> None:
        for waiter in self._all_waiters():
            waiter.fail(error)

    async def _pause(self, failures: int) -> None:
        """Sleep for the shortest interval of the waiters, or until a new one comes."""
        shortest = min((waiter.interval_s for waiter in self._all_waiters()), default=0.0)
        if failures:
            pause_s = doubled_pause_s(failures, max(shortest, 1.0), self.longest_pause_s)
            await asyncio.sleep(pause_s)
            return
        with suppress(TimeoutError):
            await asyncio.wait_for(self._wake.wait(), shortest)


def _unanswered(waiters: Sequence[Waiter]) -> list[Waiter]:
    return [waiter for waiter in waiters if not waiter.answer.done()]


def _may_pass(error: Exception) -> bool:
    """Return whether a later poll may succeed after an error."""
    from lakechime import UnavailableError

    return isinstance(error, UnavailableError | OSError)


_pollers: "WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, Poller]]" = WeakKeyDictionary()


def poller_of(conn_id: str) -> Poller:
    """Return the poller of a connection in this event loop; a triggerer has one loop."""
    pollers = _pollers.setdefault(asyncio.get_running_loop(), {})
    return pollers.setdefault(conn_id, Poller(conn_id=conn_id))


async def wait_for_all(conn_id: str, interests: Sequence["Interest"], interval_s: float) -> int:
    """Wait until each of the interests has an event; return the seq of the last one."""
    poller = poller_of(conn_id)
    waits = [asyncio.ensure_future(poller.wait(interest, interval_s)) for interest in interests]
    try:
        return max(await asyncio.gather(*waits))
    finally:
        # When one fails, the others would go on waiting
        for wait in waits:
            wait.cancel()
