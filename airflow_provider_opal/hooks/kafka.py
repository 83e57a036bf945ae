"""Connections of the type `kafka`, which Airflow's Kafka provider defines.

That provider need not be installed. The extra of a connection holds settings of librdkafka:
{"bootstrap.servers": "...", "security.protocol": "..."}. Host and port may name the servers
instead, and login and password the user of SASL. The extra may also have Confluent's settings
`schema.registry.url` and `schema.registry.basic.auth.user.info` (user:password). Settings of
consumer groups, such as group.id, are ignored: other programs may share the connection.
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
# Settings that a stream sets itself. ISOLATION is not ignored: it would change which messages are
# read, and the stream refuses it
_LEFT_OUT = {*OWN_SETTINGS, "client.id"} - {ISOLATION}


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaAccess:
    """The addresses of Kafka and its registry, and their settings with secrets."""

    bootstrap_servers: str
    settings: Mapping[str, str] = field(default_factory=dict)
    registry: str | None = None
    registry_login: str | None = None

    def environment(self) -> dict[str, str]:
        """Return the environment variables for a process.

        Everybody on the machine can read a command line, so secrets are not in it.
        """
        settings = "\n".join(f"{name}={value}" for name, value in self.settings.items())
        variables = {"OPAL_KAFKA_SETTINGS": settings}
        if self.registry_login:
            variables["SCHEMA_REGISTRY_LOGIN"] = self.registry_login
        return variables


def kafka_access(kafka_conn_id: str | None, bootstrap_servers: str | None = None) -> KafkaAccess:
    """Return the access by a connection, or by servers that need no connection.

    Raises ValueError if no servers are named.
    """
    if kafka_conn_id is None:
        if not bootstrap_servers:
            raise ValueError(
                "a stream needs Kafka's servers; "
                "give kafka_conn_id='kafka_default' or bootstrap_servers='host:9092'"
            )
        return KafkaAccess(bootstrap_servers=bootstrap_servers)
    try:
        connection = BaseHook.get_connection(kafka_conn_id)
    except AirflowNotFoundException as error:
        raise AirflowNotFoundException(
            f"the Kafka connection {kafka_conn_id!r} does not exist; "
            f'add it (type kafka, extra {{"{_SERVERS}": "host:9092"}}), name another connection '
            "with kafka_conn_id=, or name the servers with bootstrap_servers="
        ) from error
    return access_of(connection, bootstrap_servers)


def access_of(connection: Any, bootstrap_servers: str | None = None) -> KafkaAccess:
    """Return the access of a connection; `bootstrap_servers` override its own."""
    extra = {}
    for name, value in connection.extra_dejson.items():
        if value is not None and not isinstance(value, dict | list):
            extra[name] = str(value)
    host = connection.host
    if host and connection.port:
        host = f"{host}:{connection.port}"
    extra_servers = extra.pop(_SERVERS, None)
    servers = bootstrap_servers or extra_servers or host
    if not servers:
        raise ValueError(
            f"the Kafka connection {connection.conn_id!r} names no servers; "
            f"write {_SERVERS!r} into its extra, or a host"
        )
    registry, login = extra.pop(_REGISTRY, None), extra.pop(_LOGIN, None)
    user = {"sasl.username": connection.login, "sasl.password": connection.password}
    settings = {}
    for name, value in {**user, **extra}.items():
        if value and name not in _LEFT_OUT:
            settings[name] = str(value)
    _, _, registry_password = (login or "").partition(":")
    mask([*settings.items(), ("registry.password", registry_password)])
    return KafkaAccess(
        bootstrap_servers=servers, settings=settings, registry=registry, registry_login=login
    )
