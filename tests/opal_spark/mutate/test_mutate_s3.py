"""Spark through S3A and the journal through boto3, against a real S3 API."""

import pytest

from tests.spark_scripts import run_script

SCRIPT = """
import sys
from opal_lake.operations.mutate import Mutate
from opal_lake.storage import open_storage
from opal_spark.mutate import mutate, read_master
from tests.fixtures_s3a import s3a_session

endpoint = sys.argv[1]
spark = s3a_session(endpoint)
keys = {
    "aws_access_key_id": "test-key",
    "aws_secret_access_key": "test-secret",
    "region_name": "us-east-1",
}
store = open_storage("s3://lake/mutated", {"endpoint_url": endpoint, "path_style": "true", **keys})


def put(path, text):
    assert store.put_if_absent(path, text.encode())


def run(**more):
    job = Mutate(
        increments=["s3a://lake/mutated/incr"],
        ids=["id"],
        order="at",
        delete_prefix="del",
        backups=1,
        **more,
    )
    return mutate(spark, "s3a://lake/mutated/master", job)


def content():
    return sorted(
        (row.id, row.v, row.country)
        for row in read_master(
            spark, "s3a://lake/mutated/master", options={"header": "true"}
        ).collect()
    )


put("master/country=de/a.csv", "id,v,at\\n1,a,1\\n2,b,1\\n")
put("master/country=fr/a.csv", "id,v,at\\n3,c,1\\n")
put("incr/1 [x].csv", "id,v,at,country\\n1,moved,2,it\\n4,new,2,de\\n")
put("incr/del.csv", "id\\n2\\n")
counted = run(dry_run=True)
assert content() == [("1", "a", "de"), ("2", "b", "de"), ("3", "c", "fr")]
result = run()
assert {name: result.counts[name] for name in counted.counts} == dict(counted.counts), (
    result,
    counted,
)
assert content() == [("1", "moved", "it"), ("3", "c", "fr"), ("4", "new", "de")], content()
assert result.counts["files_replaced"] == 1
assert [file.path for file in store.list("incr/")] == []
assert len(list(store.list("master.mutate/done/"))) == 2
put("incr/2.csv", "id,v,at,country\\n1,again,3,it\\nbad\\n")
try:
    run()
    raise AssertionError("a bad row was merged")
except Exception as error:
    assert "incr/2.csv, line 3" in str(error), error
assert [file.path for file in store.list("incr/")] == ["incr/2.csv"]
assert run(on_bad_rows="quarantine").counts["rejected"] == 1
put("incr/3.csv", "id,v,at,country\\n4,last,4,de\\n")
run()
assert content() == [("1", "again", "it"), ("3", "c", "fr"), ("4", "last", "de")], content()
assert [file.path for file in store.list("master/")] == ["master/country=fr/a.csv"]
spark.stop()
print("all well")
"""


@pytest.mark.slow
@pytest.mark.s3
def test_a_master_on_s3_through_s3a(moto_server: str) -> None:
    run_script(SCRIPT, moto_server, 900)
