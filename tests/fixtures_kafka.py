"""A real Kafka broker, KRaft, in a folder and on a port of its own; and a small schema registry over HTTP."""

import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaException, Producer, TopicCollection
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

ARTIFACT = ("org.apache.kafka", "kafka_2.13", "4.1.1")
JARS = Path.home() / ".ivy2.5.2" / "opal-kafka"  # beside what Spark's Ivy keeps
START_S = 60


def kafka_jars() -> Path:
    """The folder with Kafka and all that it needs, fetched once by the Ivy that Spark brings."""
    folder = JARS / ARTIFACT[2]
    if folder.exists():
        return folder
    import pyspark

    [ivy] = (Path(pyspark.__file__).parent / "jars").glob("ivy-*.jar")
    JARS.mkdir(parents=True, exist_ok=True)
    part = Path(tempfile.mkdtemp(prefix=".part-", dir=JARS))
    command = [_java(), "-jar", str(ivy), "-warn", "-dependency", *ARTIFACT, "-confs", "default"]
    done = subprocess.run([*command, "-retrieve", f"{part}/[artifact]-[revision](-[classifier]).[ext]"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    try:
        part.rename(folder)
    except OSError:  # another process was faster
        shutil.rmtree(part)
    return folder


@dataclass(slots=True, kw_only=True)
class Kafka:
    """A broker, its folder and its process."""

    home: Path
    port: int
    settings: Mapping[str, str] = field(default_factory=dict)
    process: "subprocess.Popen[bytes] | None" = None

    @property
    def servers(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.servers, "log_level": 0})

    def start(self) -> None:
        self.process = subprocess.Popen(
            self._java("kafka.Kafka", str(self.home / "server.properties")),
            stdin=subprocess.DEVNULL,
            stdout=(self.home / "log").open("ab"),
            stderr=subprocess.STDOUT,
        )
        until = time.monotonic() + START_S
        while time.monotonic() < until:
            assert self.process.poll() is None, (self.home / "log").read_text()[-3000:]
            try:
                if self.admin.list_topics(timeout=1).brokers:
                    return
            except KafkaException:
                time.sleep(0.2)
        raise AssertionError("Kafka does not answer: " + (self.home / "log").read_text()[-3000:])

    def stop(self, *, kill: bool = False) -> None:
        if self.process is not None:
            self.process.kill() if kill else self.process.terminate()
            self.process.wait(60)
            self.process = None

    def format(self) -> None:
        lines = {
            "process.roles": "broker,controller",
            "node.id": "1",
            "listeners": f"PLAINTEXT://127.0.0.1:{self.port},CONTROLLER://127.0.0.1:{free_port()}",
            "controller.listener.names": "CONTROLLER",
            "log.dirs": str(self.home / "data"),
            "offsets.topic.replication.factor": "1",
            "offsets.topic.num.partitions": "1",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "transaction.state.log.num.partitions": "1",
            "group.initial.rebalance.delay.ms": "0",
            "auto.create.topics.enable": "false",
            "message.max.bytes": str(20 << 20),
            "log.retention.check.interval.ms": "500",
            "file.delete.delay.ms": "0",
            **self.settings,
        }
        lines["controller.quorum.bootstrap.servers"] = lines["listeners"].rpartition("//")[2]
        path = self.home / "server.properties"
        path.write_text("".join(f"{name}={value}\n" for name, value in lines.items()))
        cluster = "opal" + secrets.token_urlsafe(16)[4:]  # 22 letters; one that begins with - would be an option
        command = self._java("kafka.tools.StorageTool", "format", "--standalone", "-t", cluster, "-c", str(path))
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr

    def create_topic(self, name: str, partitions: int = 1, **config: str) -> str:
        settings = {key.replace("_", "."): value for key, value in config.items()}
        new = NewTopic(name, num_partitions=partitions, replication_factor=1, config=settings)
        admin = self.admin  # its answers end with it
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
        return str(admin.describe_topics(TopicCollection([name]))[name].result(30).topic_id).replace("+", "-").replace("/", "_")

    def producer(self, **settings: Any) -> Producer:
        given = {name.replace("_", "."): value for name, value in settings.items()}
        return Producer({"bootstrap.servers": self.servers, "linger.ms": 5, "log_level": 0, "message.max.bytes": 20 << 20, **given})

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
        """Values that are no bytes are written as JSON."""
        producer = self.producer()
        for position, value in enumerate(values):
            data = value if value is None or isinstance(value, bytes) else json.dumps(value).encode()
            more: dict[str, Any] = {} if headers is None else {"headers": headers}
            more |= {} if moments_ms is None else {"timestamp": moments_ms[position]}
            producer.produce(topic, data, key=keys[position] if keys else None, partition=partition, **more)
            producer.poll(0)
        assert producer.flush(30) == 0

    def _java(self, main: str, *arguments: str) -> list[str]:
        log = "-Dlog4j2.level=WARN"
        heap = ["-Xmx256m", "-Xms64m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        return [_java(), *heap, log, "-cp", f"{kafka_jars()}/*", main, *arguments]


@contextmanager
def kafka_broker(**settings: str) -> Iterator[Kafka]:
    """A broker of its own, gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="opal-kafka-", dir="/tmp") as home:
        broker = Kafka(home=Path(home), port=free_port(), settings={name.replace("_", "."): value for name, value in settings.items()})
        broker.format()
        broker.start()
        try:
            yield broker
        finally:
            broker.stop()


@pytest.fixture(scope="session")
def kafka() -> Iterator[Kafka]:
    with kafka_broker() as broker:
        yield broker


@dataclass(slots=True, kw_only=True)
class Registry:
    """Answers /schemas/ids/N, and counts how often. `away` makes every answer a 503."""

    url: str = ""
    schemas: dict[int, Any] = field(default_factory=dict)
    asked: list[int] = field(default_factory=list)
    away: bool = False

    def register(self, number: int, schema: Any) -> int:
        self.schemas[number] = schema
        return number


@pytest.fixture
def registry() -> Iterator[Registry]:
    known = Registry()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            number = int(self.path.rpartition("/")[2])
            known.asked.append(number)
            code = 503 if known.away else 200 if number in known.schemas else 404
            body = json.dumps({"schema": json.dumps(known.schemas[number])} if code == 200 else {"error_code": 40403}).encode()
            self.send_response(code)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    known.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield known
    finally:
        server.shutdown()
        server.server_close()


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def _java() -> str:
    """The one that Spark runs on."""
    home = os.environ.get("JAVA_HOME")
    if not home:
        home = subprocess.run([sys.executable, "-m", "opal_spark.engine.java"], capture_output=True, text=True, check=True).stdout.strip()
    return str(Path(home) / "bin" / "java")
