"""Bootstrap of Delta and Iceberg tables, each in a process of its own with the real readers."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from opal_lake.source import DELTA_CONF, PACKAGES
from opal_spark.engine.java import ensure_java
from tests.fixtures_cli import SOURCES

pytestmark = [pytest.mark.spark, pytest.mark.slow]

HEAD = """
import sys
from pathlib import Path
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from opal_lake.write import bootstrap as core
from opal_lake.errors import InvalidInputError
from opal_lake.operations.ingest import Ingest
from opal_spark import OpalTable
from opal_lake.write.bootstrap import source_table
from opal_lake.write.bootstrap_job import ingest_batch
from opal_spark.sources.tables import batch_rows, plan_source
from opal_spark.write.bootstrap import SparkSource

folder = Path(sys.argv[1])
spark = SparkSession.builder.getOrCreate()
spark.sparkContext.setLogLevel("OFF")


def frame(ids, at, name):
    return spark.createDataFrame(
        [(key, at, f"{name}{key}", key % 3) for key in ids],
        "id BIGINT, at BIGINT, name STRING, part INT",
    )


def shown(rows):
    return sorted(tuple(row) for row in rows.select("id", "at", "name", "part").collect())


def taken(uri):
    table = OpalTable.for_path(spark, uri)
    assert table.check() == [], table.check()
    return shown(table.read()), table.describe()["counts"]["rows_ingested"]


LAYOUT = {"keys": ["id"], "delta": "at"}
"""

DELTA = """
old = str(folder / "old table")
frame(range(60), 1, "a").repartition(3).write.format("delta").partitionBy("part").option(
    "delta.enableDeletionVectors", "true"
).save(old)
frame(range(60, 90), 2, "b").repartition(2).write.format("delta").partitionBy("part").mode(
    "append"
).save(old)
spark.sql(f"DELETE FROM delta.`{old}` WHERE id % 10 = 1")
spark.sql(f"DELETE FROM delta.`{old}` WHERE part = 2 AND id < 60")  # whole files go
spark.sql(f"UPDATE delta.`{old}` SET name = 'u', at = 5 WHERE id % 7 = 0")
there = spark.read.format("delta").load(old)
vectors = (
    spark.read.json(f"{old}/_delta_log/*.json").where("add.deletionVector IS NOT NULL").count()
)
assert vectors > 0
want, version = shown(there), 4

plan = plan_source(spark, source_table(old, "delta", None), None, 1)
assert plan.source.version == version, plan.source
assert 1 < len(plan.batches) <= core.MAX_SCANS, len(plan.batches)
assert (
    sorted(
        row for batch in range(len(plan.batches)) for row in shown(batch_rows(spark, plan, batch))
    )
    == want
)

# the first try dies after two batches; the table goes on meanwhile
source = source_table(old, "delta", None)
schema = there.schema
table = OpalTable.create(spark, str(folder / "new"), schema, **LAYOUT)
core.fix_plan(table.storage, source.name, plan)
for batch in range(2):
    ingest_batch(table, SparkSource(spark=spark, source=source), plan, batch, Ingest(source))
frame(range(0, 200), 9, "later").write.format("delta").mode("append").save(old)
spark.sql(f"DELETE FROM delta.`{old}` WHERE id < 30")
result = OpalTable.bootstrap(spark, str(folder / "new"), old, format="delta", **LAYOUT)
assert (result.counts["batches_skipped"], result.counts["batches_done"]) == (
    2,
    len(plan.batches) - 2,
), result
assert taken(str(folder / "new")) == (want, len(want))
assert OpalTable.bootstrap(spark, str(folder / "new"), old, format="delta", **LAYOUT).repeated

# an older version, by its number
OpalTable.bootstrap(
    spark, str(folder / "first"), old, format="delta", source_version=0, batch_mb=1, **LAYOUT
)
assert taken(str(folder / "first"))[0] == shown(frame(range(60), 1, "a"))

# a file that is gone is an error, not fewer rows
Path(
    next(iter(plan.batches[-1])).path.replace("file:", "").replace("%20", " ").replace("///", "/")
).unlink()
try:
    OpalTable.bootstrap(
        spark, str(folder / "gone"), old, format="delta", source_version=4, **LAYOUT
    )
except Exception as error:
    assert "does not exist" in str(error) or "FILE_NOT_EXIST" in str(error), error
else:
    raise AssertionError("a lost file went unnoticed")
try:
    OpalTable.bootstrap(
        spark, str(folder / "none"), str(folder / "nowhere"), format="delta", **LAYOUT
    )
except InvalidInputError as error:
    assert "cannot be read as delta" in str(error), error
