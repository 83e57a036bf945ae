"""Partition triggers, snapshot triggers, and the events that they hand on."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from lakechime import DataChangeEvent, Found, Interest, InvalidEventError, LakeChime
from lakechime.triggers.argument import decode_events, encode_events
from lakechime.triggers.environment import EVENTS, QUERY, Query, event_variables, read_variables
from lakechime.triggers.partition import PartitionTrigger
from lakechime.triggers.schedule import FrequencyUnit
from lakechime.triggers.snapshot import SnapshotTrigger
from tests.lakechime.build import TABLE, made

EVER = 1 << 60


@pytest.fixture
def chime(tmp_path: Path) -> Iterator[LakeChime]:
    with LakeChime.open(f"sqlite:///{tmp_path}/lakechime.db") as client:
        yield client


def snapshots(events: tuple[DataChangeEvent, ...]) -> list[str | None]:
    return [event.snapshot_id for event in events]


def test_a_partition_trigger_fires_whenever_its_partition_was_registered(chime: LakeChime) -> None:
    trigger = PartitionTrigger(
        table=TABLE, partition=("2026-11-24",), tags={"completeness.daily": "99"}
    )
    assert trigger.evaluate(chime, EVER) == ()
    (first,) = chime.register([made(1, partition=("2026-11-24",))])
    chime.register([made(2, partition=("2026-11-23",), tags={"completeness.daily": "99"})])
    assert trigger.evaluate(chime, EVER) == ()
    chime.register(
        [made(3, partition=("2026-11-24",), tags={"completeness.daily": "99", "more": "1"})]
    )
    assert snapshots(trigger.evaluate(chime, EVER)) == ["3"]
    assert snapshots(trigger.evaluate(chime, EVER)) == ["3"]
    without_tags = PartitionTrigger(table=TABLE, partition=("2026-11-24",))
    assert snapshots(without_tags.evaluate(chime, EVER)) == ["1", "3"]
    assert snapshots(without_tags.evaluate(chime, (first.event.event_ts or 0) - 1)) == [
        "1",
        "3",
    ]  # whatever the clocks say


def test_a_partition_trigger_waits_for_its_ticks(chime: LakeChime) -> None:
    trigger = PartitionTrigger(
        table=TABLE, partition=("a",), start_ts=1_000, frequency=1, unit=FrequencyUnit.MINUTE
    )
    chime.register([made(1, partition=("a",))])
    assert trigger.evaluate(chime, 999) == ()
    assert [
        trigger.is_due(999),
        trigger.is_due(1_000),
        trigger.is_due(60_999, 1_000),
        trigger.is_due(61_000, 1_000),
    ] == [
        False,
        True,
        False,
        True,
    ]


def test_a_partition_with_more_than_a_page_of_events_comes_whole(chime: LakeChime) -> None:
    chime.register([made(number, partition=("a",)) for number in range(1, 2_502)])
    assert len(PartitionTrigger(table=TABLE, partition=("a",)).evaluate(chime, EVER)) == 2_501


def test_a_snapshot_trigger_goes_on_after_the_last_success(chime: LakeChime) -> None:
    trigger = SnapshotTrigger(tables=("a", "b"))
    assert trigger.evaluate(chime, 0) is None
    chime.register(
        [made(1, table="a"), made(1, table="beside"), made(1, table="b"), made(2, table="beside")]
    )
    fired = trigger.evaluate(chime, 0)
    assert fired is not None
    assert (
        [event.table for event in fired.events],
        fired.from_seq,
        fired.to_seq,
        fired.expired,
    ) == (["a", "b"], 0, 4, False)
    assert trigger.evaluate(chime, fired.to_seq) is None
    chime.register([made(2, table="b")])
    again = trigger.evaluate(chime, fired.to_seq)
    assert again is not None
    assert ([event.table for event in again.events], again.from_seq) == (["b"], 4)


def test_snapshot_trigger_takes_remaining_events_in_the_next_run(chime: LakeChime) -> None:
    chime.register([made(number) for number in range(1, 8)])
    trigger, after, runs = SnapshotTrigger(tables=(TABLE,)), 0, []
    while (fired := trigger.evaluate(chime, after, max_events=3)) is not None:
        runs.append(snapshots(fired.events))
        after = fired.to_seq
    assert runs == [["1", "2", "3"], ["4", "5", "6"], ["7"]]


def test_a_snapshot_trigger_of_all_tables_waits_for_each(chime: LakeChime) -> None:
    trigger = SnapshotTrigger(tables=("a", "b"), mode="all", tags={"x": "1"})
    chime.register([made(number, table="a", tags={"x": "1"}) for number in range(1, 6)])
    chime.register([made(1, table="b")])
    assert trigger.evaluate(chime, 0) is None
    chime.register([made(2, table="b", tags={"x": "1"}), made(6, table="a", tags={"x": "1"})])
    fired = trigger.evaluate(chime, 0, max_events=2)
    assert fired is not None
    assert [event.table for event in fired.events] == ["a"] * 5 + ["b"]
    assert fired.to_seq == fired.events[-1].seq
    assert trigger.evaluate(chime, fired.to_seq) is None


def test_snapshot_trigger_reports_expired_events(chime: LakeChime) -> None:
    chime.register([made(number) for number in range(1, 6)])
    chime.expire(EVER, keep_unseen=False)
    fired = SnapshotTrigger(tables=(TABLE,)).evaluate(chime, 2)
    assert fired is not None
    assert fired.expired
    assert snapshots(fired.events) == ["5"]


def test_tables_of_other_clusters_are_named(chime: LakeChime) -> None:
    chime.register([made(1, cluster="eu")])
    assert SnapshotTrigger(tables=(TABLE,)).evaluate(chime, 0) is None
    assert SnapshotTrigger(tables=(TABLE,), cluster="eu").evaluate(chime, 0) is not None
    assert SnapshotTrigger(tables=(("eu", TABLE),)).evaluate(chime, 0) is not None
    with pytest.raises(InvalidEventError, match="does not name tables"):
        SnapshotTrigger(tables=())
    with pytest.raises(InvalidEventError, match="mode='some' is unknown"):
        SnapshotTrigger(tables=("a",), mode="some")  # type: ignore[arg-type]


def test_few_events_are_variables_and_many_are_named_by_a_query(chime: LakeChime) -> None:
    tags = {"x": "ü" * 100}
    chime.register(
        [made(number, tags=tags if number % 2 else {}, partition=("a",)) for number in range(1, 41)]
    )
    fired = SnapshotTrigger(tables=(TABLE,), tags=tags).evaluate(chime, 0)
    assert fired is not None
    whole = event_variables(fired.events)
    assert (
        whole["LAKECHIME_EVENT_COUNT"],
        whole["LAKECHIME_FIRST_SEQ"],
        whole["LAKECHIME_LAST_SEQ"],
    ) == ("20", "1", "39")
    assert read_variables(whole) == fired.events
    named = event_variables(
        fired.events, query=Query(tags=tags, partition=("a",)), limit_bytes=2_000
    )
    assert EVENTS not in named
    assert json.loads(named[QUERY])["until"] == 39
    assert read_variables(named, chime) == fired.events
    with pytest.raises(InvalidEventError, match="as reader="):
        read_variables(named)
    with pytest.raises(InvalidEventError, match="the query that finds the events takes"):
        event_variables(fired.events, limit_bytes=10)
    with pytest.raises(InvalidEventError, match="register them first"):
        event_variables([made(1)], limit_bytes=10)
    with pytest.raises(InvalidEventError, match="neither LAKECHIME_EVENTS nor LAKECHIME_QUERY"):
        read_variables({})


def test_an_empty_list_of_events_is_read_back_from_its_variables() -> None:
    assert read_variables(event_variables([])) == ()


class _Between:
    """A client whose producers register between the requests of one question."""

    def __init__(self, client: LakeChime, events: Sequence[DataChangeEvent]) -> None:
        self.client = client
        self.events = client.events
        self.coming = [*events]

    def find(self, interests: Sequence[Interest]) -> Found:
        half = len(interests) // 2
        first = self.client.find(interests[:half])
        self.client.register(self.coming)
        second = self.client.find(interests[half:])
        return Found(seqs=(*first.seqs, *second.seqs), head=min(first.head, second.head))


def test_an_event_between_the_requests_of_a_question_is_not_passed_over(chime: LakeChime) -> None:
    """Let a and b get events between two requests of one question."""
    trigger = SnapshotTrigger(tables=("a", "b", "c", "d"), mode="all")
    chime.register([made(1, table="other")])
    coming = [made(1, table=name) for name in ("a", "b", "d")]
    look = trigger.look(_Between(chime, coming), 0)
    assert (look.fired, look.covered_seq) == (None, 1)
    chime.register([made(1, table="c")])
    fired = trigger.evaluate(chime, look.covered_seq)
    assert fired is not None
    assert sorted(event.table for event in fired.events) == ["a", "b", "c", "d"]


def test_query_variables_find_exactly_the_events_of_the_trigger(chime: LakeChime) -> None:
    """Hand events on as a template does, which has no filter."""
    large = {"large": "x" * 200, "even": "1"}
    chime.register([made(number, tags=({}, large)[number % 2]) for number in range(1, 1_000)])
    fired = SnapshotTrigger(tables=(TABLE,), tags=large).evaluate(chime, 0)
    assert fired is not None
    assert len(fired.events) == 500
    variables = event_variables(fired.events)
    assert QUERY in variables
    assert read_variables(variables, chime) == fired.events
    assert decode_events(encode_events(fired.events), chime) == fired.events
    assert decode_events(encode_events(fired.events[3:400:7]), chime) == fired.events[3:400:7]
    with pytest.raises(InvalidEventError, match="finds 999 events, and 500 started this flow"):
        read_variables(event_variables(fired.events, query=Query()), chime)
    chime.expire(EVER)
    with pytest.raises(InvalidEventError, match="finds 1 of the 500 events"):
        read_variables(variables, chime)
