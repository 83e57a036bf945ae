"""Load: what a partition is expected to give a process to do, in messages a second."""

from collections.abc import Iterable, Mapping

from opal_stream.kafka.topics import Partition
from opal_stream.plan.traffic import Traffic

_HOUR_S = 3600


def predict_loads(
    traffic: Mapping[Partition, Traffic], partitions: Iterable[Partition], first_hour: int, hours: int
) -> dict[Partition, float]:
    """The mean of the coming hours. Of a new partition nothing is known: it counts as the mean of the others of its topic."""
    known = {
        partition: sum(found.predict(first_hour + hour) for hour in range(hours)) / hours / _HOUR_S for partition, found in traffic.items()
    }
    loads = {}
    for partition in partitions:
        others = [load for other, load in sorted(known.items()) if other.topic == partition.topic]
        loads[partition] = known[partition] if partition in known else sum(others) / len(others) if others else 0.0
    return loads
