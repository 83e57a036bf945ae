"""The command of a stream, whose secrets are in its environment only."""

import json
from dataclasses import replace

import pytest

from airflow_provider_opal.streaming.job import StreamJob
from airflow_provider_opal.streaming.source import Kafka
from opal_lake.errors import InvalidInputError


def test_secrets_are_in_the_environment_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    store = {"endpoint_url": "http://s3:9000", "path_style": True}
    lake = {
        "conn_type": "opal",
        "host": "s3://bucket/lake",
        "login": "key-id",
        "password": "key-secret",
        "extra": store,
    }
    extra = {
        "bootstrap.servers": "k:9092",
        "sasl.password": "kafka-secret",
        "schema.registry.url": "http://r:8081",
    }
    extra["schema.registry.basic.auth.user.info"] = "me:registry-secret"
    monkeypatch.setenv("AIRFLOW_CONN_OPAL_DEFAULT", json.dumps(lake))
    monkeypatch.setenv(
        "AIRFLOW_CONN_KAFKA_DEFAULT", json.dumps({"conn_type": "kafka", "extra": extra})
    )
    arguments = {
        "topics": ["a", "b"],
        "columns": {"at": "@timestamp"},
        "format": "avro",
        "until_empty": True,
        "partitions": [0, 2],
        "flush_rows": None,
        "registry": None,
        "on_new_columns": "add",
    }
    job = StreamJob(
        table="shop.orders",
        opal_conn_id="opal_default",
        kafka_conn_id="kafka_default",
        arguments=arguments,
    )
    words, environment = job.command()
    assert "secret" not in " ".join([*words, json.dumps(job.to_json())])
    text = " ".join(words[3:])
    assert text.startswith(
        "stream run s3://bucket/lake/shop/orders --json --watched 60s "
        "--option=endpoint_url=http://s3:9000 --option=path_style=true "
    )
    assert text.endswith(
        "--topic=a --topic=b --bootstrap-servers=k:9092 --until-empty --format=avro "
        "--registry=http://r:8081 --column=at=@timestamp "
        "--on-new-columns=add --partitions=0,2"
    )
    given = {
        "AWS_ACCESS_KEY_ID": "key-id",
        "AWS_SECRET_ACCESS_KEY": "key-secret",
        "SCHEMA_REGISTRY_LOGIN": "me:registry-secret",
    }
    assert given.items() <= environment.items()
    assert environment["OPAL_KAFKA_SETTINGS"] == "sasl.password=kafka-secret"
    plain = replace(job, arguments={**arguments, "format": "debezium-json"})
    assert "--registry" not in " ".join(plain.command()[0]), (
        "what needs no registry is given none, though the connection names one"
    )
    assert StreamJob.from_json(json.loads(json.dumps(job.to_json()))) == job


def test_a_choice_that_is_none_is_named() -> None:
    with pytest.raises(
        InvalidInputError, match="on_gap='maybe' is unknown; use one of fail, continue"
    ):
        Kafka("orders", on_gap="maybe")
