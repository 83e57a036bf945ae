"""Positions of applications: each record is applied once.

It does not matter which writer writes, dies or is late; a fenced writer learns by whom.
"""

import os
import pickle
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from opal_lake import layout
from opal_lake.clock import ManualClock
from opal_lake.definition.positions import Advance
from opal_lake.errors import (
    CommitUnknownError,
    FencedError,
    InvalidInputError,
    StorageError,
)
from opal_lake.log import commit as commits
from opal_lake.log.checkpoint import read_checkpoint
from opal_lake.storage.forwarding import ForwardingStore
from opal_lake.storage.memory import MemoryStorage
from opal_lake.storage.protocol import Storage
from opal_lake.table import Table, table_on
from tests.kit.check import check_table
from tests.kit.failing_store import Crash
from tests.kit.ids import CountingIds
from tests.opal_lake.shop import Row, content, create, reopen, rows

RACES = int(os.environ.get("OPAL_HISTORIES", "32"))
HOUR_US = 3_600_000_000
APPLICATIONS = ("orders/0", "orders/1", "returns/0")


@pytest.fixture
def storage() -> MemoryStorage:
    return MemoryStorage()


@pytest.fixture
def table(storage: MemoryStorage) -> Table:
    return create(storage, checkpoint_commits=3)


def record(application: str, offset: int) -> Row:
    return f"{application}#{offset}", offset, 1


def take(
    table: Table, *, token: str | None = None, metadata: str = "inline", **ends: tuple[int, int]
) -> int | None:
    """Yield the records of a range of each application, and the position after it."""
    positions = {name: Advance(start=start, end=end) for name, (start, end) in ends.items()}
    batch = [
        record(name, offset) for name, (start, end) in ends.items() for offset in range(start, end)
    ]
    return table.ingest(*rows(batch), metadata=metadata, token=token, positions=positions).version


def test_a_commit_moves_several_applications_and_the_table_shows_their_positions(
    table: Table,
) -> None:
    assert table.position("a") is None
    assert take(table, a=(0, 3), b=(0, 2)) == 1
    assert take(table, b=(2, 4)) == 2
    assert (table.position("a"), table.position("b"), table.position("c")) == (3, 4, None)
    assert table.snapshot_at(1).positions == {"a": 3, "b": 2}
    assert table.log.read_commit(1).positions == {
        "a": Advance(start=0, end=3),
        "b": Advance(start=0, end=2),
    }


def test_rows_may_come_as_batches_and_positions_without_rows_commit(table: Table) -> None:
    batch, _ = rows([record("a", 0)])
    assert (
        table.ingest(
            iter(batch.to_batches()),
            [False],
            metadata="inline",
            positions={"a": Advance(start=0, end=1)},
        ).version
        == 1
    )
    assert (
        table.ingest(iter(()), metadata="inline", positions={"a": Advance(start=1, end=5)}).version
        == 2
    )
    assert (table.position("a"), table.snapshot_at().root.rows) == (5, 1)


@pytest.mark.parametrize("metadata", ["batch", "inline"])
def test_error_of_a_fenced_writer_names_the_position_and_the_other_writer(
    table: Table, storage: MemoryStorage, metadata: str
) -> None:
    take(table, a=(0, 3))
    rival = reopen(storage, "rival")
    take(rival, a=(3, 5))
    files = len(list(storage.list("data/")))
    with pytest.raises(
        FencedError,
        match=r"'a' is at position 5, not at 3: version 2, write rival.*, of job 2, took it there",
    ) as raised:
        take(table, metadata=metadata, a=(3, 4), b=(0, 1))
    error = raised.value
    assert (error.application, error.expected, error.position) == ("a", 3, 5)
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.application, again.expected, again.position) == (
        str(error),
        "a",
        3,
        5,
    )
    assert (table.position("b"), table.snapshot_at().version) == (None, 2)
    assert len(list(storage.list("data/"))) == files  # refused before any work


def test_the_writer_is_named_from_the_log_behind_a_checkpoint(table: Table) -> None:
    take(table, a=(0, 3))
    for key in range(7):
        table.ingest(*rows([(f"k{key}", 1, 1)]), metadata="inline")
    with pytest.raises(FencedError, match="version 1, write "):
        take(table, a=(0, 3))


def test_an_application_begins_at_a_later_position_only_if_requested(table: Table) -> None:
    batch = rows([record("a", 100)])
    with pytest.raises(
        FencedError,
        match=r"'a' is at position 0, not at 100: no readable version says more.*pass first=True",
    ):
        table.ingest(*batch, metadata="inline", positions={"a": Advance(start=100, end=101)})
    table.ingest(
        *batch, metadata="inline", positions={"a": Advance(start=100, end=101, first=True)}
    )
    with pytest.raises(FencedError, match="'a' is at position 101, not at 100"):
        table.ingest(
            *batch, metadata="inline", positions={"a": Advance(start=100, end=101, first=True)}
        )


