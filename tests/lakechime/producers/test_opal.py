"""Opal tables, whose logs are outboxes: commits are events, once and in order."""

import contextlib
import itertools
import shutil
import threading
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lakechime import (
    InvalidEventError,
    LakeChime,
    OperationType,
    TableFormat,
    UnavailableError,
    chain,
)
from lakechime.chains import ProblemKind
from lakechime.producers.opal import sync_opal
from opal_lake import layout
from opal_lake.clock import ManualClock
from opal_lake.definition.table_spec import TableLayout, plan_spec
from opal_lake.duration import parse_duration
from opal_lake.errors import FormatError, InvalidInputError, NotFoundError
from opal_lake.read.read import visible_ingests
from opal_lake.storage import Storage
from opal_lake.storage.memory import MemoryStorage
from opal_lake.table import Table, create_on
from tests.kit.ids import CountingIds
from tests.lakechime.producers.build import NAME, equal_to_log, events_of, put
from tests.opal_lake import shop

LAYOUT = TableLayout(keys=["sku"], delta="at", deletes="price IS NULL")


def test_each_version_that_changes_the_view_is_an_event(client: LakeChime) -> None:
    table = shop.create(MemoryStorage())
    put(table, ("a", 1, 10), ("b", 1, 10), metadata="inline", partition_key="2026-11-01")
    put(table, ("a", 2, None), metadata="inline")
    put(table, ("c", 3, 1), partition_key="2026-11-02")
    put(table, ("b", 3, 11), partition_key="2026-11-03")
    table.metagen(all=True)
    table.compact()
    table.savepoint("kept")
    synced = sync_opal(client, table, NAME)
    reported = [
        (event.snapshot_id, event.prev_snapshot_id, event.partition, event.operation_type.value)
        for event in events_of(client, NAME)
    ]
    assert reported == [
        ("0", None, None, "APPEND"),
        ("1", "0", ("2026-11-01",), "APPEND"),
        ("2", "1", None, "DELETE"),
        ("5", "2", ("2026-11-02",), "UPDATE"),
        ("5", "2", ("2026-11-03",), "UPDATE"),
    ]
    assert (synced.events, synced.last) == (5, "5")
    times = {str(commit.version): commit.timestamp_us // 1000 for commit in table.commits()}
    assert all(
        event.snapshot_ts == times[str(event.snapshot_id)] for event in events_of(client, NAME)
    )
    assert {event.table_format for event in events_of(client, NAME)} == {TableFormat.OPAL}


def test_partition_keys_of_ingests_that_were_looked_at_before_are_known(client: LakeChime) -> None:
    table = shop.create(MemoryStorage())
    put(table, ("c", 3, 1), partition_key="2026-11-02")
    sync_opal(client, table, NAME)
    table.metagen(all=True)
    sync_opal(client, table, NAME)
    assert events_of(client, NAME)[-1].partition == ("2026-11-02",)


def test_ingest_without_rows_registers_its_partition(client: LakeChime) -> None:
    table = shop.create(MemoryStorage())
    put(table, partition_key="2026-11-02", token="empty")
    sync_opal(client, table, NAME)
    assert [(event.snapshot_id, event.partition) for event in events_of(client, NAME)] == [
        ("0", None),
        ("1", ("2026-11-02",)),
    ]


def keys_told(client: LakeChime) -> list[tuple[str | None, str | None]]:
    """Return the versions and the partition keys that they registered."""
    return [
        (event.snapshot_id, event.partition[0] if event.partition else None)
        for event in events_of(client, NAME)[1:]
    ]


def test_only_the_published_key_is_registered(client: LakeChime) -> None:
    table = shop.create(MemoryStorage())
    put(table, ("a", 1, 1), partition_key="2026-11-01")
    put(table, ("b", 1, 1), partition_key="2026-11-02")
    put(table, ("c", 1, 1))
    table.metagen(partition_key="2026-11-02")
    sync_opal(client, table, NAME)
    assert keys_told(client) == [("4", "2026-11-02")]
    table.metagen()
    table.discard(partition_key="2026-11-01")
    sync_opal(client, table, NAME)
    assert keys_told(client) == [("4", "2026-11-02"), ("5", None)]


def test_ingest_without_rows_does_not_register_a_pending_key(client: LakeChime) -> None:
    table = shop.create(MemoryStorage())
    put(table, ("a", 1, 1), partition_key="2026-11-01")
    put(table, partition_key="2026-11-01", token="empty")
    put(table, partition_key="2026-11-02", token="other")
    sync_opal(client, table, NAME)
    assert keys_told(client) == [("3", "2026-11-02")]
    assert "2026-11-01" not in visible_ingests(table.snapshot_at())
    table.metagen(partition_key="2026-11-01")
    sync_opal(client, table, NAME)
    assert keys_told(client) == [("3", "2026-11-02"), ("4", "2026-11-01")]


@pytest.mark.parametrize("looks", ["once", "at each version"])
def test_discard_of_pending_rows_registers_their_empty_key(client: LakeChime, looks: str) -> None:
    table = shop.create(MemoryStorage())
    for step in (
        lambda: put(table, ("a", 1, 1), partition_key="2026-11-01", token="bad"),
        lambda: put(table, partition_key="2026-11-01", token="empty"),
        lambda: table.discard(token="bad"),
        lambda: put(table, ("b", 1, 1), partition_key="2026-11-01", token="late"),
        lambda: table.discard(token="late"),
    ):
        step()
        if looks == "at each version":
            sync_opal(client, table, NAME)
    sync_opal(client, table, NAME)
    assert keys_told(client) == [("3", "2026-11-01")]


def test_try_without_rows_registers_its_key_if_it_replaces_pending_rows(
    client: LakeChime,
) -> None:
    table = shop.create(MemoryStorage())
    put(table, ("a", 1, 1), partition_key="2026-11-01", token="try 1")
    put(table, partition_key="2026-11-01", token="try 2", replaces=["try 1"])
    sync_opal(client, table, NAME)
    assert keys_told(client) == [("2", "2026-11-01")]


def test_business_snapshots_and_restores_are_tags(client: LakeChime) -> None:
    table = shop.create(MemoryStorage())
    put(table, ("a", 1, 10), metadata="inline", business_snapshot="2026-11-01")
    put(table, ("a", 2, 11), metadata="inline")
    table.restore(version=1)
    sync_opal(client, table, NAME)
    events = events_of(client, NAME)
    assert events[1].tags["opal.business_snapshot"] == "2026-11-01"
    assert (events[3].tags["opal.restored_version"], events[3].operation_type) == (
        "1",
        OperationType.UPDATE,
    )
    assert [problem.kind for problem in chain(events, on_problems="report").problems] == [
        ProblemKind.RESTORE
    ]


def test_name_of_an_opal_table_is_a_property_or_its_path(client: LakeChime, tmp_path: Path) -> None:
    named = Table.create(
        f"{tmp_path}/a",
        shop.SCHEMA,
        **asdict(replace(LAYOUT, properties={"event_table": "shop.a"})),
    )
    placed = Table.create(f"{tmp_path}/b", shop.SCHEMA, **asdict(LAYOUT))
    assert sync_opal(client, named).table == "shop.a"
    assert sync_opal(client, f"file://{placed.uri}").table == f"{tmp_path}/b"


@dataclass
class Counting:
    """A store that counts what it is asked."""

    store: Any
    asked: list[str] = field(default_factory=list)
    killed: str | None = None

    def __getattr__(self, name: str) -> Any:
        def ask(*args: Any, **named: Any) -> Any:
            self.asked.append(name)
            if name == "register" and self.killed == "before":
                raise UnavailableError("killed")
            answer = getattr(self.store, name)(*args, **named)
            if name == "register" and self.killed == "after":
                raise UnavailableError("killed")
            return answer

        return ask


def test_look_sends_one_request_and_another_one_for_new_versions(client: LakeChime) -> None:
    table, counting = shop.create(MemoryStorage()), Counting(client.store)
    counted = LakeChime(counting)
    for _ in range(20):
        put(table, ("a", 1, 10), metadata="inline")
    sync_opal(counted, table, NAME)
    assert counting.asked == ["table_state", "register"]
    sync_opal(counted, table, NAME)
    assert counting.asked == ["table_state", "register", "table_state"]


def test_versions_expired_before_registration_are_a_gap_with_a_note(client: LakeChime) -> None:
    storage, clock = MemoryStorage(), ManualClock()
    layout = replace(LAYOUT, properties={"checkpoint_commits": 1})
    table = create_on(storage, plan_spec(shop.SCHEMA, layout), clock, CountingIds())
    put(table, ("a", 1, 10), metadata="inline")
    sync_opal(client, table, NAME)
    for at in range(2, 7):
        put(table, ("a", at, 10), metadata="inline")
    lapse(table, clock)
    put(table, ("a", 9, 10), metadata="inline")
    synced = sync_opal(client, table, NAME)
    page = client.events([NAME]).events
    assert (page[2].event.snapshot_id, page[2].event.prev_snapshot_id, page[2].gap) == (
        "6",
        "5",
        True,
    )
    assert page[2].event.tags["lost_snapshots"] == "2-6"
    assert len(synced.notes) == 1
    whole = chain([entry.event for entry in page], on_problems="report")
    assert ProblemKind.GAP in {problem.kind for problem in whole.problems}
    alone = chain([entry.event for entry in page[2:]], on_problems="report")
    assert [problem.kind for problem in alone.problems] == [ProblemKind.GAP]
    assert sync_opal(client, table, NAME).events == 0


def lapse(table: Table, clock: ManualClock) -> None:
    """All but the newest version expire, and the log before it goes."""
    for _ in range(3):
        clock.at_us += parse_duration("30d", name="span")
        table.retain(window="0s", grace="0s")
        table.savepoint("s", move=True)
        table.release("s")


@pytest.mark.parametrize("looked_at", [0, 2, 3])
def test_no_event_is_passed_over_where_the_log_has_a_hole(
    client: LakeChime, looked_at: int
) -> None:
    storage = MemoryStorage()
    table = shop.create(storage, checkpoint_commits=3)
    for hour in range(looked_at):
        put(table, ("a", hour, 1), metadata="inline")
    sync_opal(client, table, NAME)
    before = events_of(client, NAME)
    for hour in range(looked_at, 8):
        put(table, ("a", hour, 1), metadata="inline")
    path = layout.commit_path(5)
    data = storage.get(path)
    pages = [stored.path for stored in storage.list(layout.LOG_PAGES)]
    storage.delete([path, *pages])
    with pytest.raises(FormatError, match=f"{path} is missing"):
        sync_opal(client, shop.reopen(storage), NAME)
    assert events_of(client, NAME) == before
    storage.put_if_absent(path, data)
    sync_opal(client, shop.reopen(storage), NAME)
    assert [event.snapshot_id for event in events_of(client, NAME)] == [*map(str, range(9))]


def test_rewrites_that_expired_are_no_gap(client: LakeChime) -> None:
    storage, clock = MemoryStorage(), ManualClock()
    layout = replace(LAYOUT, properties={"checkpoint_commits": 1})
    table = create_on(storage, plan_spec(shop.SCHEMA, layout), clock, CountingIds())
    put(table, ("a", 1, 10), metadata="inline")
    sync_opal(client, table, NAME)
    for _ in range(5):
        table.savepoint("s", move=True)
    lapse(table, clock)
    assert not any(version in (2, 3) for version in versions_in_the_log(storage))
    put(table, ("a", 2, 10), metadata="inline")
    assert sync_opal(client, table, NAME).notes == ()
    page = client.events([NAME]).events
    assert (page[-1].event.prev_snapshot_id, page[-1].gap) == ("1", False)
    chain([entry.event for entry in page])


def versions_in_the_log(storage: Storage) -> list[int]:
    return [int(entry.path[-25:-5]) for entry in storage.list("_opal/log/")]


def test_table_created_again_registers_its_versions_again(
    client: LakeChime, tmp_path: Path
) -> None:
    for prices in ([1, 2, 3], [4, 5]):
        table = Table.create(f"{tmp_path}/t", shop.SCHEMA, **asdict(LAYOUT))
        for price in prices:
            put(table, ("a", price, price), metadata="inline")
        sync_opal(client, table, NAME)
        sync_opal(client, table, NAME)
        shutil.rmtree(f"{tmp_path}/t")
    events = events_of(client, NAME)
    assert [event.snapshot_id for event in events] == ["0", "1", "2", "3", "0", "1", "2"]
    assert ProblemKind.RECREATED in {
        problem.kind for problem in chain(events, on_problems="report").problems
    }


def test_table_restored_from_a_backup_is_reported(client: LakeChime, tmp_path: Path) -> None:
    table = Table.create(f"{tmp_path}/t", shop.SCHEMA, **asdict(LAYOUT))
    put(table, ("a", 1, 1), metadata="inline")
    shutil.copytree(f"{tmp_path}/t", f"{tmp_path}/backup")
    put(table, ("a", 2, 2), metadata="inline")
    sync_opal(client, table, NAME)
    shutil.rmtree(f"{tmp_path}/t")
    shutil.move(f"{tmp_path}/backup", f"{tmp_path}/t")
    for price in (7, 8):
        put(table, ("a", price, price), metadata="inline")
    sync_opal(client, table, NAME)
    assert [event.snapshot_id for event in events_of(client, NAME)] == [
        "0",
        "1",
        "2",
        "0",
        "1",
        "2",
        "3",
    ]
    assert chain(events_of(client, NAME), on_problems="report").problems


def test_two_tables_of_one_name_are_refused(client: LakeChime, tmp_path: Path) -> None:
    sync_opal(client, Table.create(f"{tmp_path}/a", shop.SCHEMA, **asdict(LAYOUT)), NAME)
    with pytest.raises(InvalidEventError, match="under another name"):
        sync_opal(client, Table.create(f"{tmp_path}/b", shop.SCHEMA, **asdict(LAYOUT)), NAME)


VERBS = (
    "inline",
    "batch",
    "metagen",
    "compact",
    "restore",
    "savepoint",
    "discard",
    "look",
    "look",
    "killed before",
    "killed after",
)


def test_killed_looks_register_each_commit_once(client: LakeChime) -> None:
    """Let writers have their own heads, and looks die before or after committing."""
    names = itertools.count()
    counting = Counting(client.store)
    killed = LakeChime(counting)

    @settings(max_examples=20, suppress_health_check=list(HealthCheck), print_blob=True)
    @given(
        st.lists(
            st.tuples(st.sampled_from(VERBS), st.integers(0, 2), st.integers(0, 30)), max_size=30
        )
    )
    def run(steps: list[tuple[str, int, int]]) -> None:
        name, storage = f"t{next(names)}", MemoryStorage()
        writers = [shop.create(storage), shop.reopen(storage, "x"), shop.reopen(storage, "y")]
        for at, (verb, writer, number) in enumerate(steps):
            counting.killed = verb.removeprefix("killed ") if verb.startswith("killed") else None
            if verb == "look" or counting.killed is not None:
                with contextlib.suppress(UnavailableError):
                    sync_opal(killed, writers[writer], name)
            else:
                act(writers[writer], verb, number, at)
        sync_opal(client, writers[0], name)
        equal_to_log(client, writers[0], name)

    run()


def act(table: Table, verb: str, number: int, at: int) -> None:
    """One job of one writer."""
    match verb:
        case "inline" | "batch":
            row = ("abc"[number % 3], at, None if number % 5 == 0 else number)
            put(table, row, metadata=verb, partition_key=(None, "k1", "k2")[number % 3])
        case "metagen":
            key = (None, "k1", "k2", None)[number % 4]
            table.metagen(partition_key=key, all=number % 4 == 3)
        case "discard":
            with contextlib.suppress(InvalidInputError, NotFoundError):
                table.discard(partition_key=("k1", "k2")[number % 2])
        case "compact":
            table.compact()
        case "restore":
            table.restore(version=number % (table.snapshot_at().version + 1))
        case "savepoint":
            table.savepoint("s", move=True)


def test_concurrent_looks_register_each_commit_once(client: LakeChime) -> None:
    storage = MemoryStorage()
    tables = [shop.create(storage), *(shop.reopen(storage, name) for name in "xyz")]
    failures: list[Exception] = []

    def work(table: Table, number: int) -> None:
        try:
            for step in range(15):
                put(table, (f"{number}", step, step), metadata="inline", partition_key=f"k{number}")
                sync_opal(client, table, NAME)
        except Exception as error:  # noqa: BLE001  # shown below
            failures.append(error)

    threads = [
        threading.Thread(target=work, args=(table, number)) for number, table in enumerate(tables)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    equal_to_log(client, tables[0])
