"""The chain of gathered files, and races between the processes that write and commit it."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opal_lake import layout
from opal_lake.storage.forwarding import ForwardingStore
from opal_lake.storage.memory import MemoryStorage
from opal_lake.storage.protocol import StoredObject
from opal_lake.table import Table, create_on, table_on
from opal_stream.errors import TakenOverError
from opal_stream.flush.buffer import Buffer, FlushLimits
from opal_stream.flush.committer import Committer, CommitterOptions
from opal_stream.flush.publisher import Publisher
from opal_stream.formats.decoder import Decoder
from opal_stream.gathered.backlog import Gate
from opal_stream.gathered.file import Header
from opal_stream.gathered.folder import chain_from
from opal_stream.kafka.applications import Application
from opal_stream.kafka.consumed import Consumed
from opal_stream.kafka.topics import Partition
from opal_stream.operations.reading import FormatOptions
from tests.kit.check import check_table
from tests.opal_stream.orders import batch, ends, gather, new_spec, order

PARTITION = Partition(topic="orders", number=3)
APPLICATION = Application(stream="main", partition=PARTITION, topic_id="id")
FIRST, MESSAGES = 100, 30  # as `batch` counts


def header(low: int, high: int, *, first: bool = False) -> Header:
    return Header(
        table_id="t",
        application=APPLICATION,
        writer="w",
        consumed=Consumed(low=low, high=high),
        first=first,
    )


@pytest.mark.parametrize(
    "ranges, position, chain, loose",
    [
        ([], 5, [], []),
        ([(5, 7), (7, 9)], 5, [(5, 7), (7, 9)], []),
        ([(3, 5), (5, 7), (8, 9)], 5, [(5, 7)], [(8, 9)]),
        ([(4, 6), (6, 8)], 5, [], [(6, 8)]),
        ([(5, 9), (6, 8), (9, 10)], 5, [(5, 9), (9, 10)], []),
        ([(0, 2), (2, 3)], None, [(0, 2), (2, 3)], []),
        ([(1, 2), (2, 3)], None, [], [(1, 2), (2, 3)]),
    ],
)
def test_a_chain_is_followed_from_the_position(
    ranges: Any, position: int | None, chain: Any, loose: Any
) -> None:
    actual = chain_from(position, [header(low, high, first=low == 0) for low, high in ranges])
    assert [(entry.low, entry.high) for entry in actual.files] == chain
    assert [(entry.low, entry.high) for entry in actual.loose] == loose


class Interrupted(ForwardingStore):
    """A store that runs something once after a listing, or before a put or a delete."""

    def __init__(self, inner: MemoryStorage) -> None:
        self.inner = inner
        self.between: dict[str, Callable[[], None]] = {}

    def list(self, prefix: str, start_after: str = "") -> Iterator[StoredObject]:
        actual = [*self.inner.list(prefix, start_after)]
        self._come_between("list", prefix)
        return iter(actual)

    def put_if_absent(self, path: str, data: bytes | memoryview) -> bool:
        self._come_between("put", path)
        return self.inner.put_if_absent(path, data)

    def delete(self, paths: Any) -> None:
        for path in paths:
            self._come_between("delete", path)
            self.inner.delete([path])

    def _come_between(self, what: str, path: str) -> None:
        if path.startswith(layout.GATHERED) and (event := self.between.pop(what, None)) is not None:
            event()


class KilledError(Exception):
    """kill -9."""


@dataclass(slots=True)
class Process:
    """One that reads the partition, from where it finds the table to stand."""

    table: Table
    decoder: Decoder = field(default_factory=lambda: Decoder(new_spec(), FormatOptions()))
    publisher: Publisher | None = None
    next: int = FIRST

    def flush(self, count: int) -> None:
        if self.publisher is None:
            publisher = Publisher(
                gate=Gate(self.table.storage, "main", 0, ""),
                table=self.table,
                applications={PARTITION: APPLICATION},
                give_up_s=5,
            )
            position = publisher.read_positions().get(str(APPLICATION))
            publisher.positions[PARTITION] = position
            self.publisher, self.next = publisher, FIRST if position is None else position
        until = min(self.next + count, FIRST + MESSAGES)
        if until > self.next:
            messages = batch([order(n % 7, n, name=f"n{n}") for n in range(MESSAGES)]).slice(
                self.next - FIRST, until - FIRST
            )
            buffer = Buffer(limits=FlushLimits())
            buffer.add(messages, self.decoder.decode(messages), 0)
            self.publisher.flush(buffer, lambda: None, lambda: None)
            self.next = until


class World:
    """Two processes for one partition, and committers."""

    def __init__(self) -> None:
        self.store = Interrupted(MemoryStorage())
        create_on(self.store.inner, new_spec())
        self.processes = [Process(table_on(self.store)) for _ in range(2)]
        self.committers = [self._committer() for _ in range(2)]
        self.busy: set[tuple[str, int]] = set()

    def _committer(self) -> Committer:
        return Committer(table_on(self.store), CommitterOptions())

    def act(self, what: str, who: int, count: int) -> None:
        """Run a step of a process, unless this one is in a step already."""
        name = ("process" if what in ("flush", "restart") else "committer", who)
        if name in self.busy:
            return
        self.busy.add(name)
        try:
            if what == "flush":
                self.processes[who].flush(count)
            elif what == "restart":
                self.processes[who] = Process(table_on(self.store))
            elif what == "commit":
                self.committers[who]._turn()
            elif what == "die":
                self.store.between["delete"] = _die
                self.committers[who]._turn()
        except TakenOverError:
            self.processes[who] = Process(table_on(self.store))
        except KilledError:
            self.committers[who] = self._committer()
        finally:
            self.busy.remove(name)

    def finish(self) -> Table:
        self.store.between.clear()
        table, process = table_on(self.store), Process(table_on(self.store))
        for _ in range(10 * MESSAGES):
            try:
                process.flush(1)
            except TakenOverError:
                process = Process(table_on(self.store))
            if process.next == FIRST + MESSAGES:
                break
        gather(table)
        return table


def _die() -> None:
    raise KilledError


ACTS = st.tuples(
    st.sampled_from(["flush", "flush", "commit", "die", "restart"]),
    st.integers(0, 1),
    st.integers(1, 6),
)
STEPS = st.lists(
    st.tuples(
        ACTS, st.one_of(st.none(), st.tuples(st.sampled_from(["list", "put", "delete"]), ACTS))
    ),
    max_size=14,
)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(STEPS)
def test_each_message_is_once_in_the_table_whatever_comes_between(steps: Any) -> None:
    world = World()
    for act, meanwhile in steps:
        if meanwhile is not None:
            moment, other = meanwhile
            world.store.between[moment] = lambda other=other: world.act(*other)
        world.act(*act)
    table = world.finish()
    assert (ends(table), table.snapshot_at().root.rows) == ([FIRST + MESSAGES], MESSAGES)
    newest = {n % 7: f"n{n}" for n in range(MESSAGES)}
    assert {
        row["id"]: row["name"] for row in table.read(columns=["id", "name"]).to_pylist()
    } == newest
    assert [*world.store.inner.list(layout.GATHERED)] == []
    assert check_table(table) == []
