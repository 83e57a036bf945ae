"""Spark's source of Kafka: what it is given to read, in the words of Kafka's own client, and how far a micro-batch reads."""

import json
from collections.abc import Collection, Mapping
from pathlib import Path

from opal_lake.errors import FormatError, InvalidInputError
from opal_spark.engine.session import spark_package
from opal_stream.kafka.connection import Connection
from opal_stream.kafka.topics import Partition

# librdkafka's name of a setting and that of Kafka's own client
_SETTINGS = {
    "client.id": "client.id",
    "sasl.kerberos.service.name": "sasl.kerberos.service.name",
    "sasl.mechanism": "sasl.mechanism",
    "sasl.mechanisms": "sasl.mechanism",
    "security.protocol": "security.protocol",
    "ssl.ca.location": "ssl.truststore.location",
    "ssl.ca.pem": "ssl.truststore.certificates",
    "ssl.certificate.pem": "ssl.keystore.certificate.chain",
    "ssl.key.password": "ssl.key.password",
    "ssl.key.pem": "ssl.keystore.key",
}
_LOGIN = ("sasl.username", "sasl.password")
_POLL_MS = 15_000


def package() -> str:
    """The Maven coordinates of the source, for this Spark."""
    return spark_package("spark-sql-kafka-0-10")


# What Spark itself brings
EXCLUDES = ",".join(
    (
        "org.apache.hadoop:hadoop-client-api",
        "org.apache.hadoop:hadoop-client-runtime",
        "org.scala-lang.modules:scala-parallel-collections_2.13",
        "org.scala-lang:scala-library",
        "org.slf4j:slf4j-api",
        "com.google.code.findbugs:jsr305",
    )
)


def source_options(
    connection: Connection, begins: Mapping[Partition, int], *, every: bool, most: int
) -> dict[str, str]:
    """From these offsets on. `every`: of the topics all partitions, those added later included; `most` messages at once."""
    starts: dict[str, dict[str, int]] = {}
    for partition, offset in sorted(begins.items()):
        starts.setdefault(partition.topic, {})[str(partition.number)] = offset
    chosen = {topic: sorted(map(int, numbers)) for topic, numbers in starts.items()}
    return {
        **client_settings(connection),
        **({"subscribe": ",".join(starts)} if every else {"assign": json.dumps(chosen)}),
        "startingOffsets": json.dumps(starts),
        "maxOffsetsPerTrigger": str(most),
        "failOnDataLoss": "true",
        "kafka.isolation.level": "read_committed",
        "kafkaConsumer.pollTimeoutMs": str(_POLL_MS),
    }


def client_settings(connection: Connection) -> dict[str, str]:
    """As options of Spark's source."""
    given = dict(connection.settings)
    login = [given.pop(name, None) for name in _LOGIN]
    if unknown := sorted(given.keys() - _SETTINGS.keys()):
        raise InvalidInputError(
            f"with --spark, Kafka's own client reads, which has no setting for librdkafka's {unknown[0]!r}; leave it out. "
            f"There are {', '.join((*sorted(_SETTINGS), *_LOGIN))}"
        )
    settings = {_SETTINGS[name]: value for name, value in given.items()}
    settings |= (
        {"ssl.truststore.type": "PEM"} if {"ssl.ca.location", "ssl.ca.pem"} & given.keys() else {}
    )
    settings |= {"ssl.keystore.type": "PEM"} if "ssl.key.pem" in given else {}
    if all(value is not None for value in login):
        settings["sasl.jaas.config"] = _jaas(
            settings.get("sasl.mechanism", "PLAIN"), *map(str, login)
        )
    return {
        f"kafka.{name}": value
        for name, value in {**settings, "bootstrap.servers": connection.bootstrap_servers}.items()
    }


def _jaas(mechanism: str, user: str, password: str) -> str:
    module = "scram.ScramLoginModule" if mechanism.startswith("SCRAM") else "plain.PlainLoginModule"
    quoted = [text.replace("\\", "\\\\").replace('"', '\\"') for text in (user, password)]
    return f'org.apache.kafka.common.security.{module} required username="{quoted[0]}" password="{quoted[1]}";'


def read_ends(checkpoint: Path, number: int, topics: Collection[str]) -> dict[Partition, int]:
    """How far a micro-batch reads: Spark writes that down before it runs one."""
    path = checkpoint / "offsets" / str(number)
    try:
        found = json.loads(path.read_text(encoding="utf-8").splitlines()[-1])
        ends = {
            Partition(topic=topic, number=int(part)): int(end)
            for topic in topics
            for part, end in found.get(topic, {}).items()
        }
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise FormatError(
            f"{path}: Spark's record of a micro-batch cannot be read ({error}); use Spark 4.1 or a later 4.x"
        ) from error
    return ends
