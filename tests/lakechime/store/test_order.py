"""The order of events, which no registration and no open transaction changes."""

import contextlib
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import Connection, Engine, create_engine, insert, text

from lakechime import EventsBetween, Interest, InvalidEventError, LakeChime
from lakechime.store.queries import first_seq_statement
from lakechime.store.register import register_in
from lakechime.store.rows import row_of
from lakechime.store.schema import inbox
from lakechime.store.sequencer import LOCK
from lakechime.tags import OTHER_PARTITION
from tests.fixtures_lakechime import wait_until
from tests.lakechime.build import TABLE, made

PRODUCERS = 3


@pytest.fixture
def postgres_chime(new_postgres: Callable[[], str]) -> Iterator[tuple[LakeChime, Engine]]:
    url = new_postgres()
    engine = create_engine(url, pool_size=PRODUCERS + 2)
    with LakeChime.open(url) as client:
        yield client, engine
    engine.dispose()


@pytest.mark.postgres
def test_an_event_appears_when_its_transaction_commits_and_not_before(
    postgres_chime: tuple[LakeChime, Engine],
) -> None:
    chime, engine = postgres_chime
    with engine.connect() as late, late.begin() as transaction:
        register_in(late, [made(1, table="late")])
        (quick,) = chime.register([made(1)])
        assert chime.head() == quick.event.seq
        page = chime.tail(0)
        assert [entry.event.table for entry in page.events] == [quick.event.table]
        transaction.commit()
    after = chime.tail(page.next_after)
    assert [entry.event.table for entry in after.events] == ["late"]
    assert (after.events[0].event.seq or 0) > (quick.event.seq or 0)
    assert (after.events[0].event.event_ts or 0) >= (quick.event.event_ts or 0)


@pytest.mark.postgres
def test_a_transaction_that_is_undone_leaves_nothing(
    postgres_chime: tuple[LakeChime, Engine],
) -> None:
    chime, engine = postgres_chime
    with engine.connect() as connection, connection.begin() as transaction:
        register_in(connection, [made(1)])
        transaction.rollback()
    assert chime.tail(0).events == ()
    (given,) = chime.register([made(1)])
    assert not given.duplicate


@pytest.mark.postgres
def test_the_same_event_from_two_transactions_is_one(
    postgres_chime: tuple[LakeChime, Engine],
) -> None:
    """Let neither of two transactions wait for the other."""
    chime, engine = postgres_chime
    with (
        engine.connect() as first,
        engine.connect() as second,
        first.begin() as first_transaction,
        second.begin() as two,
    ):
        register_in(first, [made(1, tags={"by": "first"})])
        register_in(second, [made(1, tags={"by": "second"})])
        two.commit()
        assert [entry.event.tags["by"] for entry in chime.tail(0).events] == ["second"]
        first_transaction.commit()
    assert [entry.event.tags["by"] for entry in chime.tail(0).events] == ["second"]
    assert chime.register([made(1)])[0].duplicate


@pytest.mark.postgres
def test_waiting_events_are_compared_with_events_before_those_expire(
    postgres_chime: tuple[LakeChime, Engine],
) -> None:
    chime, engine = postgres_chime
    chime.register([made(1), made(2)])
    with engine.begin() as connection:
        register_in(connection, [made(1)])
    assert chime.expire(1 << 60, keep_unseen=False) == 1
    assert [entry.event.snapshot_id for entry in chime.tail(0).events] == [made(2).snapshot_id]


@pytest.mark.postgres
def test_a_partition_of_a_wrong_depth_leaves_the_producers_transaction_whole(
    postgres_chime: tuple[LakeChime, Engine],
) -> None:
    chime, engine = postgres_chime
    chime.register([made(1, partition=("a",))])
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE of_the_producer (n integer)"))
        with pytest.raises(InvalidEventError, match="levels"):
            register_in(connection, [made(2, partition=("a", "b"))])
        connection.execute(text("INSERT INTO of_the_producer VALUES (1)"))
    with engine.connect() as connection:
        assert connection.execute(text("SELECT n FROM of_the_producer")).scalars().all() == [1]


