"""Loads of the coming hours, also of partitions that are new."""

import pytest

from opal_stream.kafka.topics import Partition
from opal_stream.plan.load import predict_loads
from opal_stream.plan.traffic import Traffic


def part(number: int, topic: str = "orders") -> Partition:
    return Partition(topic=topic, number=number)


def test_loads_are_means_of_the_coming_hours_and_new_partitions_are_average() -> None:
    day = Traffic(first_hour=0, hour=0)
    for hour in range(168):
        day.observe(hour, 3600 if hour % 24 < 12 else 0)
    quiet = Traffic(first_hour=0, hour=0)
    wanted = [part(0), part(1), part(2), part(0, "other")]
    loads = predict_loads({part(0): day, part(1): quiet}, wanted, 168 + 10, 4)
    assert loads == pytest.approx({part(0): 0.5, part(1): 0, part(2): 0.25, part(0, "other"): 0})
