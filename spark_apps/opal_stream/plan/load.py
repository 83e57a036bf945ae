"""The load that a partition is expected to put on a process, in usual messages a second."""

from collections import defaultdict
from collections.abc import Iterable, Mapping

from opal_stream.kafka.topics import Partition
from opal_stream.traffic.hours import Traffic, Volume, mean_of

# The bytes that cost as much work as a message itself, measured with JSON. Larger messages cost
# more to decode, but not in proportion to their size
MESSAGE_BYTES = 500
_HOUR_S = 3600


def predict_loads(
    traffic: Mapping[Partition, Traffic],
    partitions: Iterable[Partition],
    first_hour: int,
    hours: int,
) -> dict[Partition, float]:
    """Return the loads of the coming hours."""
    return weighted_loads(predict_rates(traffic, partitions, first_hour, hours))


def predict_rates(
    traffic: Mapping[Partition, Traffic],
    partitions: Iterable[Partition],
    first_hour: int,
    hours: int,
) -> dict[Partition, Volume]:
    """Return the mean volumes a second of the coming hours.

    A partition without traffic counts as the mean of the others of its topic.
    """
    known: dict[Partition, Volume] = {}
    of_topic: dict[str, list[Volume]] = defaultdict(list)
    for partition, past in sorted(traffic.items()):
        coming = [past.predict(first_hour + hour) for hour in range(hours)]
        rate = mean_of(coming).times(1 / _HOUR_S)
        known[partition] = rate
        of_topic[partition.topic].append(rate)
    means = {topic: mean_of(rates) for topic, rates in of_topic.items()}
    return {
        partition: known.get(partition) or means.get(partition.topic, Volume())
        for partition in partitions
    }


def weighted_loads(rates: Mapping[Partition, Volume]) -> dict[Partition, float]:
    """Return the loads: large messages count more, small ones less.

    The sum of the loads is the sum of the messages. Messages of unknown size count as those of
    their topic.
    """
    sized = {partition: rate for partition, rate in rates.items() if rate.messages and rate.bytes}
    of_topic: dict[str, list[Volume]] = defaultdict(list)
    for partition, rate in sized.items():
        of_topic[partition.topic].append(rate)
    usual = _size([*sized.values()])
    sizes = {topic: _size(volumes) for topic, volumes in of_topic.items()}
    costs: dict[Partition, float] = {}
    for partition, rate in rates.items():
        size = rate.bytes
        if partition not in sized:
            size = rate.messages * sizes.get(partition.topic, usual)
        costs[partition] = rate.messages + size / MESSAGE_BYTES
    total = sum(costs.values())
    factor = sum(rate.messages for rate in rates.values()) / total if total else 1.0
    return {partition: cost * factor for partition, cost in costs.items()}


def _size(rates: list[Volume]) -> float:
    """Return the bytes of the mean message."""
    mean = mean_of(rates)
    if mean.messages:
        return mean.bytes / mean.messages
    return 0.0
