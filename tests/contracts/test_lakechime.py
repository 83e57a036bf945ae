"""The contract of every client of LakeChime, over databases and the service.

The suite runs over each address that the fixture `chime_address` (conftest.py) gives. A service
over a database is one more parameter: start it over `request.getfixturevalue(...)`'s database and
return its URL and a token. `chime` is the client of the test, and `LakeChime.open(**chime_address)`
makes others of the same store.
"""

import random
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from lakechime import (
    ConflictError,
    ExpiredError,
    Interest,
    InvalidEventError,
    LakeChime,
    NotFoundError,
    OperationType,
    Outbox,
    Registered,
    TableFormat,
)
from lakechime.event import MAX_NAME_BYTES, JsonValue
from lakechime.triggers.partition import PartitionTrigger
from lakechime.triggers.snapshot import SnapshotTrigger
from tests.lakechime.build import TABLE, hive, made

CJK_512 = "".join(
    map(chr, random.Random(7).choices(range(0x4E00, 0x9FFF), k=512))
)  # no compression makes it fit
HOSTILE = "o'rders\"; DROP TABLE lakechime_events; --"


def seqs(entries: Iterator[Registered] | tuple[Registered, ...] | list[Registered]) -> list[int]:
    return [registered.event.seq or 0 for registered in entries]


def test_events_get_places_in_the_order_given(chime: LakeChime) -> None:
    first = chime.register([made(1), made(2)])
    second = chime.register([made(3)])
    assert seqs(first) == sorted(seqs(first))
    assert seqs(second) > seqs(first)[-1:]
    assert not [entry for entry in first + second if entry.duplicate or entry.gap]
    assert chime.events().events == (*first, *second)


def test_an_event_comes_back_whole(chime: LakeChime) -> None:
    event = made(
        7,
        partition=("2026-11-24", 7, None, True, {"a": [1.5, "ü\x00\\u0000"]}),
        snapshot_ts=1_700_000_000_123,
        table_format=TableFormat.DELTA,
        operation_type=OperationType.APPEND,
        tags={"completeness.hourly": "99", "ключ": "значение\nzwei 🎉"},
        cluster="eu-west",
    )
    (given,) = chime.register([event])
    (read,) = chime.events([("eu-west", TABLE)]).events
    assert read == given
    assert {
        name: value
        for name, value in read.event.to_json().items()
        if name not in ("seq", "event_ts")
    } == event.to_json()
    assert read.event.event_ts is not None
    assert read.event.event_ts > 1_700_000_000_000


def test_the_same_event_twice_is_one(chime: LakeChime) -> None:
    (first,) = chime.register([made(1, tags={"run": "a"})])
    again = chime.register(
        [made(1, tags={"run": "b"}), made(2), made(2, operation_type=OperationType.DELETE)]
    )
    assert [entry.duplicate for entry in again] == [True, False, True]
    assert again[0].event == first.event
    assert again[2].event == again[1].event
    assert len(chime.events().events) == 2


def test_partitions_of_a_snapshot_are_events_of_their_own(chime: LakeChime) -> None:
    events = [made(1, partition=(day,)) for day in ("a", "b")]
    assert not [entry for entry in chime.register(events) if entry.duplicate]
    assert [entry.duplicate for entry in chime.register([*events, made(1, partition=("c",))])] == [
        True,
        True,
        False,
    ]


def test_without_a_snapshot_everything_that_is_told_makes_an_event_the_same(
    chime: LakeChime,
) -> None:
    chime.register([hive(("a",), snapshot_ts=1)])
    again = chime.register(
        [
            hive(("a",), snapshot_ts=1),
            hive(("a",), snapshot_ts=2),
            hive(("a",), snapshot_ts=1, tags={"x": "1"}),
        ]
    )
    assert [entry.duplicate for entry in again] == [True, False, False]


def test_registering_an_empty_list_adds_no_event(chime: LakeChime) -> None:
    assert chime.register([]) == []
    assert chime.head() == 0
    page = chime.events()
    assert (page.events, page.next_after, page.more, page.head) == ((), 0, False, 0)


def test_what_is_registered_already_is_refused(chime: LakeChime) -> None:
    (given,) = chime.register([made(1)])
    with pytest.raises(
        InvalidEventError, match="leave both out, because registration assigns them"
    ):
        chime.register([given.event])


def test_a_missing_predecessor_is_a_gap_and_a_tables_first_event_is_none(chime: LakeChime) -> None:
    given = chime.register([made(5), made(6), made(8), made(9)])
    assert [entry.gap for entry in given] == [False, False, True, False]
    assert [entry.gap for entry in chime.events().events] == [False, False, True, False]
    late = chime.register([made(7)])
    assert [entry.gap for entry in late] == [False]