def test_sqlite_takes_a_producers_own_transaction_too(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/lakechime.db"
    with LakeChime.open(url) as chime:
        engine = create_engine(url)
        with engine.begin() as connection:
            register_in(connection, [made(1, partition=("a",), tags={"x": "1"}), made(2)])
            assert chime.head() == 0
        assert [entry.event.snapshot_id for entry in chime.events(tags={"x": "1"}).events] == ["1"]
        assert [answer.duplicate for answer in chime.register([made(2), made(3)])] == [True, False]
        engine.dispose()


@dataclass
class Story:
    """Producers with transactions of their own, and readers with watermarks."""

    chime: LakeChime
    engine: Engine
    name: str
    open: dict[int, Connection] = field(default_factory=dict)
    pending: dict[int, list[str]] = field(default_factory=dict)
    committed: set[str] = field(default_factory=set)
    snapshots: int = 0
    watermarks: dict[str, int] = field(default_factory=lambda: {"all": 0, "mine": 0, "found": 0})
    seen: dict[str, list[str]] = field(default_factory=lambda: {"all": [], "mine": [], "found": []})
    times: list[int] = field(default_factory=list)

    def act(self, verb: str, producer: int) -> None:
        getattr(self, verb)(producer)

    def _next(self) -> str:
        self.snapshots += 1
        return str(self.snapshots)

    def hold(self, producer: int) -> None:
        """Register within a transaction that stays open."""
        if producer not in self.open:
            self.open[producer] = self.engine.connect()
            self.pending[producer] = []
        number = self._next()
        register_in(
            self.open[producer], [made(int(number), table=self.name, tags={"kind": "held"})]
        )
        self.pending[producer].append(number)

    def commit(self, producer: int) -> None:
        self._end(producer, commit=True)

    def undo(self, producer: int) -> None:
        self._end(producer, commit=False)

    def _end(self, producer: int, *, commit: bool) -> None:
        if producer in self.open:
            connection = self.open.pop(producer)
            with contextlib.closing(connection):
                (connection.commit if commit else connection.rollback)()
            self.committed |= set(self.pending.pop(producer)) if commit else set()

    def register(self, _producer: int) -> None:
        number = self._next()
        self.chime.register([made(int(number), table=self.name)])
        self.committed.add(number)

    def read(self, _producer: int) -> None:
        page = self.chime.tail(self.watermarks["all"], limit=2)
        new = [entry for entry in page.events if entry.event.table == self.name]
        self.seen["all"] += [entry.event.snapshot_id or "" for entry in new]
        self.times += [entry.event.event_ts or 0 for entry in new]
        self.watermarks["all"] = page.next_after

    def read_mine(self, _producer: int) -> None:
        page = self.chime.events([self.name], after=self.watermarks["mine"])
        self.seen["mine"] += [entry.event.snapshot_id or "" for entry in page.events]
        self.watermarks["mine"] = page.next_after

    def read_found(self, _producer: int) -> None:
        """Find as a sensor does: where nothing is found the watermark moves to the head."""
        answer = self.chime.find([Interest(tables=(self.name,), after=self.watermarks["found"])])
        if answer.seqs[0] is None:
            self.watermarks["found"] = max(self.watermarks["found"], answer.head)
            return
        page = self.chime.events([self.name], after=self.watermarks["found"], until=answer.seqs[0])
        self.seen["found"] += [entry.event.snapshot_id or "" for entry in page.events]
        self.watermarks["found"] = answer.seqs[0]

    def finish(self) -> None:
        for producer in list(self.open):
            self.undo(producer)
        for _ in range(self.snapshots + 1):
            for read in (self.read, self.read_mine, self.read_found):
                read(0)


VERBS = ("hold", "commit", "undo", "register", "read", "read_mine", "read_found")


@pytest.mark.postgres
def test_no_watermark_is_ever_overtaken(postgres_chime: tuple[LakeChime, Engine]) -> None:
    chime, engine = postgres_chime
    count = 0

    @settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
    @given(st.lists(st.tuples(st.sampled_from(VERBS), st.integers(0, PRODUCERS - 1)), max_size=30))
    def tell(acts: list[tuple[str, int]]) -> None:
        nonlocal count
        count += 1
        head = chime.head()
        story = Story(
            chime=chime,
            engine=engine,
            name=f"t{count}",
            watermarks={"all": head, "mine": 0, "found": 0},
        )
        try:
            for verb, producer in acts:
                story.act(verb, producer)
        finally:
            story.finish()
        for seen in story.seen.values():
            assert len(seen) == len(set(seen))
            assert set(seen) == story.committed
        assert all(earlier <= later for earlier, later in pairwise(story.times))

    tell()


def wait_for_waiting(engine: Engine, number: int) -> None:
    """Wait until so many processes wait for a lock."""
    waiting = text("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted")
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        wait_until(lambda: connection.execute(waiting).scalar_one() == number)


@pytest.mark.postgres
def test_of_two_first_partitions_of_other_levels_one_gets_in(
    postgres_chime: tuple[LakeChime, Engine],
) -> None:
    """Let both see a table without partitions, and wait for the lock."""
    chime, engine = postgres_chime

    def register(partition: tuple[str, ...]) -> bool:
        try:
            chime.register([made(len(partition), partition=partition)])
        except InvalidEventError:
            return False
        return True

    with engine.connect() as holder, ThreadPoolExecutor(2) as pool:
        holder.execute(text(f"SELECT pg_advisory_xact_lock({LOCK})"))
        done = [pool.submit(register, partition) for partition in (("a",), ("a", "b"))]
        wait_for_waiting(engine, 2)
        holder.rollback()
        assert sorted(future.result() for future in done) == [False, True]
    assert len(chime.events().events) == 1


@pytest.mark.postgres
def test_a_first_partition_of_other_levels_in_a_long_transaction_is_kept_as_a_tag(
    postgres_chime: tuple[LakeChime, Engine],
) -> None:
    chime, engine = postgres_chime
    with engine.connect() as late, late.begin() as transaction:
        register_in(
            late, [made(2, partition=("a", 1), tags={"x": "1"}), made(3, partition=("b", 2))]
        )
        chime.register([made(1, partition=("a",))])
        transaction.commit()
    second = chime.events(tags={"x": "1"}).events[0].event
    assert second.partition is None
    assert dict(second.tags) == {"x": "1", OTHER_PARTITION: '["a",1]'}
    assert chime.events(tags={OTHER_PARTITION: '["b",2]'}).events[0].event.snapshot_id == "3"


@pytest.mark.postgres
def test_a_range_that_is_final_is_read_while_somebody_gives_places(
    postgres_chime: tuple[LakeChime, Engine],
) -> None:
    chime, engine = postgres_chime
    (given,) = chime.register([made(1)])
    now = given.event.event_ts or 0
    time.sleep(0.01)
    first = chime.events_between(TABLE, 0, now + 5)
    ahead = chime.events_between(TABLE, 0, now + 3_600_000)
    with engine.connect() as holder:
        holder.execute(text(f"SELECT pg_advisory_xact_lock({LOCK})"))
        assert chime.events_between(TABLE, 0, now + 5) == first
        assert chime.events_between(TABLE, 0, now) == EventsBetween(
            events=(), covered_from_ts=0, covered_until_ts=now
        )
        assert chime.events_between(TABLE, 0, now + 3_600_000).events == ahead.events
        holder.rollback()


@pytest.mark.postgres
def test_a_range_of_times_is_found_in_an_index(postgres_chime: tuple[LakeChime, Engine]) -> None:
    chime, engine = postgres_chime
    chime.register([made(number) for number in range(1, 2_000)])
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text("VACUUM ANALYZE lakechime_events"))
        query = first_seq_statement(1).compile(engine, compile_kwargs={"literal_binds": True})
        plan = connection.execute(text(f"EXPLAIN {query!s}"))
        assert "Index Only Scan using lakechime_events_by_time" in "\n".join(plan.scalars())


