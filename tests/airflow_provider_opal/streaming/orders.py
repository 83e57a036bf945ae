"""A lake and a broker as connections of Airflow, and a stream between both."""

import json
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_opal.streaming.job import StreamJob
from opal_lake.table import Table
from tests.fixtures_kafka import Kafka
from tests.opal_stream.orders import new_table

__all__ = ["connect", "new_job"]


def connect(monkeypatch: pytest.MonkeyPatch, kafka: Kafka, root: Path) -> Table:
    """Set the connections; return the table `orders` of the lake."""
    monkeypatch.setenv(
        "AIRFLOW_CONN_OPAL_DEFAULT", json.dumps({"conn_type": "opal", "host": str(root)})
    )
    monkeypatch.setenv(
        "AIRFLOW_CONN_KAFKA_DEFAULT",
        json.dumps({"conn_type": "kafka", "extra": {"bootstrap.servers": kafka.servers}}),
    )
    return new_table(root)


def new_job(topic: str, **options: Any) -> StreamJob:
    usual = {"flush_interval": "1s", "until_empty": True}
    return StreamJob(
        table="orders",
        opal_conn_id="opal_default",
        kafka_conn_id="kafka_default",
        arguments={"topics": [topic], **usual, **options},
    )