def test_all_partitions_of_a_snapshot_are_alike_in_being_a_gap(chime: LakeChime) -> None:
    first = chime.register([made(5, partition=(day,)) for day in "ab"])
    assert [entry.gap for entry in first] == [False, False]
    assert [entry.gap for entry in chime.register([made(5, partition=("c",))])] == [False]
    later = chime.register([made(9, partition=(day,)) for day in "ab"])
    assert [entry.gap for entry in later] == [True, True]
    assert [
        entry.gap
        for entry in chime.register([made(9, partition=("c",)), made(10, partition=("c",))])
    ] == [True, False]


def test_another_number_of_partition_levels_is_refused_and_nothing_is_registered(
    chime: LakeChime,
) -> None:
    chime.register([made(1), made(2, partition=("a", 1))])
    with pytest.raises(
        InvalidEventError, match="has 1 levels, and the partitions of this table have 2"
    ):
        chime.register([made(3), made(4, partition=("a",))])
    with pytest.raises(InvalidEventError, match="levels"):
        chime.register(
            [made(1, table="new", partition=("a",)), made(2, table="new", partition=("a", "b"))]
        )
    assert len(chime.events().events) == 2
    chime.register([made(3), made(4, table="other", partition=("a",))])


def test_pages_bring_every_event_once_and_pass_what_does_not_match(chime: LakeChime) -> None:
    chime.register(
        [made(number, table=name) for number in range(1, 11) for name in ("a", "b", "c")]
    )
    read_events, after = [], 0
    while True:
        page = chime.events(["a", "c"], after=after, limit=7)
        read_events += page.events
        after = page.next_after
        if not page.more:
            break
    assert len(read_events) == 20
    assert seqs(read_events) == sorted(set(seqs(read_events)))
    assert after == page.head == chime.head()
    assert chime.events(["a"], after=after).events == ()
    assert chime.events(["nobody knows it"], after=3).next_after == chime.head()


def test_until_bounds_what_is_read(chime: LakeChime) -> None:
    places = seqs(chime.register([made(number) for number in range(1, 6)]))
    page = chime.events([TABLE], after=places[0], until=places[2])
    assert seqs(page.events) == places[1:3]
    assert (page.next_after, page.more) == (places[2], False)
    assert chime.events([TABLE], after=places[3], until=places[2]).next_after == places[3]


def test_partition_and_tags_filter(chime: LakeChime) -> None:
    chime.register(
        [
            made(1, partition=("a",), tags={"x": "1"}),
            made(2, partition=("a",), tags={"x": "1", "y": "2"}),
            made(3, partition=("b",), tags={"x": "1", "y": "2"}),
            made(4, partition=("a",)),
            made(4, table="other", partition=("a",), tags={"x": "1", "y": "2"}),
        ]
    )

    def snapshots(**asked: Any) -> list[str | None]:
        page = chime.events([TABLE], **asked)
        return [entry.event.snapshot_id for entry in page.events]

    assert snapshots(partition=["a"]) == ["1", "2", "4"]
    assert snapshots(tags={"x": "1"}) == ["1", "2", "3"]
    assert snapshots(tags={"y": "2", "x": "1"}) == ["2", "3"]
    assert snapshots(partition=["a"], tags={"x": "1", "y": "2"}) == ["2"]
    assert (
        snapshots(tags={"x": "2"}) == snapshots(partition=["c"]) == snapshots(partition=[1]) == []
    )
    assert len(chime.events(tags={"x": "1"}).events) == 4
    assert len(chime.events(partition=["a"]).events) == 4
    assert (
        len(chime.events([TABLE, "other"], tags={"x": "1", "y": "2"}, partition=["a"]).events) == 2
    )


def test_partitions_are_compared_as_json(chime: LakeChime) -> None:
    chime.register(
        [
            made(1, partition=(1,)),
            made(2, partition=("1",)),
            made(3, partition=(1.0,)),
            made(4, partition=({"b": 1, "a": 2},)),
        ]
    )
    assert [entry.event.snapshot_id for entry in chime.events(partition=[1]).events] == ["1"]
    assert [entry.event.snapshot_id for entry in chime.events(partition=["1"]).events] == ["2"]
    assert [
        entry.event.snapshot_id for entry in chime.events(partition=[{"a": 2, "b": 1}]).events
    ] == ["4"]


