"""Files whose names and paths say something: on S3 through S3A, and on Spark Connect.

On Connect a folder is mutated too.
"""

from pathlib import Path

import pytest

from tests.spark_scripts import run_on_connect, run_script

NAMED = """
def named(spark, put, base):
    # No header, deletes of keys alone, and the suffix as what is later
    put("in/a_1.csv", "1,first,5\\n2,second,5\\n")
    put("in/a_10.csv", "1,newer,6\\n3,third,7\\n")
    put("in/del_5.csv", "2\\n1\\n")
    table = OpalTable.create(spark, f"{base}/t", DDL, keys=["id"], delta="seq", deletes="false")
    given = {"header": False, "columns": ["id", "note", "price"], "deletes": "del*"}
    table.ingest(Files(f"{base}/in", format="csv", order="file_suffix", **given))
    table.metagen()
    rows = sorted((row.id, row.note, row.price, row.seq) for row in table.read().collect())
    assert rows == [(1, "newer", 6, 10), (3, "third", 7, 10)], rows
    put("more/x [1].csv", "id;note;price\\n3;by place;8\\n")
    put("more/y.csv", "id;note;price\\n3;later;9\\n")
    table = OpalTable.create(spark, f"{base}/u", DDL, keys=["id"], delta="seq")
    table.ingest(
        Files([f"{base}/more/*.csv"], header=True, options={"sep": ";"}, order="file_position"),
        metadata="inline",
    )
    assert [(row.note, row.price) for row in table.read().collect()] == [("later", 9)]
"""

ON_S3 = (
    """
import sys
from opal_lake.source import Files
from opal_lake.storage import open_storage
from opal_spark import OpalTable
from tests.fixtures_s3a import s3a_session

endpoint = sys.argv[1]
spark = s3a_session(endpoint)
keys = {
    "aws_access_key_id": "test-key",
    "aws_secret_access_key": "test-secret",
    "region_name": "us-east-1",
}
store = open_storage("s3://lake/named", {"endpoint_url": endpoint, "path_style": "true", **keys})
DDL = spark.createDataFrame([], "id INT, note STRING, price INT, seq BIGINT").schema
"""
    + NAMED
    + """
named(spark, lambda path, text: store.put_if_absent(path, text.encode()), "s3a://lake/named")
spark.stop()
print("all well")
"""
)

ON_CONNECT = (
    """
import sys
from pathlib import Path
from pyspark.sql import SparkSession
from opal_lake.operations.mutate import Mutate
from opal_lake.source import Files
from opal_spark import OpalTable
from opal_spark.engine.java import ensure_java
from opal_spark.mutate import mutate, read_master

ensure_java()
spark = SparkSession.builder.remote("local[2]").config("spark.ui.enabled", "false").getOrCreate()
assert "connect" in type(spark).__module__
DDL = spark.createDataFrame([], "id INT, note STRING, price INT, seq BIGINT").schema
base = sys.argv[1]

def put(path, text):
    at = Path(base) / path
    at.parent.mkdir(parents=True, exist_ok=True)
    at.write_text(text)
"""
    + NAMED
    + """
named(spark, put, base)
put("master/country=de/a.csv", "id,v\\n1,a\\n2,b\\n")
put("incr/b_2.csv", "id,v,country\\n1,moved,it\\n4,new,de\\n")
put("incr/del_3.csv", "id\\n2\\n")
for kind in ("avro", "parquet", None):
    job = Mutate(
        increments=[base + "/incr"],
        ids=["id"],
        order="file_suffix",
        delete_prefix="del",
        output_format=kind,
    )
    result = mutate(spark, base + "/master", job)
    rows = sorted(tuple(row) for row in read_master(spark, base + "/master").collect())
    assert rows == [("1", "moved", "it"), ("4", "new", "de")], (kind, rows)
    put("incr/c_4.csv", "id,v,country\\n1,moved,it\\n5,x,fr\\n")
    put("incr/del_5.csv", "id\\n5\\n")
put("incr/bad_6.csv", "id,v,country\\n1,it\\n")
try:
    mutate(spark, base + "/master", job)
except ValueError as error:
    assert "bad_6.csv, line 2" in str(error), error
else:
    raise AssertionError("a bad row was merged")
spark.stop()
print("all well")
"""
)


@pytest.mark.slow
@pytest.mark.s3
def test_suffixes_and_positions_order_files_on_s3(moto_server: str) -> None:
    run_script(ON_S3, moto_server, 600)


@pytest.mark.slow
def test_suffixes_and_positions_order_files_and_a_folder_is_mutated_on_connect(
    tmp_path: Path,
) -> None:
    run_on_connect(ON_CONNECT, str(tmp_path))
