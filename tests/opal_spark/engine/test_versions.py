"""An unsupported version of Spark is refused with the supported ones, before anything runs."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import LongType, StructField, StructType

from opal_lake.errors import InvalidInputError
from opal_lake.exit_codes import INPUT
from opal_spark import OpalTable
from opal_spark.engine.versions import BEFORE, OLDEST, check_session
from tests.fixtures_cli import LAKE, SOURCES, metadata

__all__ = ["metadata"]

APP = SOURCES / "opal_spark" / "submit" / "app.py"
NEEDED = "opal-lake needs Spark 4.1 or a later 4.x"
OTHERS = ["3.5.8", "4.0.2", "5.0.0", "next"]


def run_with(
    version: str, folder: Path, metadata: Path, *words: str
) -> "subprocess.CompletedProcess[str]":
    """Run Python where `pyspark` is of this version, and has nothing more."""
    package = folder / "pyspark"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(f"__version__ = {version!r}\n")
    path = os.pathsep.join([str(folder), str(metadata), str(SOURCES)])
    return subprocess.run(
        [sys.executable, *words],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.mark.parametrize("version", OTHERS)
def test_the_app_refuses_another_spark_as_wrong_input(
    version: str, tmp_path: Path, metadata: Path
) -> None:
    spec = {"operation": "metagen", "table": str(tmp_path / "t"), "arguments": {}}
    done = run_with(version, tmp_path, metadata, str(APP), "--spec", json.dumps(spec))
    assert done.returncode == INPUT
    assert f"PySpark {version}, and {NEEDED}: pip install" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_command_refuses_another_spark_as_wrong_input(tmp_path: Path, metadata: Path) -> None:
    words = ("-m", "opal_lake.cli", "ingest", str(tmp_path / "t"), "in.csv")
    done = run_with("4.0.2", tmp_path, metadata, *words)
    assert (done.returncode, done.stdout) == (INPUT, "")
    assert f"{tmp_path / 'pyspark'} is PySpark 4.0.2, and {NEEDED}" in done.stderr


def test_a_notebook_gets_no_table_of_another_spark(tmp_path: Path, metadata: Path) -> None:
    done = run_with("3.5.8", tmp_path, metadata, "-c", "from opal_spark import OpalTable")
    assert done.stderr.splitlines()[-1].startswith("opal_lake.errors.InvalidInputError")
    assert NEEDED in done.stderr
    done = run_with("3.5.8", tmp_path / "_", metadata, "-c", "from opal_spark import Files")
    assert done.returncode == 0, "needs no Spark"


@pytest.mark.parametrize("version", OTHERS)
def test_a_session_of_another_spark_makes_and_opens_no_table(version: str, tmp_path: Path) -> None:
    session: Any = SimpleNamespace(version=version)  # as that of a Connect server
    uri, columns = str(tmp_path / "t"), StructType([StructField("id", LongType())])
    for opened in (
        lambda: OpalTable.create(session, uri, columns, keys=["id"], delta="id"),
        lambda: OpalTable.for_path(session, uri),
    ):
        with pytest.raises(InvalidInputError, match=f"runs on Spark {version}, and {NEEDED}"):
            opened()
    assert not (tmp_path / "t").exists()


def test_a_path_in_the_place_of_the_session_is_named(tmp_path: Path) -> None:
    uri: Any = str(tmp_path / "t")
    session: Any = SimpleNamespace(version="4.1.3")
    columns = StructType([StructField("id", LongType())])
    for opened in (
        lambda: OpalTable.for_path(uri, session),
        lambda: OpalTable.create(uri, session, columns, keys=["id"], delta="id"),
    ):
        with pytest.raises(InvalidInputError, match="is not a SparkSession; the session comes fir"):
            opened()


@pytest.mark.parametrize("version", ["4.1.0", "4.1.3-amzn-0", "4.2.1", "4.3.0.dev1", "4.10.0"])
def test_versions_in_the_range_are_accepted(version: str) -> None:
    session: Any = SimpleNamespace(version=version)
    check_session(session)


def test_the_extras_ask_for_the_range_that_is_checked() -> None:
    asked = f">={OLDEST[0]}.{OLDEST[1]},<{BEFORE[0]}"
    extras = LAKE["optional-dependencies"]
    assert f"pyspark{asked}" in extras["spark"]
    assert f"pyspark-client{asked}" in extras["connect"]


def test_a_session_reports_its_version(spark: SparkSession) -> None:
    check_session(spark)
