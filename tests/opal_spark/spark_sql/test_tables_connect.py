"""Statements about tables on Spark Connect."""

from pathlib import Path

import pytest

from tests.spark_scripts import run_on_connect

SCRIPT = """
import sys
from pyspark.sql import SparkSession
import opal_spark
from opal_spark.engine.java import ensure_java
from opal_spark.spark_sql.script import run_script

ensure_java()
spark = SparkSession.builder.remote("local[2]").config("spark.ui.enabled", "false").getOrCreate()
assert "connect" in type(spark).__module__
opal_spark.catalog(spark, "lake", root=sys.argv[1])
made = '''
CREATE TABLE lake.shop.a (id BIGINT PRIMARY KEY, day DATE) USING opal PARTITIONED BY (day);
ALTER TABLE lake.shop.a ADD COLUMN s STRUCT<x: INT>;
CREATE TABLE lake.shop.b TBLPROPERTIES ('keys' = 'id') AS SELECT id FROM range(:rows);
CALL lake.system.restore('shop.b', timestamp => CAST('2999-01-01' AS TIMESTAMP), dry_run => true);
CALL lake.system.compact('shop.b', target_mb => 8);
SHOW TABLES IN lake.shop;
SHOW CREATE TABLE lake.shop.a;
DESCRIBE HISTORY lake.shop.b;
DESCRIBE EXTENDED lake.shop.b;
RESTORE lake.shop.b TO TIMESTAMP AS OF '2999-01-01';
DROP TABLE lake.shop.b
'''
results = [step.rows.collect() for step in run_script(spark, made, {"rows": 3}, token="x")]
assert results[2][0].counts["inserted"] == 3, results[2]
assert [row.tableName for row in results[5]] == ["a", "b"]
assert "PARTITIONED BY (day)" in results[6][0].createtab_stmt
assert [row.operation for row in results[7]][-2:] == ["insert", "create"]
assert results[7][0].timestamp.year >= 2026
shown = opal_spark.sql(spark, "SHOW TABLES IN lake.shop").collect()
assert [row.tableName for row in shown] == ["a"]
create = "CREATE TABLE lake.c TBLPROPERTIES ('keys' = 'id') AS "
try:
    opal_spark.sql(spark, create + "SELECT 1 DIV 0 AS id")
except Exception as error:
    assert "DIVIDE_BY_ZERO" in str(error), error
else:
    raise AssertionError("a failed query made a table")
broken = "DROP TABLE lake.shop.a;\\nSELECT id FROM lake.shop.a x y"
try:
    list(run_script(spark, broken))
except Exception as error:
    assert "line 2, column 30: Spark's parser" in str(error), error
    assert len(opal_spark.sql(spark, "SHOW TABLES IN lake.shop").collect()) == 1
else:
    raise AssertionError("a script with a syntax error ran")
print("all well")
spark.stop()
"""


@pytest.mark.slow
@pytest.mark.spark
def test_statements_about_tables_run_on_connect(tmp_path: Path) -> None:
    run_on_connect(SCRIPT, str(tmp_path / "lake"))
