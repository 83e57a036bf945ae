"""Repeated requests and registrations, and changes between two looks at the store."""

from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event as listening

from lakechime import DataChangeEvent, LakeChime
from lakechime.answers import Filter
from lakechime.chains import chain
from lakechime.completeness import completeness_tag
from lakechime.errors import InvalidEventError
from lakechime.producers.outbox import Step, Target, sync
from lakechime.store.database.engine import Tuning
from lakechime.store.queries import read_page
from lakechime.store.sql_store import SqlStore
from lakechime.tags import OTHER_PARTITION
from lakechime.triggers.environment import event_variables, read_variables
from lakechime.triggers.partition import PartitionTrigger
from tests.lakechime.build import TABLE, made


@pytest.fixture
def store(tmp_path: Path) -> SqlStore:
    return SqlStore.open(f"sqlite:///{tmp_path}/lakechime.db")


def test_each_completeness_of_a_snapshot_is_an_event(store: SqlStore) -> None:
    hours = [made(1, tags=completeness_tag("hourly", percent)) for percent in (99, 100)]
    answers = [
        store.register([hour], None)[0]
        for hour in (*hours, hours[0], made(1, tags={**hours[1].tags, "by": "someone"}))
    ]
    assert [answer.duplicate for answer in answers] == [False, False, True, True]
    assert chain(answer.event for answer in answers[:2]).snapshots == ("1",)


def test_expired_seq_is_read_after_the_rows(store: SqlStore) -> None:
    store.register([made(1)], None)
    asked: list[str] = []
    with store.database.engine.connect() as connection:
        listening.listen(
            connection, "before_cursor_execute", lambda *given: asked.append(str(given[2]))
        )
        read_page(connection, store.sequencer, Filter(), (0, None), 10)
    assert "meta" in asked[-1]


def test_events_that_expired_before_the_flow_read_them_are_missed(store: SqlStore) -> None:
    answers = store.register([made(1), made(2), made(3)], None)
    registered = [answer.event for answer in answers]
    variables = event_variables(registered, limit_bytes=200)
    with LakeChime(store) as client:
        assert len(read_variables(variables, client)) == 3
        store.expire(1 << 60, keep_unseen=False)
        with pytest.raises(InvalidEventError, match="1 of the 3 events"):
            read_variables(variables, client)


def test_a_partition_registered_by_a_clock_ahead_fires(store: SqlStore) -> None:
    ahead = store.register([made(1, partition=("a",))], None)[0].event
    with LakeChime(store) as client:
        assert PartitionTrigger(table=TABLE, partition=("a",)).evaluate(
            client, (ahead.event_ts or 0) - 60_000
        )


def test_a_consumer_that_begins_during_retention_keeps_its_events(tmp_path: Path) -> None:
    store = SqlStore.open(f"sqlite:///{tmp_path}/lakechime.db", tuning=Tuning(expired_at_once=1))
    store.register([made(number) for number in range(1, 6)], None)
    done: list[str] = []

    def begin(*_: Any) -> None:
        done.append("batch")
        if len(done) == 2:
            store.put_watermark("late", "events", 3, expected=None, step="s")

    listening.listen(store.database.engine, "checkin", begin)
    store.expire(1 << 60, keep_unseen=True)
    page = store.events(Filter(), after=0, until=None, limit=10)
    assert [registered.event.seq for registered in page.events] == [4, 5]


class _Levels:
    """A table whose second snapshot has partitions of other levels."""

    target = Target(table=TABLE)

    def steps(self, position: Any) -> Any:
        if position is None:
            yield Step(position={"at": 1}, events=(made(1, partition=("a",)),))
            deep: tuple[DataChangeEvent, ...] = tuple(
                made(2, partition=("a", hour)) for hour in (1, 2)
            )
            yield Step(position={"at": 2}, events=deep)


def test_partitions_of_other_levels_are_one_event_that_lists_them(store: SqlStore) -> None:
    with LakeChime(store) as client:
        synced = sync(client, _Levels())
    assert synced.events == 2
    assert "2 partitions have other levels" in synced.notes[0]
    last = store.events(Filter(), after=1, until=None, limit=10).events[0].event
    assert last.partition is None
    assert last.tags[OTHER_PARTITION] == '[["a", 1], ["a", 2]]'
