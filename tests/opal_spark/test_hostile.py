"""A hostile table on Spark: it reads nothing outside of its folder, and runs no code."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from opal_lake import layout
from opal_lake.errors import FormatError, InvalidInputError
from opal_lake.log.commit import canonical_json, decode_commit, encode_commit, seal
from opal_lake.write.bootstrap import SourceTable
from opal_spark import OpalTable
from opal_spark.engine.failures import spark_errors
from tests.opal_spark.build import DDL, content, frame

CODE = "reflect('java.lang.System', 'setProperty', 'opal.hostile', 'ran') = 'x'"


def forged(spark: SparkSession, folder: Path, *, deletes: str = "price IS NULL") -> Path:
    """Somebody's table: the condition is written over after it was made."""
    table = OpalTable.create(
        spark,
        str(folder),
        spark.createDataFrame([], DDL).schema,
        keys=["sku"],
        delta="at",
        deletes="price IS NULL",
        properties={"read_verify": "none"},
    )
    table.ingest(frame(spark, [("a", 1, 1)]), metadata="inline")
    path = folder / layout.commit_path(0)
    commit = decode_commit(path.read_bytes(), str(path))
    spec = commit.actions.spec
    assert spec is not None
    path.write_bytes(
        encode_commit(
            replace(commit, actions=replace(commit.actions, spec=replace(spec, deletes=deletes)))
        )
    )
    return folder


@pytest.mark.slow_but_one
@pytest.mark.parametrize("metadata", ["batch", "inline"])
def test_a_condition_in_somebodys_table_runs_no_code(
    spark: SparkSession, tmp_path: Path, metadata: str
) -> None:
    table = OpalTable.for_path(spark, str(forged(spark, tmp_path / "table", deletes=CODE)))
    with pytest.raises(InvalidInputError, match=r"do not have the function reflect\(\)"):
        table.ingest(frame(spark, [("b", 1, 1)]), metadata=metadata)
    assert spark.sparkContext._jvm.java.lang.System.getProperty("opal.hostile") is None  # type: ignore[union-attr]
    assert content(table.read()) == [("a", 1, 1)]
    assert "I25" in {finding.invariant for finding in table.check()}


def test_an_invalid_regular_expression_is_an_input_error(spark: SparkSession) -> None:
    with (
        pytest.raises(InvalidInputError, match=r"regular expression.*Unclosed character class"),
        spark_errors(),
    ):
        spark.range(1).selectExpr("cast(id AS string) RLIKE '['").collect()


def test_a_link_below_the_root_is_not_followed(spark: SparkSession, tmp_path: Path) -> None:
    folder = forged(spark, tmp_path / "table")
    assert content(OpalTable.for_path(spark, str(folder)).read()) == [("a", 1, 1)]
    file = next((folder / "data").rglob("*.parquet"))
    shutil.move(file, tmp_path / "secret.parquet")
    file.symlink_to(tmp_path / "secret.parquet")
    with pytest.raises(InvalidInputError, match="link"):
        OpalTable.for_path(spark, str(folder)).read()
    file.unlink()
    file.mkdir()
    (file / "x.parquet").symlink_to(tmp_path / "secret.parquet")
    with pytest.raises(InvalidInputError, match="link, a folder"):
        OpalTable.for_path(spark, str(folder)).read()
    shutil.rmtree(file)
    shutil.move(folder / "data", tmp_path / "data")
    (folder / "data").symlink_to(tmp_path / "data")
    shutil.move(tmp_path / "secret.parquet", tmp_path / "data" / file.name)
    with pytest.raises(InvalidInputError, match="link"):
        OpalTable.for_path(spark, str(folder)).read()
    (tmp_path / "link").symlink_to(folder)  # the root itself may be one
    (folder / "data").unlink()
    shutil.move(tmp_path / "data", folder / "data")
    assert content(OpalTable.for_path(spark, str(tmp_path / "link")).read()) == [("a", 1, 1)]


@pytest.mark.slow
def test_the_plan_of_a_bootstrap_names_no_other_place_and_no_class(
    spark: SparkSession, tmp_path: Path
) -> None:
    folder, source = forged(spark, tmp_path / "table"), tmp_path / "source"
    frame(spark, [("b", 1, 1)]).write.parquet(str(source))
    frame(spark, [("s", 1, 1)]).write.parquet(str(tmp_path / "secret"))
    secret = next((tmp_path / "secret").glob("*.parquet"))
    plain = json.loads(spark.createDataFrame([], DDL).schema.json())
    code = {
        "type": "udt",
        "class": "x",
        "pyClass": "os.x",
        "sqlType": "integer",
        "serializedClass": "gASVAAAA",
    }
    unsafe = {
        **plain,
        "fields": [*plain["fields"], {"name": "u", "type": code, "nullable": True, "metadata": {}}],
    }
    origin = SourceTable(location=str(source), format="parquet")
    stamp = secret.stat().st_mtime_ns // 1_000_000
    for schema, location, path, message in (
        (plain, str(source), f"file://{secret}", "not below"),
        (plain, str(source), f"file://{source}/../secret/{secret.name}", "not below"),
        (plain, str(tmp_path / "secret"), f"file://{secret}", "is for"),
        (unsafe, str(source), f"file://{source}/x.parquet", "user-defined type"),
    ):
        batch = [[path, secret.stat().st_size, 1, stamp]]
        plan = {
            "batches": [batch],
            "folders": [],
            "schema": schema,
            "source": [location, "parquet", None],
        }
        plan_path = folder / layout.bootstrap_plan_path(origin.name)
        plan_path.parent.mkdir(parents=True, exist_ok=True)
        plan_path.write_bytes(seal(canonical_json(plan)))
        with pytest.raises(FormatError, match=message):
            OpalTable.bootstrap(
                spark,
                str(folder),
                str(source),
                format="parquet",
                keys=["sku"],
                delta="at",
                deletes="price IS NULL",
            )
