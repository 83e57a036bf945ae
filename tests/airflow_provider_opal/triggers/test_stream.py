"""The triggers of streams, with a real broker."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_opal.triggers.stream import LagTrigger, StreamTrigger
from opal_lake.table import Table
from tests.airflow_provider_opal.streaming.orders import connect, new_job
from tests.fixtures_kafka import Kafka
from tests.opal_stream.orders import ids, new_topic, order, read


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch, kafka: Kafka, tmp_path: Path) -> Table:
    return connect(monkeypatch, kafka, tmp_path)


def fired(trigger: Any) -> Any:
    """What a triggerer gets of it, made again from what is in Airflow's database."""
    path, arguments = trigger.serialize()
    assert path == f"{type(trigger).__module__}.{type(trigger).__qualname__}"
    again = type(trigger)(**json.loads(json.dumps(arguments)))

    async def first() -> Any:
        return (await asyncio.wait_for(anext(again.run()), 60)).payload

    return asyncio.run(first())


def test_a_stream_runs_as_a_trigger_s_child(kafka: Kafka, table: Table) -> None:
    topic = new_topic(kafka)
    kafka.produce(topic, [order(1), order(2)])
    event = fired(StreamTrigger(job=new_job(topic).to_json()))
    assert (event["failure"], event["is_final"], event["totals"]["records"], ids(table)) == (None, False, 2, [1, 2])


def test_it_waits_until_the_lag_is_small_enough(kafka: Kafka, table: Table) -> None:
    topic = new_topic(kafka)
    kafka.produce(topic, [order(1), order(2)])
    question = {"table": "orders", "opal_conn_id": "opal_default", "kafka_conn_id": "kafka_default", "topics": [topic], "max_messages": 0}
    trigger = LagTrigger(question=question, poke_interval_s=0.1)

    async def scene() -> Any:
        waiting = asyncio.ensure_future(anext(trigger.run()))
        await asyncio.sleep(1)
        assert not waiting.done()
        await asyncio.to_thread(read, table, kafka, topic)
        return (await asyncio.wait_for(waiting, 30)).payload

    assert asyncio.run(scene()) == {"messages": 0, "delay_s": 0.0, "partitions": 1}
    assert fired(trigger)["messages"] == 0