def test_find_answers_each_interest(chime: LakeChime) -> None:
    events = [
        made(1),
        made(2, tags={"x": "1"}),
        made(3, partition=("a",), tags={"x": "1", "y": "2"}),
        made(1, table="other"),
    ]
    first, second, third, other = seqs(chime.register(events))
    asked = [
        (Interest(tables=(TABLE,)), first),
        (Interest(tables=(TABLE,), after=first), second),
        (Interest(tables=("other", TABLE), after=third), other),
        (Interest(tables=(TABLE,), tags={"x": "1"}), second),
        (Interest(tables=(TABLE,), tags={"x": "1"}, after=second), third),
        (Interest(tables=(TABLE,), tags={"x": "1", "y": "2"}), third),
        (Interest(tables=(TABLE, "other"), partition=("a",)), third),
        (Interest(tables=(TABLE,), partition=("a",), tags={"x": "1", "y": "2"}), third),
        (Interest(tables=(TABLE,), partition=("a",), tags={"y": "1"}), None),
        (Interest(tables=(TABLE,), after=third), None),
        (Interest(tables=(("elsewhere", TABLE), "unknown")), None),
    ]
    answer = chime.find([interest for interest, _ in asked])
    assert list(answer.seqs) == [seq for _, seq in asked]
    assert answer.head == chime.head() == other
    assert chime.find([]).seqs == ()


def test_find_takes_a_thousand_interests(chime: LakeChime) -> None:
    chime.register([made(1, table=f"t{number}") for number in range(0, 1000, 2)])
    answer = chime.find([Interest(tables=(f"t{number}",)) for number in range(1000)])
    assert [seq is None for seq in answer.seqs] == [number % 2 == 1 for number in range(1000)]


def test_find_asks_for_many_tables_in_portions(chime: LakeChime) -> None:
    chime.register([made(1, table="t0"), made(1, table="t7")])
    many = tuple(f"t{number}" for number in range(7_000))
    answer = chime.find(
        [Interest(tables=many), Interest(tables=many, after=1), Interest(tables=many, after=2)]
    )
    assert answer.seqs == (1, 2, None)
    assert answer.head == 2


def test_tail_brings_what_is_new_for_everybody(chime: LakeChime) -> None:
    chime.register([made(1)])
    after = chime.head()
    new = chime.register([made(1, table="a"), made(1, table="b", cluster="elsewhere")])
    assert chime.tail(after).events == tuple(new)


def test_times_bound_a_search_and_never_fall(chime: LakeChime) -> None:
    first = chime.register([made(1)])[0].event.event_ts
    second = chime.register([made(2)])[0].event.event_ts
    assert first is not None
    assert second is not None
    assert first <= second
    assert seqs(chime.events_between(TABLE, 0, second + 1).events) == [1, 2]
    assert seqs(chime.events_between(TABLE, 0, first).events) == []
    assert [
        entry.event.event_ts for entry in chime.events_between(TABLE, second, second + 1).events
    ][-1] == second
    assert chime.events_between(TABLE, second + 1, second + 1).events == ()
    assert chime.events_between("other", 0, second + 1).events == ()


def test_no_later_event_gets_a_time_that_a_search_has_covered(chime: LakeChime) -> None:
    (given,) = chime.register([made(1)])
    assert given.event.event_ts is not None
    end = given.event.event_ts + 5
    time.sleep(0.02)
    covered = chime.events_between(TABLE, 0, end)
    (later,) = chime.register([made(2)])
    assert later.event.event_ts is not None
    assert later.event.event_ts >= end
    assert chime.events_between(TABLE, 0, end) == covered
    assert covered.covered_until_ts == end


def test_a_range_reports_up_to_which_time_it_is_final(chime: LakeChime) -> None:
    (given,) = chime.register([made(1)])
    now = given.event.event_ts or 0
    ahead = now + 3_600_000
    page = chime.events_between(TABLE, 0, ahead)
    assert seqs(page.events) == [1]
    assert now <= page.covered_until_ts < ahead
    (later,) = chime.register([made(2)])
    assert (later.event.event_ts or 0) >= page.covered_until_ts
    time.sleep(0.005)
    past = chime.events_between(TABLE, 0, page.covered_until_ts)
    assert past.covered_until_ts == page.covered_until_ts
    assert past.events == tuple(
        entry for entry in page.events if (entry.event.event_ts or 0) < page.covered_until_ts
    )


