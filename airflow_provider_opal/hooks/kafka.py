"""A connection of the type `kafka`, as Airflow's Kafka provider has it. That provider need not be installed.

Its extra holds settings of librdkafka: {"bootstrap.servers": "...", "security.protocol": "..."}. Host and port may say the servers instead,
login and password the user of SASL. Beside them `schema.registry.url` and `schema.registry.basic.auth.user.info` (user:password), as
Confluent's clients call them. Settings of consumer groups, as group.id, are left out: others may share the connection.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from airflow.sdk import BaseHook
from airflow.sdk.exceptions import AirflowNotFoundException

from airflow_provider_opal.secrets import mask
from opal_stream.kafka.settings import ISOLATION, OWN_SETTINGS

DEFAULT_KAFKA_CONN_ID = "kafka_default"
_SERVERS, _REGISTRY, _LOGIN = (
    "bootstrap.servers",
    "schema.registry.url",
    "schema.registry.basic.auth.user.info",
)
# What a stream gives itself, but for what would change which messages are read: that is refused
_LEFT_OUT = {*OWN_SETTINGS, "client.id"} - {ISOLATION}


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaAccess:
    """How Kafka and its registry are reached; holds secrets."""

    bootstrap_servers: str
    settings: Mapping[str, str] = field(default_factory=dict)
    registry: str | None = None
    registry_login: str | None = None

    def environment(self) -> dict[str, str]:
        """For a process: command lines are seen by everybody on the machine."""
        given = {
            "OPAL_KAFKA_SETTINGS": "\n".join(
                f"{name}={value}" for name, value in self.settings.items()
            )
        }
        return given | (
            {"SCHEMA_REGISTRY_LOGIN": self.registry_login} if self.registry_login else {}
        )


def kafka_access(kafka_conn_id: str | None, bootstrap_servers: str | None = None) -> KafkaAccess:
    """Of a connection, or of servers that need none. ValueError if neither says where Kafka is."""
    if kafka_conn_id is None:
        if not bootstrap_servers:
            raise ValueError(
                "where is Kafka? give kafka_conn_id='kafka_default' or bootstrap_servers='host:9092'"
            )
        return KafkaAccess(bootstrap_servers=bootstrap_servers)
    try:
        connection = BaseHook.get_connection(kafka_conn_id)
    except AirflowNotFoundException as error:
        raise AirflowNotFoundException(
            f'there is no Kafka connection {kafka_conn_id!r}; add it (type kafka, extra {{"{_SERVERS}": "host:9092"}}), or name '
            "another with kafka_conn_id=, or the servers with bootstrap_servers="
        ) from error
    return access_of(connection, bootstrap_servers)


def access_of(connection: Any, bootstrap_servers: str | None = None) -> KafkaAccess:
    extra = {
        name: str(value)
        for name, value in connection.extra_dejson.items()
        if value is not None and not isinstance(value, dict | list)
    }
    host = (
        f"{connection.host}:{connection.port}"
        if connection.host and connection.port
        else connection.host
    )
    servers = bootstrap_servers or extra.pop(_SERVERS, None) or host
    extra.pop(_SERVERS, None)
    if not servers:
        raise ValueError(
            f"the Kafka connection {connection.conn_id!r} names no servers; write {_SERVERS!r} into its extra, or a host"
        )
    user = {"sasl.username": connection.login, "sasl.password": connection.password}
    registry, login = extra.pop(_REGISTRY, None), extra.pop(_LOGIN, None)
    settings = {
        name: str(value)
        for name, value in {**user, **extra}.items()
        if value and name not in _LEFT_OUT
    }
    mask([*settings.items(), ("registry.password", (login or "").partition(":")[2])])
    return KafkaAccess(
        bootstrap_servers=servers, settings=settings, registry=registry, registry_login=login
    )
