"""The arguments of Spark's source of Kafka, and its record of a micro-batch."""

import json
from pathlib import Path

import pyspark
import pytest

from opal_lake.errors import FormatError, InvalidInputError
from opal_spark.streams.source import client_settings, package, read_ends, source_options
from opal_stream.kafka.connection import Connection
from opal_stream.kafka.topics import Partition

PARTS = [
    Partition(topic="a", number=0),
    Partition(topic="a", number=2),
    Partition(topic="b", number=1),
]


def settings(**given: str) -> dict[str, str]:
    connection = Connection(
        bootstrap_servers="k:9092",
        settings={name.replace("_", "."): value for name, value in given.items()},
    )
    return client_settings(connection)


def test_reading_begins_at_the_offsets_of_the_table_whatever_the_group_or_a_checkpoint_says() -> (
    None
):
    begins = dict(zip(PARTS, (5, 0, 7), strict=True))
    options = source_options(Connection(bootstrap_servers="k:9092"), begins, every=True, most=100)
    assert json.loads(options["startingOffsets"]) == {"a": {"0": 5, "2": 0}, "b": {"1": 7}}
    assert (options["subscribe"], options["maxOffsetsPerTrigger"], options["failOnDataLoss"]) == (
        "a,b",
        "100",
        "true",
    )
    assert (options["kafka.bootstrap.servers"], options["kafka.isolation.level"]) == (
        "k:9092",
        "read_committed",
    )
    some = source_options(Connection(bootstrap_servers="k:9092"), begins, every=False, most=100)
    assert (json.loads(some["assign"]), "subscribe" in some) == ({"a": [0, 2], "b": [1]}, False)


def test_settings_of_librdkafka_are_those_of_kafkas_client_where_it_has_them() -> None:
    options = settings(
        security_protocol="SASL_PLAINTEXT",
        sasl_mechanisms="PLAIN",
        sasl_username="u",
        sasl_password='p"x',
    )
    assert options["kafka.security.protocol"] == "SASL_PLAINTEXT"
    assert options["kafka.sasl.mechanism"] == "PLAIN"
    assert options["kafka.sasl.jaas.config"].endswith(
        'plain.PlainLoginModule required username="u" password="p\\"x";'
    )
    scram = settings(sasl_mechanism="SCRAM-SHA-256", sasl_username="u", sasl_password="p")
    assert "scram.ScramLoginModule" in scram["kafka.sasl.jaas.config"]
    with pytest.raises(
        InvalidInputError, match=r"no setting for librdkafka's 'fetch.wait.max.ms'; leave it out"
    ):
        settings(fetch_wait_max_ms="10")


def test_a_micro_batch_reads_to_where_spark_wrote_down(tmp_path: Path) -> None:
    (tmp_path / "offsets").mkdir()
    (tmp_path / "offsets" / "3").write_text(
        'v1\n{"batchTimestampMs":1}\n{"a":{"0":9,"2":1},"b":{"1":8}}'
    )
    assert read_ends(tmp_path, 3, ["a", "b"]) == dict(zip(PARTS, (9, 1, 8), strict=True))
    (tmp_path / "offsets" / "4").write_text("v1\n-")
    for number in (4, 5):
        with pytest.raises(
            FormatError, match=rf"offsets/{number}: Spark's record of a micro-batch cannot be read"
        ):
            read_ends(tmp_path, number, ["a"])


def test_the_package_is_one_that_maven_has_whole() -> None:
    whole = {"4.1": "4.1.1", "4.2": "4.2.0"}
    version = whole.get(pyspark.__version__[:3], pyspark.__version__)
    assert package() == f"org.apache.spark:spark-sql-kafka-0-10_2.13:{version}"
