"""Connections of the type kafka."""

import json
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowNotFoundException

from airflow_provider_opal.hooks.kafka import KafkaAccess, kafka_access
from opal_stream.kafka.settings import ISOLATION, OWN_SETTINGS


def connect(monkeypatch: pytest.MonkeyPatch, **given: Any) -> KafkaAccess:
    monkeypatch.setenv("AIRFLOW_CONN_KAFKA_DEFAULT", json.dumps({"conn_type": "kafka", **given}))
    return kafka_access("kafka_default")


def test_settings_are_those_of_airflow_s_own_provider_without_those_of_consumer_groups(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    extra = {
        **dict.fromkeys(OWN_SETTINGS.keys() - {ISOLATION}, "x"),
        "client.id": "x",
        "bootstrap.servers": "a:1,b:2",
        "security.protocol": "SASL_SSL",
        "x": None,
    }
    extra |= {
        "schema.registry.url": "http://r:8081",
        "schema.registry.basic.auth.user.info": "me:secret",
        "sasl.password": "secret two",
    }
    access = connect(monkeypatch, extra=extra)
    assert access == KafkaAccess(
        bootstrap_servers="a:1,b:2",
        settings={"security.protocol": "SASL_SSL", "sasl.password": "secret two"},
        registry="http://r:8081",
        registry_login="me:secret",
    )
    environment = access.environment()
    assert sorted(environment.pop("OPAL_KAFKA_SETTINGS").splitlines()) == [
        "sasl.password=secret two",
        "security.protocol=SASL_SSL",
    ]
    assert environment == {"SCHEMA_REGISTRY_LOGIN": "me:secret"}


def test_host_and_port_or_arguments_may_name_the_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    access = connect(monkeypatch, host="kafka", port=9092, login="me", password="secret")
    assert access == KafkaAccess(
        bootstrap_servers="kafka:9092", settings={"sasl.username": "me", "sasl.password": "secret"}
    )
    assert kafka_access("kafka_default", "other:1").bootstrap_servers == "other:1"
    assert kafka_access(None, "alone:1") == KafkaAccess(bootstrap_servers="alone:1")


def test_an_error_names_the_missing_connection_or_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="'kafka_default' names no servers"):
        connect(monkeypatch, extra={})
    with pytest.raises(ValueError, match="needs Kafka's servers"):
        kafka_access(None)
    with pytest.raises(
        AirflowNotFoundException, match="the Kafka connection 'other' does not exist; add it"
    ):
        kafka_access("other")
