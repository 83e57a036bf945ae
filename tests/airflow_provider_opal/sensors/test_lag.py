"""A sensor of a stream's lag, with a real broker."""

import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.exceptions import TaskDeferred

from airflow_provider_opal import StreamLagSensor
from opal_lake.table import Table
from tests.airflow_provider_opal.streaming.orders import connect
from tests.fixtures_kafka import Kafka
from tests.opal_stream.orders import new_topic, order, read


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch, kafka: Kafka, tmp_path: Path) -> Table:
    return connect(monkeypatch, kafka, tmp_path)


def sensor(**more: Any) -> StreamLagSensor:
    return StreamLagSensor(**{"task_id": "s", "table": "orders", "deferrable": False, **more})


def test_messages_and_their_age(kafka: Kafka, table: Table) -> None:
    topic = new_topic(kafka, 2)
    kafka.produce(topic, [order(1)])
    read(table, kafka, topic)
    now_ms = time.time_ns() // 1_000_000
    kafka.produce(topic, [order(2), order(3)], moments_ms=[now_ms - 60_000, now_ms])
    kafka.produce(topic, [order(4)], partition=1, moments_ms=[now_ms])
    few = sensor(max_messages=2).poke({})
    assert (few.is_done, few.xcom_value["messages"], few.xcom_value["partitions"]) == (False, 3, 2)
    assert 60 <= few.xcom_value["delay_s"] < 90
    assert sensor(max_messages=3).poke({}).is_done
    assert [sensor(max_delay=span).poke({}).is_done for span in ("30s", timedelta(hours=1))] == [
        False,
        True,
    ]
    assert not sensor(max_messages=3, max_delay="30s").poke({}).is_done
    read(table, kafka, topic)
    assert sensor(max_messages=0, max_delay="0s").execute({}) == {
        "messages": 0,
        "delay_s": 0.0,
        "partitions": 2,
    }
    assert (
        sensor(max_messages=3, topics=topic, name="other").poke({}).xcom_value["messages"] == 4
    )  # which has read nothing yet


def test_it_defers_and_waits_for_a_table_or_a_stream_that_is_not_there(
    kafka: Kafka, table: Table, caplog: Any
) -> None:
    assert not sensor(max_messages=0, table="nothing").poke({}).is_done
    assert (
        not sensor(max_messages=0).poke({}).is_done
    )  # nothing has been read: of which topics is unknown
    with pytest.raises(TaskDeferred) as deferred:
        sensor(max_messages=0, deferrable=True, timeout=60).execute({})
    _, arguments = deferred.value.trigger.serialize()
    assert arguments["question"]["max_messages"] == 0
    assert sensor(max_messages=0).resume({}, {"messages": 0}) == {"messages": 0}


@pytest.mark.parametrize(
    "given, message",
    [
        ({}, "needs a limit of the lag"),
        ({"max_messages": -1}, "must be at least 0"),
        ({"max_delay": "soon"}, "is not a duration"),
    ],
)
def test_a_lag_sensor_without_a_valid_limit_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        sensor(**given)
