"""Everything also runs on Spark Connect: nothing uses py4j or RDDs."""

from pathlib import Path

import pytest

from tests.spark_scripts import run_on_connect

SCRIPT = """
import sys
from dataclasses import replace
from pathlib import Path
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
import opal_spark
from opal_lake import layout
from opal_lake.log.commit import decode_commit, encode_commit
from opal_spark import OpalTable
from opal_spark.engine.java import ensure_java

ensure_java()
spark = SparkSession.builder.remote("local[2]").config("spark.ui.enabled", "false").getOrCreate()
assert "connect" in type(spark).__module__
rows = spark.createDataFrame([("a", 1, 10), ("b", 1, 20)], "sku STRING, at BIGINT, price INT")
table = OpalTable.create(
    spark, sys.argv[1], rows.schema, keys=["sku"], delta="at", deletes="price < 0"
)
table.ingest(rows)
table.metagen(all=True)
table.ingest(spark.createDataFrame([("a", 2, 11), ("b", 2, -1), ("c", 0, 7)], rows.schema))
result = table.metagen(all=True)
assert (result.counts["updates"], result.counts["deletes"]) == (2, 1), result
assert sorted(map(tuple, table.read().collect())) == [("a", 2, 11), ("c", 0, 7)]
table.ingest(
    spark.createDataFrame([("a", 3, 1), ("a", 4, 2), ("b", 0, -1)], rows.schema), partition_key="k"
)
table.ingest(spark.createDataFrame([("a", 5, 3)], rows.schema), partition_key="l")
table.metagen(all=True)
assert [tuple(row) for row in table.read(partition_key="k", net=True).collect()] == [("a", 4, 2)]
assert table.read(partition_key="k").count() == 0
assert table.read(version=2, where="price > 15").count() == 1
where = (
    "coalesce(upper(trim(concat(sku, ' '))), 'x') LIKE '_%' AND price % 4 = 3 "
    "AND -abs(price / 2) < -1 AND length(sku) IN (1, 2)"
)
assert sorted(row.sku for row in table.read(version=4, where=where).collect()) == ["a", "c"]
where = (
    "substring(sku, 1, 1) <= 'b' AND NOT sku <=> NULL "
    "AND (TIMESTAMP '2026-01-01' < TIMESTAMP_NTZ '2026-01-01') IS NULL"
)
try:
    table.read(where=where)
except ValueError as error:
    assert "only one has a zone" in str(error)
else:
    raise AssertionError("two kinds of timestamps were compared")
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

from opal_spark.engine.session import parallelism, rough_rows, row_bytes

assert parallelism(spark) == 2
days = spark.createDataFrame(
    [(i, i, i % 5, f"text {i}") for i in range(2000)], "id BIGINT, at BIGINT, day INT, note STRING"
)
assert 500 < rough_rows(days) < 8000, rough_rows(days)
assert rough_rows(days.crossJoin(days).crossJoin(days).crossJoin(days).crossJoin(days)) is None
for mode in ("inline", "batch"):
    table = OpalTable.create(
        spark, f"{sys.argv[1]}-{mode}", days.schema, keys=["id"], delta="at", partition_by=["day"]
    )
    result = table.ingest(days, metadata=mode)
    table.metagen(all=True)
    assert len(table.files()) <= 10, (mode, len(table.files()))
large = spark.range(400_000).selectExpr("id", "id AS at")
table = OpalTable.create(spark, f"{sys.argv[1]}-large", large.schema, keys=["id"], delta="at")
table.ingest(large, metadata="inline")
assert len(table.files()) == 2, table.files()
for condition in (
    "rand() > 0.5",
    "reflect('java.lang.System', 'lineSeparator') = 'x'",
    "price > (select 1)",
):
    try:
        OpalTable.create(
            spark, sys.argv[1] + "-other", rows.schema, keys=["sku"], delta="at", deletes=condition
        )
    except ValueError as error:
        assert "the delete condition" in str(error)
    else:
        raise AssertionError(f"{condition} was taken")
log = Path(f"{sys.argv[1]}-large") / layout.commit_path(
    0
)  # as if somebody else had written it; no checkpoint stands for it yet
spec = (commit := decode_commit(log.read_bytes(), "")).actions.spec
log.write_bytes(
    encode_commit(
        replace(commit, actions=replace(commit.actions, spec=replace(spec, deletes="rand() > 0.5")))
    )
)
try:
    OpalTable.for_path(spark, f"{sys.argv[1]}-large").ingest(large)
except ValueError as error:
    assert "do not have the function rand()" in str(error)
else:
    raise AssertionError("a condition that does not read the row decided")
table = OpalTable.create(spark, f"{sys.argv[1]}-s", rows.schema, keys=["sku"], delta="at")
table.insert(rows)
table.update({"price": "price * 1.5"}, where="sku = 'a'")
table.update({"price": F.col("t.price") + 1}, where=F.col("price") > 16)
source = spark.createDataFrame([("a", 2, 1), ("c", 2, 3)], rows.schema)
for on in ("t.sku = s.sku", "t.sku = s.sku AND t.at <= s.at"):
    merge = table.merge(source, on=on, duplicates="latest")
    merge = merge.when_matched_update({"price": "t.price + s.price", "at": "s.at"})
    merge.when_not_matched_insert_all().execute()
expected = [("a", 2, 17), ("b", 1, 21), ("c", 2, 6)]
assert sorted(map(tuple, table.read().collect())) == expected
try:
    table.update({"price": "3000000000"})
except ValueError as error:
    assert "cannot hold" in str(error)
else:
    raise AssertionError("a value that the column cannot hold was stored")
for clause in ({"set": {"price": source["price"]}}, {"set": {}, "where": source["price"] > 0}):
    try:
        table.merge(source, on="t.sku = s.sku").when_matched_update(**clause).execute()
    except ValueError as error:
        assert "`s`.`price`" in str(error), error
    else:
        raise AssertionError("a Column of another DataFrame was accepted")
arrow = source.toArrow().append_column("note", [["x", "y"]])
merge = table.merge(arrow, on="t.sku = s.sku").with_schema_evolution()
assert merge.when_matched_update_all().execute().notes == ("added column 'note'",)
print("all well")
spark.stop()
"""


@pytest.mark.slow
@pytest.mark.spark
def test_a_table_lives_on_spark_connect(tmp_path: Path) -> None:
    run_on_connect(SCRIPT, str(tmp_path / "table"))
