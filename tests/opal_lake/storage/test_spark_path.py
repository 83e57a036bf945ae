"""Paths as Spark reads and writes them, proved on Spark itself."""

import io
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from opal_lake.errors import InvalidInputError
from opal_lake.storage import Storage, open_storage
from opal_lake.storage.spark_path import hadoop_uri, spark_path

PATTERNS = [
    "br[x]",
    "brx",
    "st*ar",
    "stxar",
    "cu{a}",
    "cua",
    "cu{a,b}",
    "q?m",
    "qxm",
    "back\\slash",
    "back\\*",
    "[!a]",
]
OTHERS = [
    "plain",
    "sp ace",
    "per%20cent",
    "pct%",
    "h#ash",
    "eq=1",
    "ünï-日本",
    "😀",
    "pl+us",
    "am&p",
    "co,mma",
    "new~",
    "a^b",
    "-x",
    "quo'te\"",
]
NAMES = PATTERNS + OTHERS


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    active = SparkSession.getActiveSession()
    session = (
        active
        or SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
    )
    yield session
    if active is None:
        session.stop()


@pytest.mark.slow
@pytest.mark.spark
def test_spark_reads_exactly_the_named_folder(spark: SparkSession, tmp_path: Path) -> None:
    store = open_storage(f"file://{tmp_path}/ta ble%25")
    names = [*NAMES, "co:lon"]
    fill(store, [f"{name}/f.parquet" for name in names])
    for number, name in enumerate(names):
        assert values(spark, spark_path(store, name)) == [number], name


@pytest.mark.spark
@pytest.mark.parametrize("root", ["many", "many [x]{y}*"])
def test_spark_reads_many_oddly_named_files_at_once_and_each_once(
    spark: SparkSession, tmp_path: Path, root: str
) -> None:
    store = open_storage(f"{tmp_path}/{root}")
    paths = [f"{name}/{name}.parquet" for name in NAMES]
    fill(store, paths)
    assert values(spark, *[spark_path(store, path) for path in paths]) == list(range(len(paths)))


@pytest.mark.spark
def test_spark_writes_to_the_named_folder(spark: SparkSession, tmp_path: Path) -> None:
    store = open_storage(f"{tmp_path}/written")
    for name in ["sp ace%20#=", "br[x]*?{a}", "ünï-日本:\\"]:
        spark.range(3).coalesce(1).write.parquet(hadoop_uri(store, name))
        assert any(entry.path.endswith(".parquet") for entry in store.list(f"{name}/"))


def test_s3_is_s3a_to_hadoop() -> None:
    for uri in ("s3://lake/t [1]", "s3a://lake/t [1]"):
        assert (
            spark_path(open_storage(uri), "x=1/a b.parquet")
            == "s3a://lake/t \\[1\\]/x=1/a b.parquet"
        )
        assert hadoop_uri(open_storage(uri), "x") == "s3a://lake/t [1]/x"
        assert hadoop_uri(open_storage(uri)) == "s3a://lake/t [1]"


@pytest.mark.parametrize("uri", ["/a:b/[c]", "s3://lake/a:b*", "file:///a:b/\\"])
def test_colon_with_a_pattern_character_is_refused_before_spark_fails(uri: str) -> None:
    with pytest.raises(InvalidInputError, match="colon"):
        spark_path(open_storage(uri), "x")
    assert hadoop_uri(open_storage(uri), "x").endswith("/x")


def test_the_root_folder_has_one_slash() -> None:
    assert hadoop_uri(open_storage("/"), "x") == "file:///x"


def test_spark_cannot_reach_a_store_in_memory() -> None:
    with pytest.raises(InvalidInputError, match="memory://x"):
        spark_path(open_storage("memory://x"), "a")


def fill(store: Storage, paths: list[str]) -> None:
    """Each file holds its own number."""
    for number, path in enumerate(paths):
        buffer = io.BytesIO()
        pq.write_table(pa.table({"n": [number]}), buffer)
        store.put_if_absent(path, buffer.getvalue())


def values(spark: SparkSession, *paths: str) -> list[int]:
    return sorted(row.n for row in spark.read.schema("n long").parquet(*paths).collect())
