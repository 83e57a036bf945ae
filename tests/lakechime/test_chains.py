"""Chains of snapshots: the range of an incremental read, and its problems."""

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakechime import ChainError, DataChangeEvent, InvalidEventError, chain
from lakechime.chains import ProblemKind
from tests.lakechime.build import TABLE, hive, made


def kinds(events: list[DataChangeEvent]) -> list[ProblemKind]:
    return [problem.kind for problem in chain(events, on_problems="report").problems]


@given(st.integers(1, 12), st.integers(1, 12), st.randoms())
def test_order_of_events_does_not_change_their_chain(
    first: int, many: int, dice: random.Random
) -> None:
    events = [
        made(number, partition=(part,))
        for number in range(first, first + many)
        for part in range(dice.randrange(1, 3))
    ]
    dice.shuffle(events)
    chained = chain(events)
    assert (chained.table, chained.start, chained.end) == (
        TABLE,
        str(first - 1) if first > 1 else None,
        str(first + many - 1),
    )
    assert chained.snapshots == tuple(str(number) for number in range(first, first + many))


@given(st.sets(st.integers(2, 14), min_size=1, max_size=5))
def test_every_missing_snapshot_is_named(missing: set[int]) -> None:
    events = [made(number) for number in range(1, 16) if number not in missing]
    named = [problem.snapshots[0] for problem in chain(events, on_problems="report").problems]
    assert named == [str(number) for number in sorted(missing) if number + 1 not in missing]
    with pytest.raises(ChainError, match="is not among the events"):
        chain(events)


def test_two_successors_are_a_fork() -> None:
    events = [made(1), made(2), made(3, before=1), made(4, before=3)]
    assert kinds(events) == [ProblemKind.FORK]
    with pytest.raises(ChainError, match="2 and 3 both come after 1; read the whole table instead"):
        chain(events)
    assert kinds([made(2), made(3, before=1)]) == [ProblemKind.FORK]


@pytest.mark.parametrize("tag", ["opal.restored_version", "restored_snapshot_id"])
def test_restore_is_a_problem_of_a_chain(tag: str) -> None:
    events = [made(1), made(2), made(3, tags={tag: "1"})]
    assert kinds(events) == [ProblemKind.RESTORE]
    with pytest.raises(ChainError, match="snapshot 3 restored 1"):
        chain(events)


def test_a_snapshot_that_is_current_again_is_a_restore() -> None:
    """Roll back to 1, as Iceberg does: the next snapshot follows an older one."""
    events = [made(1), made(2), made(3, before=1)]
    assert ProblemKind.FORK in kinds(events)


def test_table_created_again_is_a_problem_of_a_chain() -> None:
    assert kinds([made(1), made(2), made(7, before=None)]) == [ProblemKind.RECREATED]


def test_contradicting_events_are_a_problem_of_a_chain() -> None:
    assert kinds([made(1), made(2), made(2, before=None, partition=("a",))]) == [
        ProblemKind.CONTRADICTION
    ]


def test_circle_of_snapshots_is_a_problem_of_a_chain() -> None:
    assert ProblemKind.CIRCLE in kinds([made(1, before=2), made(2, before=1)])
    assert ProblemKind.CIRCLE in kinds([made(1), made(5, before=6), made(6, before=5)])


def test_events_without_snapshots_make_no_chain() -> None:
    with pytest.raises(ChainError, match=r"no event of .* names a snapshot"):
        chain([hive(("a",))])
    assert kinds([made(1), hive(("a",))]) == [ProblemKind.NO_SNAPSHOT]


def test_chain_of_no_events_or_of_two_tables_is_refused() -> None:
    with pytest.raises(InvalidEventError, match="got no events"):
        chain([])
    with pytest.raises(InvalidEventError, match="events of 2 tables"):
        chain([made(1), made(1, table="other")])
    with pytest.raises(InvalidEventError, match="events of 2 tables"):
        chain([made(1), replace(made(1), cluster="other")])


@given(
    st.lists(st.tuples(st.integers(1, 6), st.none() | st.integers(1, 6)), min_size=1, max_size=8)
)
def test_chain_has_problems_unless_each_snapshot_follows_the_one_before(
    links: list[tuple[int, int | None]],
) -> None:
    """Check random events: without a problem each snapshot follows the one before."""
    events = [made(number, before=before) for number, before in links if number != before]
    if not events:
        return
    chained = chain(events, on_problems="report")
    assert sorted(chained.snapshots) == sorted(
        {event.snapshot_id for event in events if event.snapshot_id}
    )
    before = {event.snapshot_id: event.prev_snapshot_id for event in events}
    linked = [before[snapshot] for snapshot in chained.snapshots] == [
        chained.start,
        *chained.snapshots[:-1],
    ]
    consistent = all(before[event.snapshot_id] == event.prev_snapshot_id for event in events)
    assert (not chained.problems) == (
        linked and consistent and chained.start not in chained.snapshots
    )
