"""The page of streams, run as it stands, against a broker."""

import json
import shlex
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from opal_lake.cli import main
from opal_lake.exit_codes import OK
from opal_lake.table import Table
from opal_spark.streams.source import EXCLUDES, package
from tests.docs.build import examples, page_text, with_places
from tests.fixtures_cli import metadata, opal_commands
from tests.fixtures_kafka import Kafka
from tests.fixtures_spark import need_spark_parts, spark

__all__ = ["metadata", "opal_commands", "spark"]

# The guides go on with the table and the topic of the tutorial
PAGES = (
    "docs/tutorials/stream.md",
    "docs/how-to/debezium.md",
    "docs/how-to/streams.md",
    "docs/how-to/alarms.md",
)


@pytest.fixture
def reader(spark: SparkSession) -> None:
    """`--spark` takes the session that is there, and this one has no source of Kafka."""
    need_spark_parts()
    spark.sql(f"ADD JAR 'ivy://{package()}?transitive=true&exclude={EXCLUDES}'").collect()


@pytest.mark.usefixtures("opal_commands", "reader")
def test_the_page_s_examples_run_in_their_order(
    kafka: Kafka,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("events").mkdir()
    places = {"localhost:9092": kafka.servers}
    kafka.create_topic("orders"), kafka.create_topic("shop.users")
    event = {"before": None, "after": {"id": 1}, "op": "c", "ts_ms": 1, "source": {"lsn": 5}}
    kafka.produce("shop.users", [json.dumps(event).encode()])
    names: dict[str, object] = {}
    for example in (
        example for page in PAGES for example in examples(page, "python", "console", "text")
    ):
        if example.language == "text":
            assert capsys.readouterr().out.strip() == example.text.strip(), example
        elif example.language == "python":
            capsys.readouterr()
            exec(compile(example.with_places(places), str(example), "exec"), names)
        else:
            for command in example.commands:
                if command.startswith("opal "):
                    words, _, file = with_places(command, places).partition(" > ")
                    capsys.readouterr()
                    assert main(shlex.split(words)[1:]) == OK, f"{example}: {command}"
                    if file:
                        Path(file).write_text(capsys.readouterr().out, encoding="utf-8")
    assert Table.open("lake/users").read(columns=["id", "lsn", "op"]).to_pylist() == [
        {"id": 1, "lsn": 5, "op": "c"}
    ]


def test_the_reference_names_every_format() -> None:
    from opal_stream.format_names import FORMATS

    formats = page_text("docs/reference/kafka.md")
    assert [name for name in FORMATS if f"`{name}`" not in formats] == []
