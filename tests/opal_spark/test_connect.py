"""Everything also runs on Spark Connect: no py4j and no RDD on the way."""

import os
import subprocess
import sys
from pathlib import Path

SCRIPT = """
import sys
from pyspark.sql import SparkSession
import opal_spark
from opal_spark import OpalTable
from opal_spark.java import ensure_java

ensure_java()
spark = SparkSession.builder.remote("local[2]").config("spark.ui.enabled", "false").getOrCreate()
assert "connect" in type(spark).__module__
rows = spark.createDataFrame([("a", 1, 10), ("b", 1, 20)], "sku STRING, at BIGINT, price INT")
table = OpalTable.create(spark, sys.argv[1], rows.schema, keys=["sku"], delta="at", deletes="price < 0")
table.ingest(rows)
table.metagen()
table.ingest(spark.createDataFrame([("a", 2, 11), ("b", 2, -1), ("c", 0, 7)], rows.schema))
result = table.metagen()
assert (result.counts["updates"], result.counts["deletes"]) == (2, 1), result
assert sorted(map(tuple, table.read().collect())) == [("a", 2, 11), ("c", 0, 7)]
assert table.read(version=2, where="price > 15").count() == 1
assert table.read(event_time=1).count() == 3
opal_spark.register(spark)
assert spark.read.format("opal").load(sys.argv[1]).count() == 2
assert table.check() == []
try:
    table.ingest(spark.createDataFrame([(None, 1, 1)], rows.schema))
except ValueError as error:
    assert "is null" in str(error)
else:
    raise AssertionError("a null key went in")
print("all well")
spark.stop()
"""


def test_a_table_lives_on_spark_connect(tmp_path: Path) -> None:
    # with SPARK_TESTING the server takes a free port, not the one port that all of them take
    environment = os.environ | {
        "SPARK_TESTING": "1",
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
    }
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path / "table")], capture_output=True, text=True, timeout=600, check=False, env=environment
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert "all well" in done.stdout