def test_a_batch_number_is_the_position_of_its_application(table: Table) -> None:
    table.ingest(*rows([record("q", 0)]), metadata="inline", application=("q", 6))
    assert table.position("q") == 7
    take(table, q=(7, 9))
    assert table.ingest(*rows([record("q", 0)]), metadata="inline", application=("q", 8)).repeated
    assert not table.ingest(
        *rows([record("q", 9)]), metadata="inline", application=("q", 9)
    ).repeated


@pytest.mark.parametrize(
    "positions, said",
    [
        (lambda: {"": Advance(start=0, end=1)}, "is not the name of an application"),
        (lambda: {"x" * 1025: Advance(start=0, end=1)}, "is not the name of an application"),
        (lambda: {"a": Advance(start=5, end=4)}, "back=True"),
        (lambda: {"a": Advance(start=-1, end=4)}, "counted from 0"),
        (lambda: {"a": Advance(start=0, end=1 << 63)}, "below 2"),
        (lambda: {"s": Advance(start=0, end=1)}, "a sequence and a position"),
    ],
)
def test_invalid_positions_are_refused(
    table: Table, positions: Callable[[], dict[str, Advance]], said: str
) -> None:
    with pytest.raises(InvalidInputError, match=said):
        table.ingest(
            *rows([record("a", 0)]), metadata="inline", application=("s", 0), positions=positions()
        )
    assert table.snapshot_at().version == 0


def test_positions_with_a_commit_for_each_business_snapshot_are_refused(table: Table) -> None:
    with pytest.raises(InvalidInputError, match="business_snapshot_column makes several"):
        table.ingest(
            *rows([record("a", 0)]),
            business_snapshot_column="sku",
            positions={"a": Advance(start=0, end=1)},
        )


def test_a_retry_by_token_is_not_fenced(table: Table) -> None:
    assert take(table, token="t", a=(0, 3)) == 1
    assert take(table, token="t", a=(0, 3)) == 1
    assert (table.snapshot_at().root.rows, table.position("a")) == (3, 3)


def test_a_restore_does_not_move_positions(table: Table) -> None:
    take(table, a=(0, 3))
    take(table, a=(3, 5), b=(0, 2))
    table.restore(version=1)
    assert (table.position("a"), table.position("b")) == (5, 2)
    with pytest.raises(FencedError):
        take(table, a=(3, 5))
    back = {"a": Advance(start=5, end=3, back=True), "b": Advance(start=2, end=0, back=True)}
    table.ingest(iter(()), metadata="inline", positions=back)
    assert (table.position("a"), table.position("b")) == (3, None)
    take(table, a=(3, 5), b=(0, 2))
    assert content(table) == sorted(
        record(name, offset) for name, end in (("a", 5), ("b", 2)) for offset in range(end)
    )
    assert check_table(table) == []


def test_positions_survive_checkpoints_and_retention(storage: MemoryStorage) -> None:
    clock = ManualClock(at_us=2_000_000_000_000_000)
    table = table_on(create(storage, checkpoint_commits=3).storage, clock, CountingIds(prefix="w"))
    take(table, a=(0, 3), b=(0, 1))
    for offset in range(3, 15):
        clock.at_us += HOUR_US
        take(table, a=(offset, offset + 1))
    clock.at_us += HOUR_US
    table.retain(window="1h", grace="1h")
    first = min(layout.commit_version(entry.path) or 0 for entry in storage.list(layout.LOG))
    assert first > 1  # the commit that says where b stands is gone
    checkpoint = read_checkpoint(storage, None)
    assert checkpoint is not None
    assert checkpoint.positions["b"] == 1
    later = reopen(storage, "later")
    assert (later.position("a"), later.position("b")) == (15, 1)
    with pytest.raises(
        FencedError, match="'b' is at position 1, not at 0: no readable version says more"
    ):
        take(later, b=(0, 1))


def test_a_check_finds_a_position_that_does_not_follow_on(
    table: Table, storage: MemoryStorage
) -> None:
    take(table, a=(0, 3))
    take(table, a=(3, 5))
    path = layout.commit_path(2)
    body = commits.unseal(storage.get(path), path) | {"positions": {"a": [1, 5]}}
    storage.delete([path])
    storage.put_if_absent(path, commits.seal(commits.canonical_json(body)))
    assert [
        (finding.invariant, finding.path)
        for finding in check_table(reopen(storage))
        if finding.invariant == "I28"
    ] == [("I28", path)]


# --- races ---


@dataclass(slots=True)
class Trouble:
    """The events at the next put of a commit."""

    kind: str = "none"
    before: Callable[[], None] | None = None


