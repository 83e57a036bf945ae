"""A real Kafka broker, KRaft, in a folder and on a port of its own.

Its jars are fetched once, by Spark's Ivy.
"""

import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from opal_lake.errors import StorageError

ARTIFACT = ("org.apache.kafka", "kafka_2.13", "4.1.1")
JARS = Path.home() / ".ivy2.5.2" / "opal-kafka"  # next to the jars of Spark's Ivy
START_S = 60
_HEAP = ("-Xmx256m", "-Xms64m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")


def kafka_jars() -> Path:
    """Return the folder with Kafka and its dependencies."""
    return fetch_jars(ARTIFACT[2], ARTIFACT)


def fetch_jars(name: str, *artifacts: tuple[str, str, str]) -> Path:
    """Return the folder of this name, with artifacts and their dependencies."""
    folder = JARS / name
    if folder.exists():
        return folder
    [ivy] = spark_jars("ivy")
    JARS.mkdir(parents=True, exist_ok=True)
    part = Path(tempfile.mkdtemp(prefix=".part-", dir=JARS))
    wanted = part / "ivy.xml"
    needs = "".join(
        f'<dependency org="{org}" name="{module}" rev="{version}" conf="default"/>'
        for org, module, version in artifacts
    )
    own = '<info organisation="opal" module="jars"/>'
    wanted.write_text(
        f'<ivy-module version="2.0">{own}<dependencies>{needs}</dependencies></ivy-module>'
    )
    command = [java(), "-jar", str(ivy), "-warn", "-ivy", str(wanted), "-confs", "default"]
    command += ["-retrieve", f"{part}/[artifact]-[revision](-[classifier]).[ext]"]
    _check(subprocess.run(command, capture_output=True, text=True, check=False))
    wanted.unlink()
    try:
        part.rename(folder)
    except OSError:
        # Another process was faster
        shutil.rmtree(part)
    return folder


def spark_jars(*names: str) -> list[Path]:
    """Return jars of Spark by their names without versions."""
    spark = find_spec("pyspark")
    if spark is None or spark.origin is None:
        raise StorageError(
            "Spark's Ivy fetches Kafka, and Spark is not installed: pip install 'opal-lake[spark]'"
        )
    folder = Path(spark.origin).parent / "jars"
    jars: list[Path] = []
    for name in names:
        jars += folder.glob(f"{name}-[0-9]*.jar")
    return jars


@dataclass(slots=True, kw_only=True)
class Broker:
    """A broker: its folder, its port and its process."""

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
        with (self.home / "log").open("ab") as log:
            command = self._java("kafka.Kafka", str(self.home / "server.properties"))
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        until = time.monotonic() + START_S
        while time.monotonic() < until and self.process.poll() is None:
            try:
                if self.admin.list_topics(timeout=1).brokers:
                    return
            except KafkaException:
                time.sleep(0.2)
        log_end = (self.home / "log").read_text(errors="replace")[-3000:]
        raise StorageError(
            f"Kafka has ended, or did not answer within {START_S} s; {self.home}/log says why: "
            f"fix that and start again. It ends with:\n{log_end}"
        )

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
        # 22 letters; an id that begins with - would be an option
        cluster = "opal" + secrets.token_urlsafe(16)[4:]
        command = self._java(
            "kafka.tools.StorageTool", "format", "--standalone", "-t", cluster, "-c", str(path)
        )
        _check(subprocess.run(command, capture_output=True, text=True, check=False))

    def _java(self, main: str, *arguments: str) -> list[str]:
        return [java(), *_HEAP, "-Dlog4j2.level=WARN", "-cp", f"{kafka_jars()}/*", main, *arguments]


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def _check(done: "subprocess.CompletedProcess[str]") -> None:
    if done.returncode != 0:
        raise StorageError(f"{done.args[-1]}: {(done.stdout + done.stderr)[-2000:]}")


def java() -> str:
    """Return the Java that Spark runs on."""
    home = os.environ.get("JAVA_HOME")
    if not home:
        home = subprocess.run(
            [sys.executable, "-m", "opal_spark.engine.java"],
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
    return str(Path(home) / "bin" / "java")
