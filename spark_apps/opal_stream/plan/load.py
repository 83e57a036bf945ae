"""Load: what a partition's predicted traffic costs a process, in messages a second."""

from collections.abc import Iterable, Mapping

from opal_stream.kafka.topics import Partition
from opal_stream.plan.traffic import Traffic, Work

BYTES_A_MESSAGE = 500  # that cost about as much as a message does by being one: an assumption, as it depends on the format
_HOUR_S = 3600


def load_of(work: Work) -> float:
    """Of the work of an hour: small messages each count as one, large ones by their bytes, too."""
    return (work.messages + work.bytes / BYTES_A_MESSAGE) / _HOUR_S


def predict_loads(
    traffic: Mapping[Partition, Traffic], partitions: Iterable[Partition], first_hour: int, hours: int
) -> dict[Partition, float]:
    """The mean of the coming hours. Of a new partition nothing is known: it counts as the mean of the others of its topic."""
    known = {
        partition: sum(load_of(found.predict(first_hour + hour)) for hour in range(hours)) / hours for partition, found in traffic.items()
    }
    loads = {}
    for partition in partitions:
        others = [load for other, load in sorted(known.items()) if other.topic == partition.topic]
        loads[partition] = known[partition] if partition in known else sum(others) / len(others) if others else 0.0
    return loads