def _poison(url: str, **changed: Any) -> None:
    """Write an event into the inbox as another program may have done."""
    row = {**row_of(made(7, table="poisoned", partition=("a",), tags={"x": "1"})), **changed}
    engine = create_engine(url)
    with engine.begin() as connection:
        connection.execute(insert(inbox), row)
    engine.dispose()


@pytest.mark.parametrize(
    "changed",
    [
        {"name": "\u6f22" * 512},
        {"table_format": "PARQUET"},
        {"operation_type": "MERGE"},
        {"partition": "no JSON"},
        {"tags": "no JSON"},
        {"tags": '{"x": 1}'},
        {"tags": r'{"x": "\ud800"}'},
        {"depth": 2},
        {"snapshot_ts": -1},
        {"snapshot_id": "7", "prev_snapshot_id": "7"},
    ],
)
def test_poisoned_row_of_the_inbox_stops_no_other_event(
    address: str, changed: dict[str, Any]
) -> None:
    with LakeChime.open(address) as chime:
        chime.register([made(1)])
        engine = create_engine(address)
        for number in (2, 3):
            with engine.begin() as connection:
                register_in(connection, [made(number)])
            if number == 2:
                _poison(address, **changed)
        engine.dispose()
        assert chime.head() == 3
        assert [entry.event.snapshot_id for entry in chime.tail(0).events] == ["1", "2", "3"]
        assert not chime.register([made(4)])[0].gap
        assert chime.find([Interest(tables=(TABLE,), after=3)]).seqs == (4,)
        assert chime.expire(1 << 60) == 3
        assert "0 in the inbox, 1 put aside and not registered (reason of the last one:" in (
            chime.check()
        )


