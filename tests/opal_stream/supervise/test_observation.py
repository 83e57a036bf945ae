"""Stalls and arrivals, which follow from two observations."""

import pytest

from opal_stream.kafka.topics import Partition
from opal_stream.supervise.observation import CommitStall, Observation, Stalls, arrival_rates

A, B = (Partition(topic="orders", number=number) for number in range(2))


def observed(
    at_s: float,
    *,
    committed: int | None = None,
    is_held_back: bool = False,
    **places: tuple[int, int],
) -> Observation:
    actual = {{"a": A, "b": B}[name]: index for name, index in places.items()}
    return Observation(
        at_s=at_s,
        positions={part: position for part, (position, _) in actual.items()},
        ends={part: end for part, (_, end) in actual.items()},
        committed=None if committed is None else dict.fromkeys(actual, committed),
        is_held_back=is_held_back,
    )


def test_a_position_that_does_not_move_though_there_is_more_is_a_stall() -> None:
    stalls = Stalls()
    for at_s, position in ((0, 5), (10, 7), (20, 7), (30, 7)):
        stalls.see(observed(at_s, a=(position, 9), b=(4, 4)))  # nothing waits in the other one
    assert stalls.stalled([A, B], 30, 20) == [A]
    assert stalls.stalled([A, B], 30, 21) == []
    assert stalls.stalled([B], 30, 0.1) == []
    stalls.see(observed(40, a=(8, 9)))
    assert stalls.stalled([A], 40, 1) == []


def test_a_process_that_waits_for_the_committer_does_not_stall() -> None:
    stalls = Stalls()
    for at_s, is_held_back in ((0, False), (10, True), (20, True), (30, False)):
        stalls.see(observed(at_s, a=(5, 9), is_held_back=is_held_back))
    assert stalls.stalled([A], 30, 10) == [A]
    assert stalls.stalled([A], 30, 11) == []


def test_a_committer_stalls_while_files_wait_and_nothing_is_committed() -> None:
    stall = CommitStall()
    assert stall.duration_s(100) == 0
    for at_s in (0, 100):
        stall.see(observed(at_s, a=(5, 99), committed=5))
    assert stall.duration_s(900) == 0  # none waits, though Kafka is away and nobody looks again
    for at_s, position in ((1000, 7), (1010, 9)):
        stall.see(observed(at_s, a=(position, 99), committed=5))
    assert stall.duration_s(1020) == 20  # since the first look at which one waited
    stall.see(observed(1030, a=(9, 99), committed=7))
    assert stall.duration_s(1030) == 0
    assert not observed(0, a=(9, 99)).has_gathered  # commits of their own


def test_arrivals_count_only_partitions_of_both_observations() -> None:
    before, now = observed(0, a=(0, 100)), observed(10, a=(50, 600), b=(0, 1000))
    assert arrival_rates(before, now) == pytest.approx({A: 50})
    assert arrival_rates(now, observed(20, a=(0, 500), b=(0, 1000))) == {
        A: 0,
        B: 0,
    }  # a topic that was made anew
