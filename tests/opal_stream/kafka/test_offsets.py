"""The begin of a partition, as a pure decision; and the names of positions."""

import pytest

from opal_lake.errors import InvalidInputError
from opal_stream.errors import GapError, TopicChangedError
from opal_stream.kafka.applications import Application, check_stream, known_positions
from opal_stream.kafka.offsets import check_topic_ids, plan_begin
from opal_stream.kafka.topics import Partition, Reach, _url_safe
from opal_stream.operations.reading import Policies

ORDERS = Application(stream="main", partition=Partition(topic="orders", number=3), topic_id="abc")
REACH = Reach(low=5, high=9)


@pytest.mark.parametrize("position, offset, missing", [(None, 5, 0), (5, 5, 0), (9, 9, 0)])
def test_a_partition_begins_where_the_table_stands(
    position: int | None, offset: int, missing: int
) -> None:
    begin = plan_begin(ORDERS, position, REACH, Policies())
    assert (begin.position, begin.offset, begin.missing) == (position, offset, missing)


def test_a_gap_fails_or_is_counted() -> None:
    with pytest.raises(
        GapError,
        match=(
            r"orders/3: the table stands at offset 2, but Kafka has deleted the messages "
            r"before offset 5: 3 offsets"
        ),
    ):
        plan_begin(ORDERS, 2, REACH, Policies())
    assert plan_begin(ORDERS, 2, REACH, Policies(on_gap="continue")).missing == 3


def test_a_partition_that_ends_before_the_position_is_refused_whatever_the_policy_of_gaps() -> None:
    with pytest.raises(
        TopicChangedError, match=r"orders/3: the table stands at offset 10, but Kafka ends at 9"
    ):
        plan_begin(ORDERS, 10, REACH, Policies(on_gap="continue"))


def test_a_topic_of_another_id_stops_unless_positions_of_it_are_there_already() -> None:
    known = {ORDERS: 7}
    check_topic_ids(known, {"orders": "abc"}, Policies())
    with pytest.raises(TopicChangedError, match="stands at offset 7 of the topic with id abc"):
        check_topic_ids(known, {"orders": "def"}, Policies())
    check_topic_ids(known, {"orders": "def"}, Policies(on_new_topic="continue"))
    newer = Application(stream="main", partition=ORDERS.partition, topic_id="def")
    check_topic_ids({**known, newer: 1}, {"orders": "def"}, Policies())


def test_names_of_applications_are_read_back_and_those_of_others_are_left_alone() -> None:
    positions = {str(ORDERS): 7, "spark/1": 3, "kafka:other/orders@abc/0": 2}
    assert known_positions(positions, "main") == {ORDERS: 7}
    assert len(known_positions(positions)) == 2
    assert _url_safe("a+b/c") == "a-b_c"
    with pytest.raises(InvalidInputError, match="not a name of a stream"):
        check_stream("a/b")