print("ALL WELL")
"""

ICEBERG = """
for version, place in (("2", "path"), ("3", "name")):
    name = f"ice.db.t{version}"
    spark.sql(
        f"CREATE TABLE {name} (id BIGINT, at BIGINT, name STRING, part INT) "
        "USING iceberg PARTITIONED BY (part) "
        f"TBLPROPERTIES ('format-version'='{version}', "
        "'write.delete.mode'='merge-on-read', 'write.update.mode'='merge-on-read')"
    )
    empty = OpalTable.bootstrap(
        spark, str(folder / f"empty{version}"), name, format="iceberg", **LAYOUT
    )
    assert (empty.version, empty.counts["rows"] if "rows" in empty.counts else 0) == (0, 0), empty
    frame(range(60), 1, "a").writeTo(name).append()
    first = spark.sql(f"SELECT snapshot_id FROM {name}.refs").head()[0]
    frame(range(60, 90), 2, "b").writeTo(name).append()
    spark.sql(f"DELETE FROM {name} WHERE id % 10 = 1")
    spark.sql(f"DELETE FROM {name} WHERE part = 2 AND id < 60")
    spark.sql(f"UPDATE {name} SET name = 'u', at = 5 WHERE id % 7 = 0")
    assert spark.sql(f"SELECT 1 FROM {name}.delete_files").count() > 0
    there = spark.table(name)
    want = shown(there)
    old = name if place == "name" else str(folder / "warehouse" / "db" / "t2")
    source = source_table(old, "iceberg", None)
    plan = plan_source(spark, source, None, 1)
    assert 1 < len(plan.batches) <= core.MAX_SCANS, len(plan.batches)
    new = str(folder / f"new{version}")
    table = OpalTable.create(spark, new, there.schema, **LAYOUT)
    core.fix_plan(table.storage, source.name, plan)
    ingest_batch(table, SparkSource(spark=spark, source=source), plan, 0, Ingest(source))
    frame(range(200), 9, "later").writeTo(name).append()
    spark.sql(f"DELETE FROM {name} WHERE id < 30")
    result = OpalTable.bootstrap(spark, new, old, format="iceberg", **LAYOUT)
    assert (result.counts["batches_skipped"], result.counts["batches_done"]) == (
        1,
        len(plan.batches) - 1,
    ), result
    assert taken(new) == (want, len(want))
    assert OpalTable.bootstrap(spark, new, old, format="iceberg", **LAYOUT).repeated
    OpalTable.bootstrap(
        spark,
        str(folder / f"first{version}"),
        old,
        format="iceberg",
        source_version=first,
        **LAYOUT,
    )
    assert taken(str(folder / f"first{version}"))[0] == shown(frame(range(60), 1, "a"))
try:
    OpalTable.bootstrap(spark, str(folder / "none"), "ice.db.nothing", format="iceberg", **LAYOUT)
except InvalidInputError as error:
    assert "cannot be read as iceberg" in str(error), error
print("ALL WELL")
"""


def run(script: str, conf: dict[str, str], folder: Path) -> subprocess.CompletedProcess[str]:
    ensure_java()
    settings = {
        "spark.master": "local[2]",
        "spark.ui.enabled": "false",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.sql.shuffle.partitions": "2",
        "spark.databricks.delta.snapshotPartitions": "2",
        **conf,
    }
    words = " ".join(f"--conf {name}={value}" for name, value in settings.items())
    environment = {
        **os.environ,
        "PYTHONPATH": str(SOURCES),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    environment["PYSPARK_SUBMIT_ARGS"] = f"{words} pyspark-shell"
    return subprocess.run(
        [sys.executable, "-c", HEAD + script, str(folder)],
        env=environment,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=900,
    )


def test_a_delta_table_with_deletion_vectors(tmp_path: Path) -> None:
    done = run(DELTA, {"spark.jars.packages": PACKAGES["delta"], **DELTA_CONF}, tmp_path)
    assert done.stdout.endswith("ALL WELL\n"), done.stdout[-2000:] + done.stderr[-6000:]


def test_iceberg_tables_of_version_2_and_3_with_deletes(tmp_path: Path) -> None:
    catalog = {
        "spark.sql.catalog.ice": "org.apache.iceberg.spark.SparkCatalog",
        "spark.sql.catalog.ice.type": "hadoop",
        "spark.sql.catalog.ice.warehouse": str(tmp_path / "warehouse"),
        "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
    }
    done = run(ICEBERG, {"spark.jars.packages": PACKAGES["iceberg"], **catalog}, tmp_path)
    assert done.stdout.endswith("ALL WELL\n"), done.stdout[-2000:] + done.stderr[-6000:]


def test_delta_without_its_settings_is_explained(tmp_path: Path) -> None:
    script = """
(folder / "old" / "_delta_log").mkdir(parents=True)
(folder / "old" / "_delta_log" / f"{0:020d}.json").write_text("{}")
try:
    OpalTable.bootstrap(spark, str(folder / "new"), str(folder / "old"), format="delta", **LAYOUT)
except InvalidInputError as error:
    assert (
        "Spark is not set up to read Delta: start Spark with --packages io.delta:delta-spark"
        in str(error)
    ), error
    assert "--conf spark.sql.extensions=io.delta.sql.DeltaSparkSessionExtension" in str(error), (
        error
    )
    print("ALL WELL")
"""
    done = run(script, {"spark.jars.packages": PACKAGES["delta"]}, tmp_path)
    assert done.stdout.endswith("ALL WELL\n"), done.stdout[-2000:] + done.stderr[-6000:]
