"""The extra `kafka` alone: a venv of the core's packages and Kafka's clients."""

import importlib.metadata
import json
import os
import re
import subprocess
import venv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fixtures_cli import LAKE, SOURCES, write_metadata
from tests.fixtures_kafka import Kafka, Registry
from tests.opal_stream.formats.build import FIRST, avro, record
from tests.opal_stream.orders import order


def required(*extras: str) -> Iterator[str]:
    """Return the names of the packages that opal-lake requires."""
    lists = [LAKE["dependencies"], *(LAKE["optional-dependencies"][it] for it in extras)]
    for requirement in (requirement for listed in lists for requirement in listed):
        yield _name(requirement)


def _name(requirement: str) -> str:
    match = re.match(r"[\w.-]+", requirement)
    assert match is not None
    return match[0]


def with_dependencies(names: Iterator[str]) -> set[str]:
    """Return packages, and those that they require themselves."""
    pending, actual = list(names), set[str]()
    while pending:
        name = pending.pop()
        if name in actual:
            continue
        actual.add(name)
        needed = importlib.metadata.requires(name) or ()
        pending += [_name(requirement) for requirement in needed if ";" not in requirement]
    return actual


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the interpreter of a venv with these packages alone."""
    home = tmp_path_factory.mktemp("venv")
    venv.create(home, symlinks=True)
    [packages] = home.glob("lib/python*/site-packages")
    for name in with_dependencies(required("kafka")):
        for part in {file.parts[0] for file in importlib.metadata.files(name) or ()}:
            position = Path(str(importlib.metadata.distribution(name).locate_file(part)))
            if part not in ("..", "__pycache__"):
                (packages / part).symlink_to(position)
    (packages / "own.pth").write_text(f"{SOURCES}\n")
    write_metadata(packages, LAKE)
    return home / "bin" / "python"


def run_opal(python: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [python, "-m", "opal_lake.cli", *words]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)


def opal(python: Path, *words: str) -> str:
    run = run_opal(python, *words)
    assert run.returncode == 0, (words, run.stdout, run.stderr)
    return run.stdout


def test_the_venv_has_neither_spark_nor_airflow(python: Path) -> None:
    names = ("pyspark", "airflow", "py4j", "pandas", "pydantic", "sqlalchemy", "boto3", "yaml")
    code = f"import importlib.util as u; print([n for n in {names} if u.find_spec(n)])"
    run = subprocess.run([python, "-c", code], env={}, capture_output=True, text=True)
    assert run.stdout == "[]\n", run.stderr


def test_a_table_lives_with_the_extra_kafka_alone(
    python: Path, kafka: Kafka, registry: Registry, tmp_path: Path
) -> None:
    table = str(tmp_path / "orders")
    columns = "id BIGINT, name STRING, total DOUBLE, op STRING, at TIMESTAMP"
    keys = ("--key", "id", "--delta", "at", "--deletes", "op = 'D'")
    opal(python, "create", table, "--schema", columns, *keys)
    topic = kafka.create_topic(f"extra-{tmp_path.name}")
    kafka.produce(topic, [order(1), order(2), b"no row"])
    of_avro = kafka.create_topic(f"extra-avro-{tmp_path.name}")
    registry.register(7, FIRST)
    kafka.produce(of_avro, [avro(7, FIRST, record(3))])

    def read_topic(name: str, *more: str) -> dict[str, Any]:
        where = ("--bootstrap-servers", kafka.servers, "--topic", name, "--name", name)
        report = opal(python, "stream", "run", table, *where, *more, "--until-empty", "--json")
        return dict(json.loads(report.splitlines()[-1]))

    quarantine = ("--on-bad-message", "quarantine")
    assert read_topic(topic, *quarantine)["records"] == 3
    assert read_topic(of_avro, "--format", "avro", "--registry", registry.url)["records"] == 1
    gathered = ("--commit", "gathered", "--processes", "1")
    kafka.produce(topic, [order(1, 5, op="D"), order(4)])
    assert read_topic(topic, *quarantine, *gathered)["records"] == 2
    rows = json.loads(opal(python, "read", table, "--json", "--where", "id < 9"))
    assert sorted(row["id"] for row in rows) == [2, 3, 4]
    assert "there are more rows" in opal(python, "read", table, "--limit", "2")
    for words in (
        ("maintain", table),
        ("describe", table),
        ("check", table),
        ("rejected", "list", table),
        ("stream", "status", table, "--bootstrap-servers", kafka.servers),
    ):
        assert opal(python, *words)


def test_commands_that_need_spark_report_that_it_is_missing(python: Path, tmp_path: Path) -> None:
    table = str(tmp_path / "orders")
    opal(python, "create", table, "--schema", "id INT, at INT", "--key", "id", "--delta", "at")
    key = ("--key", "id", "--delta", "at")
    file = tmp_path / "in.csv"
    file.write_text("id,at\n1,1\n")
    cases = {
        ("ingest", table, str(file)): "opal ingest",
        ("read", table, "--to", str(tmp_path / "out")): "opal read --to",
        ("maintain", table, "--conf", "spark.driver.memory=8g"): "opal maintain --conf",
        ("create", str(tmp_path / "other"), "--like", "in.csv", *key): "opal create --like",
    }
    for words, named in cases.items():
        run = run_opal(python, *words)
        assert run.returncode == 2
        assert run.stderr == (
            f"opal: {named} needs Spark, which is not installed: pip install 'opal-lake[spark]'\n"
        )
