"""Which partition keys a MetaGenOperator emits: those of which something is visible, whether it had work or not."""

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_opal import MetaGenOperator
from lakechime import LakeChime
from lakechime.producers.opal import sync_opal
from opal_lake.table import Table
from opal_lake.write.discard import discard
from tests.airflow_provider_opal.jobs import SCHEMA, create_table, do_job
from tests.airflow_provider_opal.stand_ins import context
from tests.airflow_provider_opal.test_watermark import Events

FRIDAY, SATURDAY, SUNDAY = "2026-11-06", "2026-11-07", "2026-11-08"
ROW = [{"id": "a", "at": 1, "day": "d"}]


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Table:
    connection = {"conn_type": "opal", "host": str(tmp_path)}
    monkeypatch.setenv("AIRFLOW_CONN_OPAL_DEFAULT", json.dumps(connection))
    return create_table(str(tmp_path / "shop" / "orders"))


@pytest.fixture
def chime(tmp_path: Path) -> Iterator[LakeChime]:
    with LakeChime.open(f"sqlite:///{tmp_path}/chime.db") as chime:
        yield chime


def ingest(table: Table, key: str | None, token: str, **given: Any) -> None:
    rows = SCHEMA.empty_table() if given.pop("is_empty", False) else rows_of_one()
    table.ingest(rows, partition_key=key, token=token, **given)


def rows_of_one() -> Any:
    return SCHEMA.empty_table().from_pylist(ROW, SCHEMA)


def emitted(run_key: str | None, clears: int = 0, **given: Any) -> list[str | None]:
    """Run a MetaGen, and return the keys with which Airflow then registers events of the table."""
    task = MetaGenOperator(task_id="m", table="shop.orders", lakechime_conn_id=None, **given)
    run = {
        **context(task, clears=clears, partition_key=run_key),
        "outlet_events": Events(),
    }
    do_job(task.job(run))
    result = task.execute(run)
    assert task.versions in task.outlets
    assert run["outlet_events"][task.versions].keys == [f"{result['version']:020}"]
    if task.asset not in task.outlets:
        assert task.asset not in run["outlet_events"]
        return []
    return run["outlet_events"][task.asset].keys or [run_key]


def registered(chime: LakeChime, table: Table) -> list[str]:
    """The keys of which LakeChime has data-change events."""
    sync_opal(chime, table, "shop.orders")
    events = [found.event for found in chime.events(["shop.orders"]).events]
    return [event.partition[0] for event in events if event.partition]


def test_a_key_is_emitted_when_its_rows_become_visible_and_at_each_repeat(table: Table) -> None:
    ingest(table, FRIDAY, "one")
    assert emitted(FRIDAY) == [FRIDAY]
    assert emitted(FRIDAY) == [FRIDAY], "a retry"
    assert emitted(FRIDAY, clears=1) == [FRIDAY], "a clear that has nothing to do"
    assert emitted(SATURDAY, partition_key=FRIDAY, clears=2) == [FRIDAY]


def test_a_day_without_rows_is_emitted(table: Table) -> None:
    ingest(table, FRIDAY, "one", is_empty=True)
    assert emitted(FRIDAY) == [FRIDAY]


@pytest.mark.parametrize("given", [{}, {"partition_key": FRIDAY}, {"all": True}])
def test_a_key_whose_rows_were_discarded_is_not_emitted(
    table: Table, chime: LakeChime, given: dict[str, Any]
) -> None:
    ingest(table, FRIDAY, "one")
    discard(table.log, partition_key=FRIDAY)
    assert emitted(FRIDAY, **given) == []
    assert registered(chime, table) == []


@pytest.mark.parametrize("given", [{}, {"partition_key": FRIDAY}, {"all": True}])
def test_a_key_that_was_never_ingested_is_not_emitted(
    table: Table, chime: LakeChime, given: dict[str, Any]
) -> None:
    ingest(table, SATURDAY, "one", metadata="inline")
    assert FRIDAY not in emitted(FRIDAY, **given)
    assert registered(chime, table) == [SATURDAY]


def test_a_visible_key_of_which_later_rows_were_discarded_is_emitted(table: Table) -> None:
    ingest(table, FRIDAY, "one", metadata="inline")
    ingest(table, FRIDAY, "two")
    discard(table.log, token="two")
    assert emitted(FRIDAY) == [FRIDAY]


def test_rows_that_are_held_back_are_emitted_by_the_metagen_that_publishes_them(
    table: Table, chime: LakeChime
) -> None:
    table.set_properties({"drift": "1d"})
    ingest(table, FRIDAY, "one", business_snapshot=FRIDAY)
    assert emitted(FRIDAY, all=True) == [FRIDAY]
    ingest(table, SATURDAY, "two", business_snapshot=SATURDAY)
    assert SATURDAY not in emitted(SATURDAY, clears=1, all=True)
    assert emitted(SATURDAY, clears=2) == []
    assert registered(chime, table) == [FRIDAY]
    table.finish_business_snapshot(FRIDAY)
    ingest(table, SUNDAY, "three", business_snapshot=SUNDAY)
    assert emitted(SUNDAY, clears=3, all=True) == [SATURDAY]
    assert emitted(SATURDAY, clears=4, all=True) == [SATURDAY]
    assert registered(chime, table) == [FRIDAY, SATURDAY]


def test_a_run_without_a_key_emits_the_keys_that_it_publishes_or_an_event_without_a_key(
    table: Table,
) -> None:
    ingest(table, FRIDAY, "one")
    ingest(table, None, "two")
    assert emitted(None) == [None]
    assert emitted(None, all=True, clears=1) == [FRIDAY]
    assert emitted(None, partition_key=SATURDAY, clears=2) == []


@pytest.mark.parametrize("seed", range(5))
def test_a_key_is_emitted_exactly_if_something_of_it_is_visible(
    table: Table, chime: LakeChime, seed: int
) -> None:
    chance = random.Random(seed)
    pending: dict[str, set[str]] = {FRIDAY: set(), SATURDAY: set()}
    visible: set[str] = set()
    for step in range(20):
        key = chance.choice([*pending])
        match chance.choice(["ingest", "empty", "inline", "discard", "metagen", "metagen", "all"]):
            case "ingest":
                ingest(table, key, f"t{step}")
                pending[key].add(f"t{step}")
            case "empty" if not pending[key]:
                ingest(table, key, f"t{step}", is_empty=True)
                visible.add(key)
            case "inline":
                ingest(table, key, f"t{step}", metadata="inline")
                visible.add(key)
            case "discard" if pending[key]:
                discard(table.log, partition_key=key)
                pending[key].clear()
            case "metagen":
                visible |= {key} if pending[key] else set()
                pending[key].clear()
                assert emitted(key, clears=step) == ([key] if key in visible else [])
            case "all":
                published = {one for one, tokens in pending.items() if tokens}
                visible |= published
                pending = {one: set() for one in pending}
                told = emitted(key, clears=step, all=True)
                assert {*told} >= published | ({key} & visible)
                assert {*told} <= visible
        assert {*registered(chime, table)} == visible
