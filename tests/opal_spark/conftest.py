"""One local Spark session for all tests of this room."""

import logging
import os
import sys
from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from opal_spark.engine.java import ensure_java


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
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
    logging.getLogger("py4j").setLevel(
        logging.ERROR
    )  # it says at exit that it closes, into a stream that pytest has closed
    session.stop()
