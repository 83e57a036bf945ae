"""A real Kafka broker, shared by a session or not, and a small schema registry over HTTP."""

import json
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
from confluent_kafka import IsolationLevel, Producer, TopicCollection, TopicPartition
from confluent_kafka.admin import NewPartitions, NewTopic, OffsetSpec  # type: ignore[attr-defined]

from tests.demo.stream.broker import Broker, free_port, kafka_jars

__all__ = [
    "Kafka",
    "Listeners",
    "Registry",
    "free_port",
    "kafka",
    "kafka_broker",
    "kafka_jars",
    "kafka_listeners",
    "registry",
]


@dataclass(slots=True, kw_only=True)
class Kafka(Broker):
    """A broker, and what tests do with it."""

    def create_topic(self, name: str, partitions: int = 1, **config: str) -> str:
        settings = {key.replace("_", "."): value for key, value in config.items()}
        new = NewTopic(name, num_partitions=partitions, replication_factor=1, config=settings)
        admin = self.admin  # its answers are lost when it is deleted
        admin.create_topics([new])[name].result(30)
        until = time.monotonic() + 30
        while name not in self.admin.list_topics(timeout=5).topics:
            assert time.monotonic() < until
            time.sleep(0.05)
        return name

    def delete_topic(self, name: str) -> None:
        admin = self.admin
        admin.delete_topics([name])[name].result(30)
        until = time.monotonic() + 30
        while name in self.admin.list_topics(timeout=5).topics:
            assert time.monotonic() < until
            time.sleep(0.05)

    def add_partitions(self, name: str, count: int) -> None:
        admin = self.admin
        admin.create_partitions([NewPartitions(name, count)])[name].result(30)
        until = time.monotonic() + 30
        while len(self.admin.list_topics(name, timeout=5).topics[name].partitions) < count:
            assert time.monotonic() < until
            time.sleep(0.05)

    def topic_id(self, name: str) -> str:
        admin = self.admin
        return (
            str(admin.describe_topics(TopicCollection([name]))[name].result(30).topic_id)
            .replace("+", "-")
            .replace("/", "_")
        )

    def producer(self, **settings: Any) -> Producer:
        given = {name.replace("_", "."): value for name, value in settings.items()}
        return Producer(
            {
                "bootstrap.servers": self.servers,
                "linger.ms": 5,
                "log_level": 0,
                "message.max.bytes": 20 << 20,
                **given,
            }
        )

    def produce(
        self,
        topic: str,
        values: Sequence[Any],
        *,
        partition: int = 0,
        keys: Sequence[bytes | None] | None = None,
        headers: Any = None,
        moments_ms: Sequence[int] | None = None,
    ) -> None:
        """Produce messages; values other than bytes are written as JSON."""
        producer = self.producer()
        for position, value in enumerate(values):
            data = value
            if value is not None and not isinstance(value, bytes):
                data = json.dumps(value).encode()
            more: dict[str, Any] = {} if headers is None else {"headers": headers}
            more |= {} if moments_ms is None else {"timestamp": moments_ms[position]}
            producer.produce(
                topic, data, key=keys[position] if keys else None, partition=partition, **more
            )
            producer.poll(0)
        assert producer.flush(30) == 0

    def produce_in_transaction(
        self, topic: str, value: Any, *, commit: bool = True, moment_ms: int | None = None
    ) -> None:
        """Produce one message in a transaction, in the topic's only partition.

        Wait for the mark that ends it, which Kafka writes after its answer.
        """
        producer = self.producer(transactional_id=topic)
        producer.init_transactions(30)
        producer.begin_transaction()
        more = {} if moment_ms is None else {"timestamp": moment_ms}
        producer.produce(topic, json.dumps(value).encode(), partition=0, **more)
        assert producer.flush(30) == 0
        mark = self.end_offset(topic)
        end_transaction = producer.commit_transaction if commit else producer.abort_transaction
        end_transaction(30)
        until = time.monotonic() + 30
        while self.end_offset(topic, IsolationLevel.READ_COMMITTED) <= mark:
            assert time.monotonic() < until
            time.sleep(0.05)

    def end_offset(
        self, topic: str, isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED
    ) -> int:
        admin, partition = self.admin, TopicPartition(topic, 0)
        answer = admin.list_offsets({partition: OffsetSpec.latest()}, isolation_level=isolation)
        return int(answer[partition].result(30).offset)


@contextmanager
def kafka_broker(*, port: int | None = None, **settings: str) -> Iterator[Kafka]:
    """Yield a new broker, which ends with the block."""
    with tempfile.TemporaryDirectory(prefix="opal-kafka-", dir="/tmp") as home:
        broker = Kafka(
            home=Path(home),
            port=port or free_port(),
            settings={name.replace("_", "."): value for name, value in settings.items()},
        )
        broker.format()
        broker.start()
        try:
            yield broker
        finally:
            broker.stop()


@dataclass(slots=True, kw_only=True)
class Listeners:
    """The addresses of one broker: with TLS, or with a login without TLS."""

    kafka: Kafka
    tls: str
    login: str
    certificate: Path


