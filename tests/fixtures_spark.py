"""A session of Spark for tests, and a Spark whose workers run in processes of their own."""

import logging
import os
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def need_spark_parts() -> None:
    """Skip a test of Avro or Kafka by Spark above Spark 4.2: Maven lacks the parts."""
    minor = tuple(map(int, version("pyspark").split(".")[:2]))
    if minor > (4, 2):
        pytest.skip("Maven has no spark-avro and no spark-sql-kafka of this Spark")


def spark_home(folder: Path) -> Path:
    """Return PySpark's home as links: workers of a cluster write into it."""
    import pyspark

    home = folder / "spark"
    if not home.exists():
        home.mkdir()
        for entry in Path(pyspark.__file__).parent.iterdir():
            (home / entry.name).symlink_to(entry)
    return home


@pytest.fixture(scope="session")
def spark() -> "Iterator[SparkSession]":
    """Yield one local session for all tests."""
    # Imported here: tests of this process alone need no Spark
    from pyspark.sql import SparkSession

    from opal_spark.engine.java import ensure_java

    ensure_java()
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master("local[2]").appName("opal-tests")
    settings = {
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "2g",
        "spark.python.daemon.module": "tests.opal_spark.workers",
        "spark.sql.shuffle.partitions": "4",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    session = builder.config(map=settings).getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    yield session
    # It logs at exit that it closes, into a stream that pytest has closed
    logging.getLogger("py4j").setLevel(logging.ERROR)
    session.stop()
