"""The partitions that numbers choose, and topics with numbers."""

import pytest

from opal_stream.errors import UnknownTopicError
from opal_stream.kafka.topics import Partition, Topic, chosen_partitions

TOPICS = [
    Topic(name="orders", id="a", partitions=(0, 1, 2)),
    Topic(name="users", id="b", partitions=(0, 1)),
]


@pytest.mark.parametrize(
    "only, actual",
    [
        ([], ["orders/0", "orders/1", "orders/2", "users/0", "users/1"]),
        ([1], ["orders/1", "users/1"]),
        ([2, Partition(topic="users", number=1)], ["orders/2", "users/1"]),
        ([Partition(topic="orders", number=0)], ["orders/0"]),
    ],
)
def test_numbers_are_of_all_topics(only: list[int | Partition], actual: list[str]) -> None:
    assert [*map(str, chosen_partitions(TOPICS, only))] == actual


@pytest.mark.parametrize(
    "only", [3, Partition(topic="users", number=2), Partition(topic="items", number=0)]
)
def test_an_unknown_partition_is_an_error_that_names_it(only: int | Partition) -> None:
    with pytest.raises(
        UnknownTopicError,
        match=f"unknown partition {only} of orders, users; correct the partitions",
    ):
        chosen_partitions(TOPICS, [0, only])
