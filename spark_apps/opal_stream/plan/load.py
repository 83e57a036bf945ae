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
    """Predict the load of each partition in the coming hours."""
    return weighted_loads(predict_rates(traffic, partitions, first_hour, hours))


def predict_rates(
    traffic: Mapping[Partition, Traffic],
    partitions: Iterable[Partition],
    first_hour: int,
    hours: int,
) -> dict[Partition, Volume]:
    """Predict the mean volume a second of each partition in the coming hours.

    A partition without traffic gets the mean of the other partitions of its topic.
    """
    known: dict[Partition, Volume] = {}
    rates_by_topic: dict[str, list[Volume]] = defaultdict(list)
    for partition, past in sorted(traffic.items()):
        coming = [past.predict(first_hour + hour) for hour in range(hours)]
        rate = mean_of(coming).times(1 / _HOUR_S)
        known[partition] = rate
        rates_by_topic[partition.topic].append(rate)
    means = {topic: mean_of(rates) for topic, rates in rates_by_topic.items()}
    predicted: dict[Partition, Volume] = {}
    for partition in partitions:
        if partition in known:
            predicted[partition] = known[partition]
        else:
            predicted[partition] = means.get(partition.topic, Volume())
    return predicted


def weighted_loads(rates: Mapping[Partition, Volume]) -> dict[Partition, float]:
    """Return the load of each partition: large messages weigh more than small ones.

    The sum of all loads is the number of messages a second. Messages of unknown size count as
    large as those of other partitions of their topic.
    """
    sized = {partition: rate for partition, rate in rates.items() if rate.messages and rate.bytes}
    rates_by_topic: dict[str, list[Volume]] = defaultdict(list)
    for partition, rate in sized.items():
        rates_by_topic[partition.topic].append(rate)
    usual_size = _mean_size(list(sized.values()))
    size_by_topic = {topic: _mean_size(volumes) for topic, volumes in rates_by_topic.items()}
    costs: dict[Partition, float] = {}
    for partition, rate in rates.items():
        size = rate.bytes
        if partition not in sized:
            size = rate.messages * size_by_topic.get(partition.topic, usual_size)
        costs[partition] = rate.messages + size / MESSAGE_BYTES
    total_cost = sum(costs.values())
    if not total_cost:
        return costs
    messages = sum(rate.messages for rate in rates.values())
    factor = messages / total_cost
    return {partition: cost * factor for partition, cost in costs.items()}


def _mean_size(rates: list[Volume]) -> float:
    """Return the mean size of a message in bytes; 0 for no messages."""
    mean = mean_of(rates)
    if mean.messages:
        return mean.bytes / mean.messages
    return 0.0
