"""Spark's Kafka source: its options, with the settings of Kafka's Java client, and its offsets."""

import json
from collections.abc import Collection, Mapping
from pathlib import Path

from opal_lake.errors import FormatError, InvalidInputError
from opal_spark.engine.session import spark_package
from opal_stream.kafka.connection import Connection
from opal_stream.kafka.topics import Partition

# The names of settings in Kafka's Java client, by their names in librdkafka
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
    """Return the Maven coordinates of Spark's Kafka source, for this Spark."""
    return spark_package("spark-sql-kafka-0-10")


# Dependencies of the source that Spark itself has
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
    """Return the options to read from offsets on, at most `most` messages at a time.

    With `every`, all partitions of the topics are read, even partitions that are added later.
    Otherwise only the partitions of `begins` are read.
    """
    starts: dict[str, dict[str, int]] = {}
    for partition, offset in sorted(begins.items()):
        starts.setdefault(partition.topic, {})[str(partition.number)] = offset
    options = client_settings(connection)
    if every:
        options["subscribe"] = ",".join(starts)
    else:
        partitions = {topic: sorted(map(int, numbers)) for topic, numbers in starts.items()}
        options["assign"] = json.dumps(partitions)
    return {
        **options,
        "startingOffsets": json.dumps(starts),
        "maxOffsetsPerTrigger": str(most),
        "failOnDataLoss": "true",
        "kafka.isolation.level": "read_committed",
        "kafkaConsumer.pollTimeoutMs": str(_POLL_MS),
    }


def client_settings(connection: Connection) -> dict[str, str]:
    """Return the settings of a connection as options of Spark's source."""
    given = dict(connection.settings)
    user, password = (given.pop(name, None) for name in _LOGIN)
    unknown = sorted(given.keys() - _SETTINGS.keys())
    if unknown:
        known = ", ".join((*sorted(_SETTINGS), *_LOGIN))
        raise InvalidInputError(
            f"with --spark, Kafka's Java client reads the topics, and it has no setting for "
            f"librdkafka's {unknown[0]!r}; leave it out. Known settings are {known}"
        )
    settings = {_SETTINGS[name]: value for name, value in given.items()}
    if "ssl.ca.location" in given or "ssl.ca.pem" in given:
        settings["ssl.truststore.type"] = "PEM"
    if "ssl.key.pem" in given:
        settings["ssl.keystore.type"] = "PEM"
    if user is not None and password is not None:
        mechanism = settings.get("sasl.mechanism", "PLAIN")
        settings["sasl.jaas.config"] = _jaas(mechanism, str(user), str(password))
    settings["bootstrap.servers"] = connection.bootstrap_servers
    return {f"kafka.{name}": value for name, value in settings.items()}


def _jaas(mechanism: str, user: str, password: str) -> str:
    """Return user and password as the login setting of Kafka's Java client."""
    module = "scram.ScramLoginModule" if mechanism.startswith("SCRAM") else "plain.PlainLoginModule"
    return (
        f"org.apache.kafka.common.security.{module} required "
        f'username="{_escaped(user)}" password="{_escaped(password)}";'
    )


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')


def read_ends(checkpoint: Path, number: int, topics: Collection[str]) -> dict[Partition, int]:
    """Return the offsets up to which a micro-batch reads.

    Spark records them in its checkpoint before it runs the micro-batch.
    """
    path = checkpoint / "offsets" / str(number)
    ends: dict[Partition, int] = {}
    try:
        # The last line has the offsets of the last source, and this query has one source
        offsets = json.loads(path.read_text(encoding="utf-8").splitlines()[-1])
        for topic in topics:
            for part, end in offsets.get(topic, {}).items():
                ends[Partition(topic=topic, number=int(part))] = int(end)
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise FormatError(
            f"{path}: Spark's record of a micro-batch cannot be read ({error}); "
            "use Spark 4.1 or a later 4.x"
        ) from error
    return ends
