"""Spreads by load: even, whole, and with few moves."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opal_lake.errors import InvalidInputError
from opal_stream.kafka.topics import Partition
from opal_stream.plan.spread import EVEN_ENOUGH, Spread, plan_spread, processes_for, spread_by_count


def loads(*values: float) -> dict[Partition, float]:
    return {Partition(topic="orders", number=number): value for number, value in enumerate(values)}


def numbers(spread: Spread) -> list[list[int]]:
    return [numbers_of(share) for share in spread.shares]


def numbers_of(share: frozenset[Partition]) -> list[int]:
    return sorted(part.number for part in share)


LOADS = st.lists(st.floats(0, 1e6), min_size=1, max_size=24).map(lambda values: loads(*values))


@given(LOADS, st.integers(1, 8), st.integers(1, 8))
def test_each_partition_is_in_one_share_and_the_spread_is_fair(
    sizes: dict[Partition, float], before: int, processes: int
) -> None:
    first = plan_spread(sizes, processes)
    assert sorted(part for share in first.shares for part in share) == sorted(sizes)
    assert max(first.loads) <= sum(sizes.values()) / processes + max(sizes.values()) + 1e-6
    again = plan_spread(sizes, processes, plan_spread(sizes, before).shares)
    assert sorted(part for share in again.shares for part in share) == sorted(sizes)


def test_large_partitions_are_apart() -> None:
    assert numbers(plan_spread(loads(8, 7, 6, 5, 4), 2)) == [[0, 3, 4], [1, 2]]
    assert plan_spread(loads(0, 0, 0, 0), 2).skew == 1.0
    assert numbers(plan_spread(loads(0, 0, 0, 0), 2)) == [[0, 2], [1, 3]]  # nothing known: by count


def test_an_even_enough_spread_stays_without_restarts() -> None:
    first = plan_spread(loads(10, 10, 10, 10), 2)
    again = plan_spread(loads(10, 11, 10, 9), 2, first.shares)
    assert (again.shares, again.changed, again.moved) == (first.shares, (), ())


def test_a_change_restarts_only_the_processes_whose_partitions_move() -> None:
    first = plan_spread(loads(*[10.0] * 12), 4)
    heavier = loads(*[10.0] * 12)
    first_of_one = min(first.shares[0])
    heavier[first_of_one] = 40.0
    again = plan_spread(heavier, 4, first.shares)
    assert max(again.loads) < sum(heavier[part] for part in first.shares[0])
    assert len(again.moved) <= 2
    moved = {number for number in range(4) if first.shares[number] != again.shares[number]}
    assert set(again.changed) == moved
    assert len(moved) < 4


def test_new_partitions_go_where_there_is_room() -> None:
    first = plan_spread(loads(10, 4), 2)
    again = plan_spread(loads(10, 4, 5), 2, first.shares)
    assert (numbers(again), again.changed, again.moved) == ([[0], [1, 2]], (1,), ())


def test_a_plan_adapts_to_fewer_processes_and_deleted_partitions() -> None:
    first = plan_spread(loads(*[5.0] * 6), 3)
    fewer = plan_spread(loads(*[5.0] * 6), 2, first.shares)
    assert sorted(map(len, fewer.shares)) == [3, 3]
    assert all(
        first.shares[number] <= fewer.shares[number] for number in range(2)
    )  # only those of the third move
    more = plan_spread(loads(*[5.0] * 6), 6, first.shares)
    assert sorted(map(len, more.shares)) == [1] * 6
    gone = plan_spread(loads(5, 5, 5), 3, first.shares)
    assert sorted(part for share in gone.shares for part in share) == sorted(loads(5, 5, 5))


def test_capacity_gives_the_number_of_processes() -> None:
    assert processes_for(loads(*[10.0] * 10), 25) == 5  # two each: three would be too many
    assert processes_for(loads(100, 1, 1), 10) == 2  # one is larger than a process, and has its own
    assert processes_for(loads(1, 1), 10) == 1
    with pytest.raises(InvalidInputError, match="capacity must be more than 0"):
        processes_for(loads(1), 0)
    with pytest.raises(InvalidInputError, match="at least 1"):
        plan_spread(loads(1), 0)


def test_a_spread_by_count_ignores_loads() -> None:
    by_count = spread_by_count(loads(100, 1, 100, 1), 2)
    assert by_count.loads == (200, 2)
    assert plan_spread(loads(100, 1, 100, 1), 2).skew < EVEN_ENOUGH < by_count.skew
