"""Settings that a session lends for the time of an action."""

import os
import subprocess
import sys
from pathlib import Path

from pyspark.sql import SparkSession

from opal_spark.java import ensure_java
from opal_spark.session import arrow_batches

BYTES, ROWS = "spark.sql.execution.arrow.maxBytesPerBatch", "spark.sql.execution.arrow.maxRecordsPerBatch"


def test_the_session_s_own_settings_come_back_when_the_last_is_done(spark: SparkSession) -> None:
    """Also when two Python objects of the one session ask, and leave in any order."""
    other = SparkSession.getActiveSession()
    assert other is not None
    before = spark.conf.get(BYTES, None), spark.conf.get(ROWS, None)
    first, second = arrow_batches(spark, 1000), arrow_batches(other, 2000)
    first.__enter__()
    assert spark.conf.get(ROWS) == "1000"
    second.__enter__()
    assert (spark.conf.get(BYTES), spark.conf.get(ROWS)) == (str(2**31 - 1), "1000")
    first.__exit__(None, None, None)
    assert spark.conf.get(ROWS) == "2000"
    second.__exit__(None, None, None)
    assert (spark.conf.get(BYTES, None), spark.conf.get(ROWS, None)) == before


def test_who_has_to_count_bytes_does_so_beside_who_has_not(spark: SparkSession) -> None:
    with arrow_batches(spark, 1000), arrow_batches(spark, None):
        assert int(spark.conf.get(BYTES) or 0) == 64 << 20


def test_a_lower_limit_of_the_session_is_kept(spark: SparkSession) -> None:
    spark.conf.set(ROWS, "10")
    try:
        with arrow_batches(spark, 1000):
            assert spark.conf.get(ROWS) == "10"
    finally:
        spark.conf.unset(ROWS)


USES_A_WORKER = """
import sys
from pyspark.sql import SparkSession
from opal_spark import OpalTable
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
rows = spark.range(1).selectExpr("id", "id AS at")
table = OpalTable.create(spark, sys.argv[1], rows.schema, keys=["id"], delta="at")
print(table.ingest(rows).counts["rows"])
"""


def test_local_workers_run_this_python_whatever_the_path_calls_python3(tmp_path: Path) -> None:
    (tmp_path / "python3").write_text("#!/bin/sh\necho 'not me' >&2\nexit 1\n")
    (tmp_path / "python3").chmod(0o755)
    ensure_java()
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYSPARK")}
    environment["PATH"] = f"{tmp_path}{os.pathsep}{environment['PATH']}"
    environment["PYTHONPATH"] = str(Path(__file__).parents[2] / "spark_apps")
    command = [sys.executable, "-c", USES_A_WORKER, str(tmp_path / "t")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.stdout.split() == ["1"], done.stderr[-2000:]
