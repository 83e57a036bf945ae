"""Loads of the coming hours, also of partitions that are new, by numbers and by sizes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opal_stream.kafka.topics import Partition
from opal_stream.plan.load import MESSAGE_BYTES, predict_loads, weighted_loads
from opal_stream.traffic.hours import Traffic, Volume


def part(number: int, topic: str = "orders") -> Partition:
    return Partition(topic=topic, number=number)


def test_loads_are_means_of_the_coming_hours_and_new_partitions_are_average() -> None:
    day = Traffic(hour=0)
    for hour in range(168):
        day.observe(hour, Volume(3600 if hour % 24 < 12 else 0))
    quiet = Traffic(hour=0)
    wanted = [part(0), part(1), part(2), part(0, "other")]
    loads = predict_loads({part(0): day, part(1): quiet}, wanted, 168 + 10, 4)
    assert loads == pytest.approx({part(0): 0.5, part(1): 0, part(2): 0.25, part(0, "other"): 0})


def test_large_messages_count_more_and_all_together_count_as_they_are() -> None:
    loads = weighted_loads(
        {part(0): Volume(100, 100 * MESSAGE_BYTES), part(1): Volume(100, 300 * MESSAGE_BYTES)}
    )
    assert loads == pytest.approx({part(0): 200 / 3, part(1): 400 / 3})


def test_messages_of_unknown_size_count_like_those_of_their_topic_or_of_all() -> None:
    rates = {
        part(0): Volume(10, 50_000),
        part(1): Volume(10),
        part(0, "other"): Volume(10, 10),
        part(0, "third"): Volume(10),
    }
    loads = weighted_loads(rates)
    assert loads[part(0)] == loads[part(1)] > loads[part(0, "third")] > loads[part(0, "other")]
    assert weighted_loads({part(0): Volume(1), part(1): Volume(3)}) == {part(0): 1, part(1): 3}
    assert weighted_loads({part(0): Volume()}) == {part(0): 0}


@given(st.lists(st.builds(Volume, st.integers(0, 10**6), st.integers(0, 10**9)), max_size=12))
def test_weights_change_no_total(volumes: list[Volume]) -> None:
    loads = weighted_loads({part(number): volume for number, volume in enumerate(volumes)})
    assert sum(loads.values()) == pytest.approx(sum(volume.messages for volume in volumes))
    assert min(loads.values(), default=0) >= 0
