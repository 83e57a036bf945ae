"""Settings that a session lends for the time of an action."""

import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from opal_lake.errors import InvalidInputError
from opal_lake.storage import open_storage
from opal_spark.engine.failures import worker_errors
from opal_spark.engine.java import ensure_java
from opal_spark.engine.session import arrow_batches, row_bytes, rows_from_arrow
from tests.docs.build import example_with
from tests.opal_lake.shop import create, rows

BYTES, ROWS = (
    "spark.sql.execution.arrow.maxBytesPerBatch",
    "spark.sql.execution.arrow.maxRecordsPerBatch",
)
OBJECTS = "spark.sql.execution.arrow.localRelationThreshold"


def test_the_session_s_own_settings_come_back_when_the_last_is_done(spark: SparkSession) -> None:
    """Two Python objects of one session may ask, and leave in any order."""
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


def test_rows_of_this_process_come_in_few_batches(spark: SparkSession) -> None:
    """Few bytes become rows without an RDD, which saves a collect its tasks."""
    before = spark.conf.get(ROWS, None), spark.conf.get(OBJECTS, None)
    schema = StructType().add("id", "long").add("text", "string")
    for count, batches in ((10, 0), (50_000, min(spark.sparkContext.defaultParallelism, 3))):
        rows = pa.table(
            {"id": pa.array(range(count), pa.int64()), "text": pa.array(["some text"] * count)}
        )
        apart = pa.concat_tables([rows.slice(start, 10) for start in range(0, count, 10)])
        shown = rows_from_arrow(spark, apart, schema)
        plan = shown._jdf.queryExecution().optimizedPlan().nodeName()  # type: ignore[operator]  # classic
        assert plan == ("LogicalRDD" if batches else "LocalRelation")
        assert not batches or shown.rdd.getNumPartitions() == batches
        assert shown.agg({"id": "sum"}).collect()[0][0] == sum(range(count))
    assert (spark.conf.get(ROWS, None), spark.conf.get(OBJECTS, None)) == before


def test_a_byte_limit_of_batches_holds_next_to_a_row_limit(spark: SparkSession) -> None:
    with arrow_batches(spark, 1000), arrow_batches(spark, None):
        assert int(spark.conf.get(BYTES) or 0) == 64 << 20


def test_a_lower_limit_of_the_session_is_kept(spark: SparkSession) -> None:
    spark.conf.set(ROWS, "10")
    try:
        with arrow_batches(spark, 1000):
            assert spark.conf.get(ROWS) == "10"
    finally:
        spark.conf.unset(ROWS)


def test_a_row_weighs_what_spark_takes_it_to_weigh(spark: SparkSession) -> None:
    """A Connect server does not report the weight."""
    kinds = (
        "BOOLEAN TINYINT SMALLINT INT BIGINT FLOAT DOUBLE DECIMAL(18,2) DECIMAL(19,0) STRING "
        "BINARY DATE TIMESTAMP TIMESTAMP_NTZ"
    )
    plain = ", ".join(f"c{position} {kind}" for position, kind in enumerate(kinds.split()))
    empty = spark.createDataFrame(
        [],
        (
            f"{plain}, a ARRAY<STRING>, m MAP<STRING, ARRAY<INT>>, s STRUCT<x: INT, y: STRUCT<z: "
            f"DATE>>"
        ),
    )
    assert row_bytes(empty.schema) == empty._jdf.schema().defaultSize()


USES_A_WORKER = """
import sys
from pyspark.sql import SparkSession
from opal_spark import OpalTable
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
rows = spark.range(1).selectExpr("id", "id AS at")
table = OpalTable.create(spark, sys.argv[1], rows.schema, keys=["id"], delta="at")
print(table.ingest(rows).counts["rows"])
"""


@pytest.mark.slow
def test_local_workers_run_this_python_whatever_the_path_calls_python3(tmp_path: Path) -> None:
    (tmp_path / "python3").write_text("#!/bin/sh\necho 'not me' >&2\nexit 1\n")
    (tmp_path / "python3").chmod(0o755)
    ensure_java()
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("PYSPARK")
    }
    environment["PATH"] = f"{tmp_path}{os.pathsep}{environment['PATH']}"
    environment["PYTHONPATH"] = str(Path(__file__).parents[3] / "spark_apps")
    command = [sys.executable, "-c", USES_A_WORKER, str(tmp_path / "t")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.stdout.split() == ["1"], done.stderr[-2000:]


TUTORIAL_SQL = """
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
{block}
print(spark.sql("SELECT count(*) FROM orders").first()[0])
"""


@pytest.mark.slow
def test_the_tutorial_s_sql_runs_where_no_environment_is_activated(tmp_path: Path) -> None:
    """`/path/.venv/bin/python script.py` does not say which Python the workers run."""
    table = create(open_storage(str(tmp_path / "t")))
    for version in range(1, 9):
        table.ingest(*rows([(f"k{version}", version, 1)]), metadata="inline")
    block = example_with("docs/tutorials/table.md", "opal_spark.register(spark)").text
    assert "/lake/orders" in block
    (tmp_path / "script.py").write_text(
        TUTORIAL_SQL.format(block=block.replace("/lake/orders", str(tmp_path / "t")))
    )
    ensure_java()
    environment = {
        "PATH": "/usr/bin:/bin",
        "HOME": str(tmp_path),
        "PYTHONPATH": str(Path(__file__).parents[3] / "spark_apps"),
    }
    environment |= {name: os.environ[name] for name in ("JAVA_HOME",) if name in os.environ}
    command = [sys.executable, str(tmp_path / "script.py")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    shown = [
        "+------+",
        "|orders|",
        "+------+",
        "|     2|",
        "+------+",
        "",
        "2",
    ]  # what the block shows, and the script
    assert done.stdout.splitlines() == shown, done.stderr[-2000:]


def test_another_python_on_the_workers_is_named() -> None:
    """The Python of a cluster's or Connect server's workers is chosen already."""
    for text in (
        "ModuleNotFoundError: No module named 'opal_lake'",
        'Cannot run program "python3": error=2',
        "[PYTHON_VERSION_MISMATCH] ...",
    ):
        with (
            pytest.raises(
                InvalidInputError,
                match=f"run another Python than {sys.executable}. Set PYSPARK_PYTHON",
            ),
            worker_errors(),
        ):
            raise RuntimeError(text)
    with pytest.raises(RuntimeError, match="No module named 'shop'"), worker_errors():
        raise RuntimeError("No module named 'shop'")


REGISTERS_ON_CONNECT = """
from pyspark.sql import SparkSession
import opal_spark
spark = SparkSession.builder.remote("local[1]").config("spark.ui.enabled", "false").getOrCreate()
try:
    opal_spark.register(spark)
except ValueError as error:
    print(error)
"""


@pytest.mark.slow
def test_a_connect_server_with_another_python_is_named_when_it_registers(tmp_path: Path) -> None:
    (tmp_path / "python3").write_text("#!/bin/sh\nexit 1\n")  # no mode to run it
    ensure_java()
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("PYSPARK")
    } | {"SPARK_TESTING": "1"}
    environment |= {
        "PYTHONPATH": str(Path(__file__).parents[3] / "spark_apps"),
        "PYSPARK_PYTHON": str(tmp_path / "python3"),
    }
    done = subprocess.run(
        [sys.executable, "-c", REGISTERS_ON_CONNECT],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert "they run another Python than" in done.stdout, done.stderr[-2000:]