def test_watermarks_move_only_from_where_they_were_read(chime: LakeChime) -> None:
    chime.register([made(number) for number in range(1, 7)])
    assert chime.watermark("report", "events") is None
    first = chime.put_watermark("report", "events", 3, expected=None)
    with pytest.raises(ConflictError, match="none was expected"):
        chime.put_watermark("report", "events", 4, expected=None)
    second = chime.put_watermark("report", "events", 5, expected=first.revision)
    assert second.revision > first.revision
    with pytest.raises(ConflictError, match="another process changed the watermark"):
        chime.put_watermark("report", "events", 6, expected=first.revision)
    assert chime.watermark("report", "events") == second
    with pytest.raises(ConflictError):
        chime.put_watermark("nobody", "events", 1, expected=7)


def test_watermarks_hold_json_by_key(chime: LakeChime) -> None:
    values = {
        "": 1,
        "events": 0,
        "versions/shop": {"version": 7, "at": ["x", None, 1.5]},
        "text": "ü\x00",
        "no": False,
    }
    for key, value in values.items():
        chime.put_watermark("report", key, value, expected=None)
    chime.put_watermark("other", "events", 0, expected=None)
    assert {key: mark.value for key, mark in chime.watermarks("report").items()} == values
    assert chime.watermarks("nobody") == {}
    with pytest.raises(InvalidEventError, match="may take 65,536"):
        chime.put_watermark("report", "big", "x" * 70_000, expected=None)
    with pytest.raises(InvalidEventError, match="delete the watermark instead"):
        chime.put_watermark("report", "big", None, expected=None)


@pytest.mark.parametrize("value", ["3", 2.5, True, -1, None, {}])
def test_the_watermark_of_seen_events_must_be_a_seq(chime: LakeChime, value: JsonValue) -> None:
    with pytest.raises(InvalidEventError, match="the value of a watermark 'events'"):
        chime.put_watermark("report", "events", value, expected=None)
    assert chime.consumers() == []


def test_a_deleted_watermark_never_has_an_old_revision_again(chime: LakeChime) -> None:
    chime.register([made(number) for number in range(1, 5)])
    first = chime.put_watermark("report", "events", 3, expected=None)
    with pytest.raises(ConflictError):
        chime.delete_watermark("report", "events", expected=first.revision + 1)
    chime.delete_watermark("report", "events", expected=first.revision)
    assert chime.watermark("report", "events") is None
    assert chime.watermarks("report") == {}
    with pytest.raises(NotFoundError, match="has no watermark"):
        chime.delete_watermark("report", "events", expected=first.revision)
    with pytest.raises(ConflictError):
        chime.put_watermark("report", "events", 4, expected=first.revision)
    again = chime.put_watermark("report", "events", 4, expected=None)
    assert again.revision > first.revision + 1


def test_one_of_concurrent_moves_of_a_watermark_succeeds(chime: LakeChime) -> None:
    chime.register([made(number) for number in range(1, 4)])
    start = chime.put_watermark("report", "events", 0, expected=None)
    barrier = threading.Barrier(4)

    def move(number: int) -> bool:
        barrier.wait()
        try:
            chime.put_watermark("report", "events", number, expected=start.revision)
        except ConflictError:
            return False
        return True

    with ThreadPoolExecutor(4) as pool:
        assert sum(pool.map(move, range(4))) == 1


def test_the_outbox_moves_with_the_events_or_not_at_all(chime: LakeChime) -> None:
    assert chime.table_state(TABLE) is None
    chime.register([made(1)], outbox=Outbox(table=TABLE, position={"table_id": "x", "version": 1}))
    state = chime.table_state(TABLE)
    assert state is not None
    assert (state.position, state.last_snapshot_id, state.last_seq, state.depth) == (
        {"table_id": "x", "version": 1},
        "1",
        1,
        None,
    )
    with pytest.raises(ConflictError, match="moved the position"):
        chime.register(
            [made(2)], outbox=Outbox(table=TABLE, position={"table_id": "x", "version": 2})
        )
    assert len(chime.events().events) == 1
    chime.register(
        [made(2, partition=("a",))],
        outbox=Outbox(table=TABLE, position=7, expected={"version": 1, "table_id": "x"}),
    )
    chime.register([], outbox=Outbox(table=TABLE, position=8, expected=7))
    state = chime.table_state(TABLE)
    assert state is not None
    assert (state.position, state.last_snapshot_id, state.depth) == (8, "2", 1)


def test_one_of_concurrent_producers_of_a_log_succeeds(chime: LakeChime) -> None:
    barrier = threading.Barrier(4)

    def register(number: int) -> bool:
        barrier.wait()
        try:
            chime.register(
                [made(1, tags={"by": str(number)})], outbox=Outbox(table=TABLE, position=1)
            )
        except ConflictError:
            return False
        return True

    with ThreadPoolExecutor(4) as pool:
        assert sum(pool.map(register, range(4))) == 1
    assert len(chime.events().events) == 1