@pytest.mark.parametrize("column", ["name", "snapshot_id", "tags", "dedup_key", "tag_keys"])
def test_bytes_that_are_not_a_text_are_put_aside_in_sqlite(tmp_path: Path, column: str) -> None:
    address = f"sqlite:///{tmp_path}/lakechime.db"
    with LakeChime.open(address) as chime:
        _poison(address)
        engine = create_engine(address)
        with engine.begin() as connection:
            poisoned = f"UPDATE lakechime_inbox SET {column} = CAST(x'61ff' AS TEXT)"
            connection.execute(text(poisoned))
            register_in(connection, [made(1)])
        engine.dispose()
        assert [entry.event.table for entry in chime.tail(0).events] == [TABLE]
        assert "1 put aside" in chime.check()


_FUNCTION = """CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN RAISE EXCEPTION 'no event of the moon' USING ERRCODE = '54000'; END $$"""
_TRIGGER = """CREATE TRIGGER refuse BEFORE INSERT ON lakechime_tables FOR EACH ROW
WHEN (NEW.name = 'moon') EXECUTE FUNCTION refuse()"""
_SQLITE_TRIGGER = """CREATE TRIGGER refuse BEFORE INSERT ON lakechime_tables WHEN NEW.name = 'moon'
BEGIN SELECT RAISE(ABORT, 'no event of the moon'); END"""
_REFUSING = {"postgresql": (_FUNCTION, _TRIGGER), "sqlite": (_SQLITE_TRIGGER,)}


def test_an_event_that_the_database_refuses_is_put_aside_and_the_others_are_registered(
    address: str,
) -> None:
    with LakeChime.open(address) as chime:
        engine = create_engine(address)
        with engine.begin() as connection:
            for statement in _REFUSING[engine.dialect.name]:
                connection.execute(text(statement))
        with engine.begin() as connection:
            events = [made(number) for number in range(1, 21)]
            events[5:5] = [made(1, table="moon")]
            events[11:11] = [made(2, table="moon")]
            register_in(connection, events)
        engine.dispose()
        stored = chime.tail(0).events
        assert [entry.event.snapshot_id for entry in stored] == [
            str(number) for number in range(1, 21)
        ]
        assert not [entry for entry in stored if entry.gap]
        assert "2 put aside and not registered (reason of the last one: no event of the moon" in (
            chime.check()
        )
        chime.register([made(21)])


@pytest.mark.postgres
def test_register_raises_if_one_of_its_events_is_put_aside_and_registers_the_other(
    postgres_chime: tuple[LakeChime, Engine],
) -> None:
    """Another connection holds the lock of numbering, so that the events wait in the inbox."""
    chime, engine = postgres_chime
    with engine.begin() as connection:
        for statement in _REFUSING["postgresql"]:
            connection.execute(text(statement))
    with engine.connect() as holder, ThreadPoolExecutor(1) as pool:
        holder.execute(text(f"SELECT pg_advisory_lock({LOCK})"))
        waiting = pool.submit(chime.register, [made(1), made(1, table="moon")])
        waits = "SELECT count(*) FROM lakechime_inbox"
        with engine.connect() as watcher:
            watcher = watcher.execution_options(isolation_level="AUTOCOMMIT")
            wait_until(lambda: watcher.execute(text(waits)).scalar() == 2)
        holder.execute(text(f"SELECT pg_advisory_unlock({LOCK})"))
        with pytest.raises(InvalidEventError, match=r"1 of 2 events are not registered.* the moon"):
            waiting.result()
    assert len(chime.tail(0).events) == 1