@contextmanager
def kafka_listeners(folder: Path) -> Iterator[Listeners]:
    """Yield a broker with TLS and with SASL/PLAIN: user opal, password secret."""
    certificate, keys = folder / "certificate.pem", folder / "keys.pem"
    request = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -addext"
    files = ["-keyout", str(folder / "key.pem"), "-out", str(certificate)]
    name = "subjectAltName=DNS:localhost,IP:127.0.0.1"
    subprocess.run([*request.split(), name, *files], check=True, capture_output=True)
    keys.write_text((folder / "key.pem").read_text() + certificate.read_text())
    plain, tls, login, controller = (free_port() for _ in range(4))
    addresses = {"PLAINTEXT": plain, "TLS": tls, "LOGIN": login}
    listeners = ",".join(f"{name}://127.0.0.1:{port}" for name, port in addresses.items())
    users = 'user_broker="b" user_opal="secret"'
    module = "org.apache.kafka.common.security.plain.PlainLoginModule"
    jaas = f'{module} required username="broker" password="b" {users};'
    protocols = "PLAINTEXT:PLAINTEXT,TLS:SSL,LOGIN:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT"
    settings = {
        "listeners": f"{listeners},CONTROLLER://127.0.0.1:{controller}",
        "advertised.listeners": listeners,
        "listener.security.protocol.map": protocols,
        "inter.broker.listener.name": "PLAINTEXT",
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.login.plain.sasl.jaas.config": jaas,
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(keys),
    }
    with kafka_broker(port=plain, **settings) as broker:
        yield Listeners(
            kafka=broker,
            tls=f"127.0.0.1:{tls}",
            login=f"127.0.0.1:{login}",
            certificate=certificate,
        )


@pytest.fixture(scope="session")
def kafka() -> Iterator[Kafka]:
    with kafka_broker() as broker:
        yield broker


@dataclass(slots=True, kw_only=True)
class Registry:
    """A registry that answers for schemas by id, and for the versions of subjects.

    `asked` holds the requested ids, `paths` all requested paths. Versions are in the order of
    registration; without `has_versions` it gives none, and for `deleted` subjects neither.
    `references` are the subjects and versions that a schema refers to. `away` makes every answer a
    503, and `broken` holds wrong answers by path.
    """

    url: str = ""
    schemas: dict[int, Any] = field(default_factory=dict)
    kinds: dict[int, str] = field(default_factory=dict)  # the types that it names
    references: dict[int, list[tuple[str, int]]] = field(default_factory=dict)
    subjects: dict[str, list[int]] = field(default_factory=dict)
    asked: list[int] = field(default_factory=list)
    away: bool = False
    has_versions: bool = True
    deleted: set[str] = field(default_factory=set)  # subjects
    versions_code: int | None = None  # the status of its answers about versions
    paths: list[str] = field(default_factory=list)
    broken: dict[str, Any] = field(default_factory=dict)

    def register(
        self,
        number: int,
        schema: Any,
        subject: str = "orders-value",
        references: Sequence[tuple[str, int]] = (),
    ) -> int:
        self.schemas[number] = schema
        self.references[number] = list(references)
        self.subjects.setdefault(subject, []).append(number)
        return number

    def answer(self, path: str) -> Any:
        """Return the answer for a path, None if it does not exist."""
        match path.strip("/").split("/"):
            case ["schemas", "ids", number]:
                self.asked.append(int(number))
                if int(number) not in self.schemas:
                    return None
                answer = self._schema(int(number))
                kind = self.kinds.get(int(number))
                return answer if kind is None else {**answer, "schemaType": kind}
            case ["schemas", "ids", number, "versions"] if self.has_versions:
                return [
                    {"subject": subject, "version": ids.index(int(number)) + 1}
                    for subject, ids in self.subjects.items()
                    if int(number) in ids and subject not in self.deleted
                ]
            case ["subjects", subject, "versions"]:
                return [*range(1, len(self.subjects[unquote(subject)]) + 1)]
            case ["subjects", subject, "versions", version]:
                numbers = self.subjects.get(unquote(subject), [])
                if int(version) > len(numbers):
                    return None
                given = numbers[int(version) - 1]
                return {"id": given, **self._schema(given)}
        return None

    def _schema(self, number: int) -> dict[str, Any]:
        answer: dict[str, Any] = {"schema": json.dumps(self.schemas[number])}
        references = self.references.get(number)
        if references:
            answer["references"] = [
                {"name": f"{subject}.{version}", "subject": subject, "version": version}
                for subject, version in references
            ]
        return answer


@pytest.fixture
def registry() -> Iterator[Registry]:
    known = Registry()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            known.paths.append(self.path)
            answer = known.broken.get(self.path, known.answer(self.path))
            code = 404 if answer is None else 200
            if known.versions_code is not None and "/versions" in self.path:
                code = known.versions_code
            if known.away:
                code = 503
            body = json.dumps({"error_code": 40403} if answer is None else answer).encode()
            self.send_response(code)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(
        target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True
    ).start()
    known.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield known
    finally:
        server.shutdown()
        server.server_close()