def test_a_step_that_is_registered_again_gets_the_same_answer(chime: LakeChime) -> None:
    """Register a step again, as if its first answer had been lost."""
    events = [made(1), made(2, tags={"x": "1"}), made(2)]
    outbox = Outbox(table=TABLE, position={"at": 2}, seen={"dt=1": [1]})
    first = chime.register(events, outbox=outbox)
    again = chime.register(events, outbox=outbox)
    assert [entry.event for entry in again] == [entry.event for entry in first]
    assert all(entry.duplicate for entry in again)
    for others, outbox_id in (
        ([made(1)], outbox),
        (events, Outbox(table=TABLE, position={"at": 2}, expected={"at": 1})),
    ):
        with pytest.raises(ConflictError, match="moved the position"):
            chime.register(others, outbox=outbox_id)
    following = Outbox(table=TABLE, position={"at": 3}, expected={"at": 2})
    assert chime.register([], outbox=following) == chime.register([], outbox=following) == []
    with pytest.raises(ConflictError, match="moved the position"):
        chime.register(events, outbox=outbox)


def test_seen_values_of_a_producer_are_stored_by_item(chime: LakeChime) -> None:
    assert chime.seen(TABLE) == {}
    chime.register(
        [made(1)],
        outbox=Outbox(
            table=TABLE, position=1, seen={"dt=1": [1, "a"], "dt=2": None, "ü'\"": {"x": "ü"}}
        ),
    )
    chime.register([], outbox=Outbox(table=TABLE, position=2, expected=1, seen={"dt=1": 7}))
    with pytest.raises(ConflictError):
        chime.register([], outbox=Outbox(table=TABLE, position=3, expected=1, seen={"dt=1": 8}))
    assert chime.seen(TABLE) == {"dt=1": 7, "dt=2": None, "ü'\"": {"x": "ü"}}
    assert chime.seen("other") == chime.seen(TABLE, "eu") == {}


def test_more_items_than_a_page_are_seen(chime: LakeChime) -> None:
    first = {f"dt={number}": number for number in range(9_000)}
    second = {f"dt={number}": number for number in range(9_000, 18_000)}
    for number, portion in enumerate((first, second)):
        outbox = Outbox(table=TABLE, position=number + 1, expected=number or None, seen=portion)
        chime.register([], outbox=outbox)
    assert chime.seen(TABLE) == first | second


def test_a_table_without_events_has_a_position_at_most(chime: LakeChime) -> None:
    chime.register([], outbox=Outbox(table="empty", position=[1], cluster="eu"))
    state = chime.table_state("empty", "eu")
    assert state is not None
    assert (state.position, state.last_seq, state.last_snapshot_id) == ([1], None, None)
    assert chime.table_state("empty") is None


def test_old_events_expire_except_the_newest_of_each_table(chime: LakeChime) -> None:
    chime.register([made(number, tags={"x": "1"}) for number in range(1, 6)])
    (last,) = chime.register([made(1, table="other")])
    assert last.event.event_ts is not None
    assert chime.expire(0) == 0
    assert chime.expire(last.event.event_ts + 1) == 4
    page = chime.events()
    assert [(entry.event.table, entry.event.snapshot_id) for entry in page.events] == [
        (TABLE, "5"),
        ("other", "1"),
    ]
    assert page.expired == 4, "of all tables the last that went"
    assert chime.events([TABLE], after=4).expired == 4
    assert chime.events(["other"]).expired == chime.events(["unknown"]).expired == 0, (
        "nothing of this table went"
    )
    assert [entry.event.snapshot_id for entry in chime.events([TABLE], tags={"x": "1"}).events] == [
        "5"
    ]
    (after,) = chime.register([made(6)])
    assert not after.gap
    assert (after.event.seq or 0) > page.head


def test_events_that_a_consumer_has_not_passed_do_not_expire(chime: LakeChime) -> None:
    places = seqs(chime.register([made(number) for number in range(1, 6)]))
    chime.put_watermark("slow", "events", places[1], expected=None)
    chime.put_watermark("fast", "events", places[4], expected=None)
    chime.put_watermark("other kind", "version", 1, expected=None)
    assert chime.expire(1 << 60) == 2
    assert seqs(chime.events([TABLE], after=places[1]).events) == places[2:]
    assert chime.events([TABLE], after=places[1]).expired == places[1]
    assert chime.expire(1 << 60, keep_unseen=False) == 2


