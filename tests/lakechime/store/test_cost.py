"""The cost of queries and retention, which does not grow with the history."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event

from lakechime import Interest, LakeChime
from lakechime.triggers.partition import PartitionTrigger
from tests.fixtures_lakechime import sqlite_url
from tests.lakechime.build import TABLE, made

STEPS_EACH = 100
TAGS = {"completeness.hourly": "99"}


@pytest.fixture
def chime(tmp_path: Path) -> Iterator[LakeChime]:
    with LakeChime.open(sqlite_url(tmp_path)) as client:
        yield client


@contextmanager
def counted(client: LakeChime) -> Iterator[Callable[[], int]]:
    """Return the number of steps that SQLite took since."""
    steps = 0

    def count() -> int:
        nonlocal steps
        steps += STEPS_EACH
        return 0

    def listen(connection: Any, *_: Any) -> None:
        connection.set_progress_handler(count, STEPS_EACH)

    store: Any = client.store
    engine = store.database.engine
    engine.dispose()
    event.listen(engine, "connect", listen)
    try:
        yield lambda: steps
    finally:
        event.remove(engine, "connect", listen)
        engine.dispose()


def fill(client: LakeChime, first: int, last: int, tables: int = 1) -> None:
    for start in range(first, last, 2_000):
        client.register(
            [
                made(number, table=f"{TABLE}{number % tables}", partition=(number,), tags=TAGS)
                for number in range(start, min(start + 2_000, last))
            ]
        )


def steps_of(client: LakeChime, work: Callable[[], object]) -> int:
    with counted(client) as steps:
        work()
        return steps()


def test_a_partition_trigger_with_tags_costs_the_same_after_any_history(chime: LakeChime) -> None:
    trigger = PartitionTrigger(table=f"{TABLE}0", partition=("new",), tags=TAGS)

    def look() -> None:
        assert trigger.evaluate(chime, 1 << 60) == ()
        assert chime.find([trigger.interest]).seqs == (None,)

    fill(chime, 1, 500)
    few = steps_of(chime, look)
    fill(chime, 500, 8_000)
    many = steps_of(chime, look)
    assert many < 1.5 * few + 2 * STEPS_EACH
    interest = Interest(tables=(f"{TABLE}0",), partition=(7_000,), tags=TAGS)
    assert chime.find([interest]).seqs == (7_000,)
    assert len(chime.events(interest.tables, partition=[7_000], tags=TAGS).events) == 1


@pytest.mark.parametrize("tables", [1, 1_000])
def test_cost_of_retention_grows_with_deleted_events_only(chime: LakeChime, tables: int) -> None:
    """Twice the events of twice the tables, with as many tags, cost twice the steps."""
    fill(chime, 1, 1_500, tables)
    few = steps_of(chime, lambda: chime.expire(1 << 60))
    assert len(chime.events(limit=10_000).events) == tables
    fill(chime, 1_500, 1_500 + 3_000, tables)
    many = steps_of(chime, lambda: chime.expire(1 << 60))
    gone = (1_500 - tables, 3_000)
    assert many / gone[1] < 2 * few / gone[0]
    assert many / gone[1] < 1_500
