"""What follows from two looks: stalls and arrivals."""

import pytest

from opal_stream.kafka.topics import Partition
from opal_stream.supervise.observation import Observation, Stalls, arrivals

A, B = (Partition(topic="orders", number=number) for number in range(2))


def observed(at_s: float, **places: tuple[int, int]) -> Observation:
    found = {{"a": A, "b": B}[name]: place for name, place in places.items()}
    positions = {part: position for part, (position, _) in found.items()}
    return Observation(at_s=at_s, positions=positions, ends={part: end for part, (_, end) in found.items()})


def test_a_position_that_does_not_move_though_there_is_more_is_a_stall() -> None:
    stalls = Stalls()
    for at_s, position in ((0, 5), (10, 7), (20, 7), (30, 7)):
        stalls.see(observed(at_s, a=(position, 9), b=(4, 4)))  # nothing waits in the other one
    assert stalls.stalled([A, B], 30, 20) == [A]
    assert stalls.stalled([A, B], 30, 21) == []
    assert stalls.stalled([B], 30, 0.1) == []
    stalls.see(observed(40, a=(8, 9)))
    assert stalls.stalled([A], 40, 1) == []


def test_arrivals_are_of_partitions_that_were_there_before() -> None:
    before, now = observed(0, a=(0, 100)), observed(10, a=(50, 600), b=(0, 1000))
    assert arrivals(before, now) == pytest.approx({A: 50})
    assert arrivals(now, observed(20, a=(0, 500), b=(0, 1000))) == {A: 0, B: 0}  # a topic that was made anew
