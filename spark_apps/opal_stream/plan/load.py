"""Load: what a partition is expected to give a process to do, in messages of the usual size a second."""

from collections.abc import Iterable, Mapping

from opal_stream.kafka.topics import Partition
from opal_stream.traffic.hours import Traffic, Volume, mean_of

# As much work as a message by itself: what JSON is weighed by. Larger messages cost more to decode, not in proportion to their size.
MESSAGE_BYTES = 500
_HOUR_S = 3600


def predict_loads(
    traffic: Mapping[Partition, Traffic],
    partitions: Iterable[Partition],
    first_hour: int,
    hours: int,
) -> dict[Partition, float]:
    """Those of the coming hours."""
    return weigh(predict_rates(traffic, partitions, first_hour, hours))


def predict_rates(
    traffic: Mapping[Partition, Traffic],
    partitions: Iterable[Partition],
    first_hour: int,
    hours: int,
) -> dict[Partition, Volume]:
    """A second, the mean of the coming hours. Of a new partition nothing is known: it counts as the mean of the others of its topic."""
    known = {
        partition: mean_of([found.predict(first_hour + hour) for hour in range(hours)]).times(
            1 / _HOUR_S
        )
        for partition, found in sorted(traffic.items())
    }
    topics = {partition.topic for partition in known}
    means = {
        topic: mean_of([rate for other, rate in known.items() if other.topic == topic])
        for topic in topics
    }
    return {
        partition: known.get(partition) or means.get(partition.topic, Volume())
        for partition in partitions
    }


def weigh(rates: Mapping[Partition, Volume]) -> dict[Partition, float]:
    """Large messages count more, small ones less, so that all together count as they are. Of an unknown size they are as their topic's."""
    sized = {partition: rate for partition, rate in rates.items() if rate.messages and rate.bytes}
    usual = _size(sized.values())
    topics = {partition.topic for partition in sized}
    sizes = {
        topic: _size(rate for other, rate in sized.items() if other.topic == topic)
        for topic in topics
    }
    costs = {}
    for partition, rate in rates.items():
        size = (
            rate.bytes if partition in sized else rate.messages * sizes.get(partition.topic, usual)
        )
        costs[partition] = rate.messages + size / MESSAGE_BYTES
    total = sum(costs.values())
    factor = sum(rate.messages for rate in rates.values()) / total if total else 1.0
    return {partition: cost * factor for partition, cost in costs.items()}


def _size(rates: Iterable[Volume]) -> float:
    """Of the mean message."""
    every = mean_of([*rates])
    return every.bytes / every.messages if every.messages else 0.0
