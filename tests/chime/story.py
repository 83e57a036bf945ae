"""The story: processes are killed and started again, and then judged."""

import random
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count, pairwise
from multiprocessing import get_context
from multiprocessing.context import ForkServerContext, ForkServerProcess
from typing import Any

from lakechime import LakeChime, Registered, UnavailableError
from tests.chime.site import Site, digest_of
from tests.chime.worker import PROGRESS, Consumer, consume, pass_up_to, produce, producer_name

WITNESS = "witness"  # the story itself: it remembers every event, and nothing expires before that
ALL_AGES_MS = 2**50


def processes() -> ForkServerContext:
    """Return a context whose processes are forked from one that loaded all and opened nothing."""
    context = get_context("forkserver")
    context.set_forkserver_preload(["tests.chime.worker", "psycopg2", "lakechime.store.sql_store"])
    return context


def consumers_of(site: Site, many: int) -> list[Consumer]:
    """Return as many consumers; the last two processes are the same one."""
    kinds = [
        Consumer(name="everything"),
        Consumer(name="some tables", tables=site.names[: max(1, site.tables // 2)], by_find=True),
        Consumer(name="even ones", tables=site.names, tags=(("kind", "even"),)),
        Consumer(name="even ones", tables=site.names, tags=(("kind", "even"),)),
    ]
    return (
        kinds[:many]
        if many < len(kinds)
        else kinds + [Consumer(name=f"beside {number}") for number in range(many - len(kinds))]
    )


@dataclass(slots=True, kw_only=True)
class Verdict:
    """The outcome of a story."""

    events: int = 0
    kills: dict[str, int] = field(default_factory=lambda: {"producer": 0, "consumer": 0})
    restarts: int = 0
    expired: int = 0
    seconds: float = 0.0
    repeated: int = 0  # events that a consumer saw more than once, because it was killed
    failures: list[str] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class Story:
    """`restart`: what restarts the database, once, in the middle."""

    site: Site
    producers: int
    consumers: int
    dice: random.Random
    pause_seconds: float
    deadline_seconds: float
    restart: Callable[[], None] | None = None
    verdict: Verdict = field(default_factory=Verdict)
    _running: dict[tuple[str, int], ForkServerProcess] = field(default_factory=dict)
    _number: Iterator[int] = field(default_factory=count)
    _events: list[Registered] = field(default_factory=list)

    def tell(self) -> Verdict:
        began = time.monotonic()
        context = processes()
        with LakeChime.open(self.site.url) as client:
            for name in (WITNESS, *self._names()):
                pass_up_to(client, name, 0)
        roles = [("producer", number) for number in range(self.producers)] + [
            ("consumer", number) for number in range(self.consumers)
        ]
        for role in roles:
            self._start(context, role)
        try:
            while not self._is_done() and time.monotonic() - began < self.deadline_seconds:
                time.sleep(self.dice.random() * 2 * self.pause_seconds)
                self._kill_one(context)
                self._expire()
                if self.restart is not None and self._registered() > self.site.events // 2:
                    self.restart()
                    self.restart = None
                    self.verdict.restarts += 1
        finally:
            for process in self._running.values():
                process.kill()
                process.join()
        self.verdict.seconds = time.monotonic() - began
        self._judge()
        return self.verdict

    def _start(self, context: ForkServerContext, role: tuple[str, int]) -> None:
        kind, number = role
        seed = f"{self.dice.random()}-{next(self._number)}"
        target, given = (
            (produce, number)
            if kind == "producer"
            else (consume, consumers_of(self.site, self.consumers)[number])
        )
        process = context.Process(target=target, args=(self.site, given, seed), daemon=True)
        process.start()
        self._running[role] = process

    def _kill_one(self, context: ForkServerContext) -> None:
        """Kill a process, and start again those that ended too early."""
        alive = [role for role, process in self._running.items() if process.is_alive()]
        for role, process in list(self._running.items()):
            if not process.is_alive() and not (role[0] == "producer" and process.exitcode == 0):
                self.verdict.failures.append(f"{role[0]} {role[1]} ended with {process.exitcode}")
                self._start(context, role)
        if alive:
            role = self.dice.choice(alive)
            self._running[role].kill()
            self._running[role].join()
            self.verdict.kills[role[0]] += 1
            self._start(context, role)

    def _names(self) -> list[str]:
        consumers = {consumer.name for consumer in consumers_of(self.site, self.consumers)}
        return [*consumers, *map(producer_name, range(self.producers))]

    def _expire(self) -> None:
        """All that everybody has passed; a database that is busy is left alone."""
        with suppress(UnavailableError), LakeChime.open(self.site.url) as client:
            self._witness(client)
            self.verdict.expired += client.expire(ALL_AGES_MS)

    def _witness(self, client: LakeChime) -> None:
        after = (self._events[-1].event.seq or 0) if self._events else 0
        while (page := client.tail(after, limit=10_000)).events:
            self._events += page.events
            after = page.next_after
        pass_up_to(client, WITNESS, after)

    def _registered(self) -> int:
        with LakeChime.open(self.site.url) as client:
            return client.head()

    def _is_done(self) -> bool:
        with LakeChime.open(self.site.url) as client:
            head = client.head()
            if head < self.site.events:
                return False
            marks = [
                client.watermark(consumer.name, PROGRESS)
                for consumer in consumers_of(self.site, self.consumers)
            ]
            return (
                all(
                    isinstance(mark.value, dict) and mark.value["seq"] == head
                    for mark in marks
                    if mark is not None
                )
                and None not in marks
            )

    def _judge(self) -> None:
        with LakeChime.open(self.site.url) as client:
            self._witness(client)
            events = self._events
            self.verdict.events = len(events)
            self._judge_order(events)
            for consumer in {
                consumer.name: consumer for consumer in consumers_of(self.site, self.consumers)
            }.values():
                mark = client.watermark(consumer.name, PROGRESS)
                self._judge_consumer(consumer, events, {} if mark is None else mark.value)

    def _judge_order(self, events: list[Registered]) -> None:
        """Judge that snapshots come once and in order, without gaps, and times never fall."""
        wanted = [str(number) for number in range(1, self.site.snapshots + 1)]
        for table in self.site.names:
            if [
                entry.event.snapshot_id for entry in events if entry.event.table == table
            ] != wanted:
                self.verdict.failures.append(f"{table} has other snapshots, or in another order")
        gaps = [entry for entry in events if entry.gap]
        if gaps:
            self.verdict.failures.append(f"{len(gaps)} events are called gaps")
        if not all(
            (entry.event.event_ts or 0) <= (other.event.event_ts or 0)
            for entry, other in pairwise(events)
        ):
            self.verdict.failures.append("event_ts falls")

    def _judge_consumer(self, consumer: Consumer, events: list[Registered], mark: Any) -> None:
        meant = [
            entry.event
            for entry in events
            if (not consumer.tables or entry.event.table in consumer.tables)
            and dict(consumer.tags).items() <= entry.event.tags.items()
        ]
        if not mark or (mark["count"], mark["digest"]) != (len(meant), digest_of("", meant)):
            processed = mark and mark["count"]
            self.verdict.failures.append(
                f"consumer {consumer.name} processed {processed} events of {len(meant)}, "
                "or in another order"
            )
        lines = [
            line
            for path in self.site.folder.glob(f"{consumer.name}-*")
            for line in path.read_text().split("\n")[:-1]
        ]
        seen = set(lines)
        self.verdict.repeated += len(lines) - len(seen)
        missed = {f"{event.seq} {event.table} {event.snapshot_id}" for event in meant} - seen
        if missed:
            self.verdict.failures.append(
                f"consumer {consumer.name} never saw {len(missed)} events, as {min(missed)}"
            )
