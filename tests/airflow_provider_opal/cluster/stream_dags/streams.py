"""A stream in the triggerer, one in a worker, and a pipeline that reads a day by each run."""

from datetime import datetime

from airflow.sdk import DAG

from airflow_provider_opal import (
    CreateTable,
    Kafka,
    StreamingIngestOperator,
    StreamLagSensor,
    load_yaml_dags,
    opal_dag,
)

START = datetime(2026, 11, 1)
MADE = CreateTable(
    keys=["id"], delta="at", schema="id BIGINT, name STRING, total DOUBLE, op STRING, at TIMESTAMP"
)

with DAG("live", schedule=None, start_date=START):
    StreamingIngestOperator(
        task_id="read",
        table="shop.live",
        source=Kafka(topics="live", mode="continuous"),
        create=MADE,
        deferrable=True,
        retries=0,
    )

with DAG("working", schedule=None, start_date=START):
    StreamingIngestOperator(
        task_id="read",
        table="shop.working",
        source=Kafka(topics="working", mode="continuous", flush_interval="1h"),
        create=MADE,
        retries=0,
    )

with DAG("lag", schedule=None, start_date=START):
    StreamLagSensor(
        task_id="caught_up", table="shop.live", max_messages=0, deferrable=True, poke_interval=1
    )

opal_dag(
    "days",
    table="shop.days",
    source=Kafka(topics="days"),
    create=MADE,
    schedule="@daily",
    start_date=START,
)

load_yaml_dags(__file__)