def test_consumers_are_listed_from_the_furthest_behind_on(chime: LakeChime) -> None:
    assert chime.consumers() == []
    chime.register([made(number) for number in range(1, 11)])
    for consumer, value in (("fast", 10), ("slow", 9), ("slower", 2)):
        chime.put_watermark(consumer, "events", value, expected=None)
    chime.put_watermark("slower", "version", 1, expected=None)
    assert [(consumer.consumer, consumer.seq) for consumer in chime.consumers()] == [
        ("slower", 2),
        ("slow", 9),
        ("fast", 10),
    ]
    assert [consumer.consumer for consumer in chime.consumers(1)] == ["slower"]
    with pytest.raises(InvalidEventError, match="limit=0 is not from 1 to"):
        chime.consumers(0)


def test_forgetting_a_consumer_deletes_its_watermarks(chime: LakeChime) -> None:
    chime.register([made(1), made(2)])
    chime.put_watermark("gone", "events", 2, expected=None)
    chime.put_watermark("gone", "claims", {}, expected=None)
    assert chime.forget("gone") == ["claims", "events"]
    assert chime.consumers() == []
    with pytest.raises(NotFoundError, match="consumer gone has no watermark"):
        chime.forget("gone")


def test_hostile_names_are_stored_and_found_like_others(chime: LakeChime) -> None:
    event = made(1, table=HOSTILE, partition=(HOSTILE,), tags={HOSTILE: HOSTILE}, cluster=HOSTILE)
    chime.register([event])
    assert (
        len(chime.events([(HOSTILE, HOSTILE)], partition=[HOSTILE], tags={HOSTILE: HOSTILE}).events)
        == 1
    )
    assert chime.find([Interest(tables=((HOSTILE, HOSTILE),), tags={HOSTILE: HOSTILE})]).seqs == (
        1,
    )
    chime.put_watermark(HOSTILE, HOSTILE, HOSTILE, expected=None)
    assert chime.watermarks(HOSTILE)[HOSTILE].value == HOSTILE
    assert chime.table_state(HOSTILE, HOSTILE) is not None


@pytest.mark.parametrize(
    "ask",
    [
        lambda chime: chime.events(limit=0),
        lambda chime: chime.events(limit=1_000_000),
        lambda chime: chime.events("shop.orders"),
        lambda chime: chime.events(["a\x00b"]),
        lambda chime: chime.events([""]),
        lambda chime: chime.events(["x" * 600]),
        lambda chime: chime.events(after=-1),
        lambda chime: chime.events(after=1 << 64),
        lambda chime: chime.events(until=1 << 64),
        lambda chime: chime.events(partition=[float("nan")]),
        lambda chime: chime.events(partition="abc"),
        lambda chime: chime.events(tags={"x": "y" * 1_000_000}),
        lambda chime: chime.events_between("t", 2, 1),
        lambda chime: chime.events_between("t", 1, 1 << 64),
        lambda chime: chime.find([Interest(tables=())]),
        lambda chime: chime.register([], outbox=Outbox(table="t", position="x" * 70_000)),
        lambda chime: chime.register([], outbox=Outbox(table="t", position=1, seen={"": 1})),
        lambda chime: chime.register([], outbox=Outbox(table="t", position=1, seen={"\udcff": 1})),
        lambda chime: chime.register(
            [], outbox=Outbox(table="t", position=1, seen={"a": "x" * 2_000})
        ),
        lambda chime: chime.register([], outbox=Outbox(table="t", position=float("nan"))),
        lambda chime: chime.register([], outbox=Outbox(table="t", position="\ud800")),
        lambda chime: chime.register([], outbox=Outbox(table="t", position=1, expected="\udc00")),
        lambda chime: chime.register(
            [], outbox=Outbox(table="t", position=1, seen={"a": "\ud800"})
        ),
        lambda chime: chime.register([], outbox=Outbox(table="t\ud800", position=1)),
        lambda chime: chime.register([made(1, tags={"\ud800": "a"})]),
        lambda chime: chime.register([made(1, tags={"a": "\ud800"})]),
        lambda chime: chime.register([made(1, partition=({"a": "\ud800"},))]),
        lambda chime: chime.register([made(1, cluster="\ud800")]),
        lambda chime: chime.events(tags={"a": "\ud800"}),
        lambda chime: chime.events(partition=["\ud800"]),
        lambda chime: chime.find([Interest(tables=("t",), tags={"\ud800": "a"})]),
        lambda chime: chime.events_between("\ud800", 0, 1),
        lambda chime: chime.put_watermark("c", "k", "\ud800", expected=None),
        lambda chime: chime.put_watermark("c", "k", {"a": ["x", "\ud83d"]}, expected=None),
        lambda chime: chime.put_watermark("c", "k", {"\ud800": 1}, expected=None),
        lambda chime: chime.put_watermark("\ud800", "k", 1, expected=None),
        lambda chime: chime.put_watermark("c", "\ud800", 1, expected=None),
        lambda chime: chime.delete_watermark("c", "\ud800", expected=1),
        lambda chime: chime.watermarks("\ud800"),
        lambda chime: chime.register([made(1, table=CJK_512)]),
        lambda chime: chime.register([made(1, cluster=CJK_512)]),
        lambda chime: chime.register([], outbox=Outbox(table=CJK_512, position=1)),
        lambda chime: chime.events([CJK_512]),
        lambda chime: chime.put_watermark(CJK_512, "", 1, expected=None),
        lambda chime: chime.put_watermark("c", CJK_512, 1, expected=None),
        lambda chime: chime.find([Interest(tables=("t",), after=-1)]),
        lambda chime: chime.watermark(""),
        lambda chime: chime.watermark("a\nb"),
        lambda chime: chime.put_watermark("c", "k", float("inf"), expected=None),
        lambda chime: chime.put_watermark("c", "k", 1, expected=1 << 70),
        lambda chime: chime.table_state("\ud800"),
        lambda chime: chime.expire(-1),
        lambda chime: chime.expire(1 << 64),
    ],
)
def test_invalid_arguments_raise_invalid_event_error(empty_chime: LakeChime, ask: object) -> None:
    with pytest.raises(InvalidEventError):
        ask(empty_chime)  # type: ignore[operator]


