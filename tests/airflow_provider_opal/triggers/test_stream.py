"""The triggers of streams, with a real broker."""

import asyncio
import json
import time
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


def test_its_time_goes_on_in_another_triggerer(kafka: Kafka, table: Table) -> None:
    topic, began_s = new_topic(kafka), time.time()
    kafka.produce(topic, [order(1)])
    trigger = StreamTrigger(job=new_job(topic, until_empty=False).to_json(), ends_at_s=began_s + 12)

    async def first_triggerer() -> None:
        running = asyncio.ensure_future(anext(trigger.run()))
        while ids(table) != [1]:
            await asyncio.sleep(0.1)
        running.cancel()
        await asyncio.wait([running])

    asyncio.run(asyncio.wait_for(first_triggerer(), 60))
    kafka.produce(topic, [order(2)])
    event = fired(trigger)
    assert (event["failure"], ids(table)) == (None, [1, 2])
    assert 12 <= time.time() - began_s < 18


def test_one_whose_time_was_over_while_no_triggerer_ran_ends_at_once(kafka: Kafka, table: Table) -> None:
    trigger = StreamTrigger(job=new_job(new_topic(kafka), until_empty=False).to_json(), ends_at_s=time.time() - 5)
    event = fired(trigger)
    assert (event["failure"], event["totals"]) == (None, {})


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
