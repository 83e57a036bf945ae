"""A Kafka that cannot be reached as it is asked for: said at once, with the setting to correct."""

import re
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from opal_lake.cli import main
from opal_lake.exit_codes import INPUT, OK
from opal_lake.table import Table
from opal_stream.errors import KafkaError, KafkaSettingsError
from opal_stream.kafka.connection import TIMEOUT_S, Connection
from opal_stream.kafka.topics import Topics
from tests.fixtures_cli import metadata, opal_commands
from tests.fixtures_kafka import Listeners, free_port, kafka_listeners
from tests.opal_stream.orders import ids, new_table, order

__all__ = ["metadata", "opal_commands"]

LOGIN = {
    "security.protocol": "SASL_PLAINTEXT",
    "sasl.mechanism": "PLAIN",
    "sasl.username": "opal",
    "sasl.password": "secret",
}
WRONG = [
    (
        "login",
        {**LOGIN, "sasl.password": "wrong"},
        "Authentication failed: Invalid username or password; correct sasl.username, sasl.password",
    ),
    (
        "login",
        {**LOGIN, "sasl.mechanism": "SCRAM-SHA-256"},
        "supported mechanisms: PLAIN; correct sasl.username, sasl.password and sasl.mechanism",
    ),
    (
        "login",
        {},
        "security.protocol is PLAINTEXT, but the listener has SASL_PLAINTEXT; correct security",
    ),
    ("plain", LOGIN, "the listener accepts no login: correct security.protocol"),
    (
        "plain",
        {"security.protocol": "ssl"},
        "security.protocol is SSL, but the listener has PLAINTEXT; correct security.protocol",
    ),
    (
        "tls",
        {},
        "security.protocol is PLAINTEXT, but the listener has SSL; correct security.protocol",
    ),
    ("tls", LOGIN, "security.protocol is SASL_PLAINTEXT, but the listener has SSL; correct"),
    ("tls", {"security.protocol": "SSL"}, "certificate verify failed"),
    ("tls", {"security.protocol": "SSL"}, "correct ssl.ca.location"),
    ("nowhere.invalid:9092", {}, "the host 'nowhere.invalid' is unknown; correct bootstrap_serv"),
    (
        "nowhere.invalid,nowhere2.invalid:1",
        {},
        "all of its hosts are unknown; correct bootstrap_s",
    ),
]


@pytest.fixture(scope="module")
def listeners(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Listeners]:
    with kafka_listeners(tmp_path_factory.mktemp("listeners")) as known:
        known.kafka.create_topic("orders")
        known.kafka.produce("orders", [order(1)])
        yield known


def servers_of(listeners: Listeners, name: str) -> str:
    known = {"login": listeners.login, "tls": listeners.tls, "plain": listeners.kafka.servers}
    return known.get(name, name)


@pytest.mark.parametrize("name, settings, message", WRONG)
def test_an_error_that_no_retry_mends_is_raised_immediately_and_names_the_setting(
    name: str, settings: dict[str, str], message: str, listeners: Listeners
) -> None:
    connection = Connection(bootstrap_servers=servers_of(listeners, name), settings=settings)
    began_s = time.monotonic()
    with pytest.raises(KafkaSettingsError, match=re.escape(message)):
        Topics(connection).describe(["orders"])
    assert time.monotonic() - began_s < TIMEOUT_S / 2


@pytest.mark.parametrize("name", ["login", "tls", "plain", "nowhere.invalid:9092,{plain}"])
def test_the_right_settings_reach_kafka_also_if_one_of_several_hosts_is_unknown(
    name: str, listeners: Listeners
) -> None:
    tls = {"security.protocol": "SSL", "ssl.ca.location": str(listeners.certificate)}
    settings = {"login": LOGIN, "tls": tls}.get(name, {})
    servers = servers_of(listeners, name).format(plain=listeners.kafka.servers)
    connection = Connection(bootstrap_servers=servers, settings=settings)
    assert Topics(connection).describe(["orders"])["orders"].partitions == (0,)


def test_the_error_of_a_missing_broker_advises_to_try_again() -> None:
    connection = Connection(bootstrap_servers=f"127.0.0.1:{free_port()}", timeout_s=2.0)
    with pytest.raises(KafkaError, match=r"does not answer: .*Connection refused.*; try again"):
        Topics(connection).describe(["orders"])


@contextmanager
def closing_listener(context: ssl.SSLContext | None = None) -> Iterator[str]:
    """Accept connections and close them; with a context after a handshake of TLS."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                with connection, suppress(OSError):
                    if context is not None:
                        context.wrap_socket(connection, server_side=True).close()

        threading.Thread(target=serve, daemon=True).start()
        try:
            yield f"127.0.0.1:{server.getsockname()[1]}"
        finally:
            server.shutdown(socket.SHUT_RDWR)


def context_with_client_certificates(folder: Path) -> ssl.SSLContext:
    certificate, key = folder / "certificate.pem", folder / "key.pem"
    request = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost"
    files = ["-keyout", str(key), "-out", str(certificate)]
    subprocess.run([*request.split(), *files], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    context.load_verify_locations(certificate)
    context.verify_mode = ssl.CERT_REQUIRED
    return context


@pytest.mark.parametrize("has_tls", [False, True])
def test_a_listener_that_closes_without_an_answer_is_waited_for(
    has_tls: bool, tmp_path: Path
) -> None:
    context = context_with_client_certificates(tmp_path) if has_tls else None
    with closing_listener(context) as servers:
        connection = Connection(bootstrap_servers=servers, settings=LOGIN, timeout_s=2.0)
        with pytest.raises(KafkaError, match=r"does not answer: .*; try again") as raised:
            Topics(connection).describe(["orders"])
    assert not isinstance(raised.value, KafkaSettingsError)


@pytest.mark.usefixtures("opal_commands")
def test_a_wrong_password_ends_the_command_with_the_status_of_wrong_input(
    listeners: Listeners, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table: Table = new_table(tmp_path)
    words = [
        "stream",
        "run",
        table.uri,
        "--bootstrap-servers",
        listeners.login,
        "--topic",
        "orders",
    ]
    right = [f"--kafka={name}={value}" for name, value in LOGIN.items()]
    wrong_login = LOGIN | {"sasl.password": "wrong"}
    wrong = [f"--kafka={name}={value}" for name, value in wrong_login.items()]
    assert main([*words, *wrong, "--until-empty"]) == INPUT
    assert "Invalid username or password; correct sasl.username" in capsys.readouterr().err
    assert main([*words, *right, "--until-empty"]) == OK
    assert ids(table) == [1]