def test_concurrent_registrations_store_each_event_once(chime_address: dict[str, str]) -> None:
    """Threads with clients of their own; the same events come from two sides."""

    def register(side: int) -> None:
        with LakeChime.open(**chime_address) as client:
            for number in range(1, 26):
                client.register(
                    [made(number, table=f"t{side // 2}"), made(number, table=f"own{side}")]
                )

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(register, range(4)))
    with LakeChime.open(**chime_address) as client:
        stored = client.events(limit=10_000).events
        assert (
            len(stored)
            == len({(entry.event.table, entry.event.snapshot_id) for entry in stored})
            == 25 * 6
        )
        assert seqs(stored) == sorted(set(seqs(stored)))
        for table in {entry.event.table for entry in stored}:
            assert [entry.event.snapshot_id for entry in stored if entry.event.table == table] == [
                str(number) for number in range(1, 26)
            ]
            assert not [entry for entry in stored if entry.event.table == table and entry.gap]


def test_a_check_counts_the_events(chime: LakeChime) -> None:
    chime.register([made(1), made(2)])
    assert "2 events" in chime.check()
    assert "head 2, 0 in the inbox" in chime.check()


def test_the_longest_names_fit_every_index(chime: LakeChime) -> None:
    """Use names of four bytes a character, which a database cannot compress."""
    numbers = random.Random(3)
    names = [
        "".join(map(chr, numbers.choices(range(0x20000, 0x2A000), k=MAX_NAME_BYTES // 4)))
        for _ in range(2)
    ]
    event = made(1, cluster=names[0], table=names[1])
    outbox = Outbox(cluster=names[0], table=names[1], position=1, seen={"dt=1": 1})
    chime.register([event], outbox=outbox)
    chime.put_watermark(names[0], names[1], 1, expected=None)
    assert chime.events([(names[0], names[1])]).events[0].event.table == names[1]
    assert chime.seen(names[1], names[0]) == {"dt=1": 1}
    assert chime.watermarks(names[0])[names[1]].value == 1


def test_a_refused_name_too_long_for_an_index_blocks_no_other_event(chime: LakeChime) -> None:
    with pytest.raises(InvalidEventError, match="takes 1,536 bytes in UTF-8, and a name may take"):
        chime.register([made(1, cluster=CJK_512, table=CJK_512)])
    chime.register([made(1)])
    assert chime.head() == 1
    assert chime.find([Interest(tables=(TABLE,))]).seqs == (1,)
    assert len(chime.events().events) == 1
    assert chime.expire(1 << 60) == 0


def test_a_watermark_beyond_the_head_is_refused(chime: LakeChime) -> None:
    chime.register([made(1), made(2)])
    with pytest.raises(InvalidEventError, match="would be at 3, and the newest event is 2"):
        chime.put_watermark("report", "events", 3, expected=None)
    assert chime.watermark("report", "events") is None
    mark = chime.put_watermark("report", "events", 2, expected=None)
    with pytest.raises(InvalidEventError, match="would be at 9, and the newest event is 2"):
        chime.put_watermark("report", "events", 9, expected=mark.revision)


def test_a_repeated_step_moves_or_deletes_a_watermark_once(
    chime: LakeChime,
) -> None:
    first = chime.put_watermark("report", "at", 1, expected=None, step="one")
    assert chime.put_watermark("report", "at", 1, expected=None, step="one") == first
    second = chime.put_watermark("report", "at", 2, expected=first.revision, step="two")
    assert chime.put_watermark("report", "at", 2, expected=first.revision, step="two") == second
    with pytest.raises(ConflictError):  # another process wanted the same, and came second
        chime.put_watermark("report", "at", 2, expected=first.revision, step="another")
    with pytest.raises(ConflictError):
        chime.put_watermark("report", "at", 1, expected=None, step="one")
    chime.delete_watermark("report", "at", expected=second.revision, step="three")
    chime.delete_watermark("report", "at", expected=second.revision, step="three")
    with pytest.raises(NotFoundError):
        chime.delete_watermark("report", "at", expected=second.revision, step="four")
    with pytest.raises(ConflictError):
        chime.put_watermark("report", "at", 2, expected=second.revision, step="three")


def test_a_trigger_of_an_expired_partition_raises_expired_error(chime: LakeChime) -> None:
    days = [made(number, partition=(f"day {number}",)) for number in range(1, 4)]
    chime.register([*days, made(4, partition=("day 1",), tags={"x": "1"}), made(5)])
    chime.expire(1 << 60)
    gone = PartitionTrigger(table=TABLE, partition=("day 1",))
    with pytest.raises(ExpiredError, match="was registered, and its events up to seq 4 have"):
        gone.evaluate(chime, 1 << 60)
    assert chime.events([TABLE], partition=["day 1"]).expired == 4
    assert chime.events([TABLE], partition=["day 2"]).expired == 2
    assert chime.events([TABLE], partition=["day 9"]).expired == 0
    never = PartitionTrigger(table=TABLE, partition=("day 9",))
    assert never.evaluate(chime, 1 << 60) == ()
    tagged = PartitionTrigger(table=TABLE, partition=("day 2",), tags={"x": "2"})
    look = tagged.look(chime, 1 << 60)
    assert (look.events, look.expired_seq) == ((), 2)
    assert "may have had the tags" in (look.warning(tagged.interest) or "")
    chime.register([made(6, partition=("day 1",))])
    assert len(gone.evaluate(chime, 1 << 60)) == 1


def test_a_range_with_expired_events_reports_from_which_time_it_is_complete(
    chime: LakeChime,
) -> None:
    times = []
    for number in range(1, 5):
        (given,) = chime.register([made(number)])
        times.append(given.event.event_ts or 0)
        time.sleep(0.003)
    chime.register([made(1, table="other")])
    whole = chime.events_between(TABLE, 0, times[3])
    assert (whole.covered_from_ts, len(whole.events)) == (0, 3)
    chime.expire(times[2])
    page = chime.events_between(TABLE, times[0], times[3])
    assert seqs(page.events) == [3]
    assert page.covered_from_ts == times[1] + 1
    assert chime.events_between(TABLE, times[1] + 1, times[3]).covered_from_ts == times[1] + 1
    assert chime.events_between(TABLE, times[2], times[3]).covered_from_ts == times[2]
    assert chime.events_between("other", 0, times[3]).covered_from_ts == 0


def test_a_trigger_of_more_tables_than_a_request_takes_fires(chime: LakeChime) -> None:
    names = [f"t{number}" for number in range(10_001)]
    trigger = SnapshotTrigger(tables=names)
    assert trigger.evaluate(chime, 0) is None
    chime.register([made(1, table=names[0]), made(1, table=names[-1]), made(2, table=names[0])])
    fired = trigger.evaluate(chime, 0)
    assert fired is not None
    assert [event.table for event in fired.events] == [names[0], names[-1], names[0]]
    assert chime.find(trigger.interests(0)).seqs == (1,)
    assert seqs(chime.events(names, limit=2).events) == [1, 2]
    page = chime.events(names, after=2, limit=2)
    assert (seqs(page.events), page.more, page.next_after) == ([3], False, 3)
    each = SnapshotTrigger(tables=names, mode="all")
    look = each.look(chime, 0)
    assert (look.fired, look.covered_seq) == (None, 0)