class Troubled(ForwardingStore):
    """Something happens at the put of a commit.

    Somebody else comes first, the process dies before or after it, or its answer is lost.
    """

    def __init__(self, inner: Storage, trouble: Trouble) -> None:
        self.inner, self.trouble, self._silent = inner, trouble, 0

    def get(self, path: str, start: int = 0, length: int | None = None) -> bytes:
        self._answer()
        return self.inner.get(path, start, length)

    def put_if_absent(self, path: str, data: bytes | memoryview) -> bool:
        self._answer()
        if not path.startswith(layout.LOG):
            return self.inner.put_if_absent(path, data)
        kind, before = self.trouble.kind, self.trouble.before
        self.trouble.kind, self.trouble.before = "none", None
        if before is not None:
            before()
        if kind == "dies before":
            raise Crash(path)
        done = self.inner.put_if_absent(path, data) if kind != "is not done" else False
        if kind == "dies after":
            raise Crash(path)
        if kind in ("has no answer", "is not done"):
            self._silent = 7  # this put, and what is tried behind it
            self._answer()
        return done

    def _answer(self) -> None:
        if self._silent:
            self._silent -= 1
            raise StorageError("no answer, as asked")


@dataclass(slots=True)
class Writer:
    """A process that reads on from where it thinks the applications stand."""

    storage: Storage
    names: count  # type: ignore[type-arg]  # of numbers
    trouble: Trouble = field(default_factory=Trouble)
    known: dict[str, int] = field(default_factory=dict)
    table: Table = field(init=False)
    fenced: int = 0

    def __post_init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Read the state after a restart, or after a fence."""
        self.table = table_on(
            Troubled(self.storage, self.trouble),
            ManualClock(),
            CountingIds(prefix=f"w{next(self.names)}-"),
        )
        self.known = {name: self.table.position(name) or 0 for name in APPLICATIONS}

    def write(self, lengths: dict[str, int], metadata: str, *, has_token: bool) -> None:
        token = f"t{next(self.names)}" if has_token else None
        positions = {
            name: Advance(start=self.known[name], end=self.known[name] + length)
            for name, length in lengths.items()
        }
        batch = [
            record(name, offset)
            for name, advance in positions.items()
            for offset in range(advance.start, advance.end)
        ]
        for _ in range(2):
            try:
                self.table.ingest(*rows(batch), metadata=metadata, token=token, positions=positions)
            except CommitUnknownError:
                # The same once more: by token it is known, without one it may fence itself
                continue
            except FencedError:
                self.fenced += 1
                self.begin()
            except Crash:
                self.begin()
            else:
                self.known |= {name: advance.end for name, advance in positions.items()}
            return
        raise AssertionError("a store that answers leaves nothing unknown")


_KINDS = st.sampled_from(
    ["none", "none", "dies before", "dies after", "has no answer", "is not done"]
)
_LENGTHS = st.dictionaries(st.sampled_from(APPLICATIONS), st.integers(0, 4), min_size=1)
_STEP = st.tuples(
    _KINDS,
    _LENGTHS,
    st.one_of(st.none(), _LENGTHS),
    st.sampled_from(["inline", "batch"]),
    st.booleans(),
)


@settings(max_examples=RACES, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(st.tuples(st.integers(0, 1), _STEP), min_size=1, max_size=12))
def test_two_writers_of_the_same_applications_ingest_each_record_once(
    steps: list[tuple[int, tuple[object, ...]]],
) -> None:
    """Writers race, die around the put, get no answer and try again.

    Each believes that it is the only one.
    """
    storage, names = MemoryStorage(), count()
    create(storage, checkpoint_commits=2, key_store_fan_in=2)
    writers = [Writer(storage, names), Writer(storage, names)]
    for number, (kind, lengths, rivals, metadata, has_token) in steps:
        writer, rival = writers[number], writers[1 - number]
        assert isinstance(metadata, str)
        writer.trouble.kind = str(kind)
        writer.trouble.before = (
            None
            if rivals is None
            else lambda r=rival, own=rivals: r.write(own, "inline", has_token=False)
        )  # type: ignore[misc]
        writer.write(lengths, metadata, has_token=bool(has_token))  # type: ignore[arg-type]  # drawn
        writer.trouble.kind, writer.trouble.before = "none", None
        compare(reopen(storage, "reader"))
    table = reopen(storage, "last")
    table.metagen()
    compare(table)
    positions = table.snapshot_at().positions
    assert content(table) == sorted(
        record(name, offset) for name, end in positions.items() for offset in range(end)
    )
    assert check_table(table) == []


def compare(table: Table) -> None:
    """Positions are what the commits record, one after the other.

    The table has as many rows as there are records below them.
    """
    stands = dict.fromkeys(APPLICATIONS, 0)
    for version in range(1, table.snapshot_at().version + 1):
        for name, advance in table.log.read_commit(version).positions.items():
            assert advance.start == stands[name], f"version {version}"
            stands[name] = advance.end
    head = table.snapshot_at()
    assert head.positions == {name: end for name, end in stands.items() if end}
    assert head.root.rows == sum(stands.values())
    assert isinstance(head.files, dict)


def test_rows_of_a_batch_are_deletes_by_the_condition(table: Table) -> None:
    """Batches are rows as any others."""
    batch, _ = rows([record("a", 0)])
    assert isinstance(batch, pa.Table)
    result = table.ingest(batch.to_batches(), positions={"a": Advance(start=0, end=1)})
    assert result.counts["rows"] == 1
