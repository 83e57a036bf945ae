"""The triggers of streams, with a real broker."""

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_opal.streaming.job import StreamJob
from airflow_provider_opal.streaming.process import StreamProcess
from airflow_provider_opal.triggers.stream import LagTrigger, StreamTrigger
from opal_lake.table import Table
from opal_stream.supervise.process import Say
from tests.airflow_provider_opal.streaming.orders import connect, new_job
from tests.fixtures_kafka import Kafka
from tests.opal_stream.orders import ids, new_topic, order, read


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch, kafka: Kafka, tmp_path: Path) -> Table:
    return connect(monkeypatch, kafka, tmp_path)


def made_again(trigger: Any) -> Any:
    """Return a trigger from what is in Airflow's database."""
    path, arguments = trigger.serialize()
    assert path == f"{type(trigger).__module__}.{type(trigger).__qualname__}"
    return type(trigger)(**json.loads(json.dumps(arguments)))


def fired(trigger: Any) -> Any:
    """Return what a triggerer gets of a trigger."""

    async def first() -> Any:
        return (await asyncio.wait_for(anext(made_again(trigger).run()), 60)).payload

    return asyncio.run(first())


def test_a_stream_runs_as_a_trigger_s_child(kafka: Kafka, table: Table) -> None:
    topic = new_topic(kafka)
    kafka.produce(topic, [order(1), order(2)])
    event = fired(StreamTrigger(job=new_job(topic).to_json()))
    assert (event["failure"], event["is_final"], event["totals"]["records"], ids(table)) == (
        None,
        False,
        2,
        [1, 2],
    )


def test_its_time_goes_on_in_another_triggerer(
    kafka: Kafka, table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, ends_at_s, passed_on = new_topic(kafka), time.time() + 3600, list[float]()

    class Noted(StreamProcess):
        """Notes when it is to end."""

        def __init__(self, job: StreamJob, say: Say, *, restarts: int, run_for_s: float) -> None:
            passed_on.append(time.time() + run_for_s)
            super().__init__(job, say, restarts=restarts, run_for_s=run_for_s)

    async def run_until(trigger: StreamTrigger, expected: list[int]) -> None:
        running = asyncio.ensure_future(anext(trigger.run()))
        while ids(table) != expected:
            assert not running.done()
            await asyncio.sleep(0.1)
        running.cancel()
        await asyncio.wait([running])

    monkeypatch.setattr("airflow_provider_opal.triggers.stream.StreamProcess", Noted)
    trigger = StreamTrigger(job=new_job(topic, until_empty=False).to_json(), ends_at_s=ends_at_s)
    for number in (1, 2):
        kafka.produce(topic, [order(number)])
        asyncio.run(asyncio.wait_for(run_until(made_again(trigger), [*range(1, number + 1)]), 60))
    assert passed_on == pytest.approx([ends_at_s] * 2, abs=2)


def test_one_whose_time_was_over_while_no_triggerer_ran_ends_at_once(
    kafka: Kafka, table: Table
) -> None:
    trigger = StreamTrigger(
        job=new_job(new_topic(kafka), until_empty=False).to_json(), ends_at_s=time.time() - 5
    )
    event = fired(trigger)
    assert (event["failure"], event["totals"]) == (None, {})


def test_it_waits_until_the_lag_is_small_enough(kafka: Kafka, table: Table) -> None:
    topic = new_topic(kafka)
    kafka.produce(topic, [order(1), order(2)])
    question = {
        "table": "orders",
        "opal_conn_id": "opal_default",
        "kafka_conn_id": "kafka_default",
        "topics": [topic],
        "max_messages": 0,
    }
    trigger = LagTrigger(question=question, poke_interval_s=0.1)

    async def scene() -> Any:
        waiting = asyncio.ensure_future(anext(trigger.run()))
        await asyncio.sleep(1)
        assert not waiting.done()
        await asyncio.to_thread(read, table, kafka, topic)
        return (await asyncio.wait_for(waiting, 30)).payload

    assert asyncio.run(scene()) == {"messages": 0, "delay_s": 0.0, "partitions": 1}
    assert fired(trigger)["messages"] == 0
