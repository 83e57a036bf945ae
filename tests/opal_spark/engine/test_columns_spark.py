import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from opal_lake.definition.schema import arrow_schema
from opal_lake.errors import InvalidInputError
from opal_spark.engine.columns import (
    arrow_of_spark,
    columns_of_schema,
    quoted,
    read_columns,
    spark_schema,
)
from tests.opal_lake.shapes import NAMES, every_type, spec_of, tables
from tests.opal_spark.read_back import check_zones, load, logical_rows, store, values_of

pytestmark = pytest.mark.spark
FORMATS = pytest.mark.parametrize("file_format", ["parquet", "orc"])
ROOT = Path(__file__).parents[3]


@FORMATS
def test_spark_reads_every_type_in_any_session_zone(spark: SparkSession, file_format: str) -> None:
    check_zones(spark, every_type(), file_format)


@FORMATS
@pytest.mark.parametrize("ansi", ["true", "false"])
@pytest.mark.parametrize("vectorized", ["true", "false"])
def test_neither_ansi_nor_the_slow_reader_changes_a_value(
    spark: SparkSession, tmp_path: Path, file_format: str, ansi: str, vectorized: str
) -> None:
    table = every_type()
    spec = spec_of(table, file_format)
    path = store(table, spec, tmp_path)
    changed = {
        "spark.sql.ansi.enabled": ansi,
        f"spark.sql.{file_format}.enableVectorizedReader": vectorized,
    }
    try:
        for name, value in changed.items():
            spark.conf.set(name, value)
        assert logical_rows(load(spark, spec, path), spec) == values_of(table)
    finally:
        for name in changed:
            spark.conf.unset(name)


def test_a_session_that_reads_by_field_ids_reads_the_same(
    spark: SparkSession, tmp_path: Path
) -> None:
    table = every_type()
    spec = spec_of(table, "parquet")
    path = store(table, spec, tmp_path)
    by_id = "spark.sql.parquet.fieldId.read.enabled"
    try:
        spark.conf.set(by_id, "true")
        rows = load(spark, spec, path)
        assert logical_rows(rows, spec) == values_of(table)
        assert not any(column.metadata for column in rows.select(*read_columns(spec)).schema)
    finally:
        spark.conf.unset(by_id)


@pytest.mark.slow
@pytest.mark.parametrize("zone", ["America/Los_Angeles", "Asia/Kolkata"])
def test_the_zone_of_the_jvm_changes_no_value(zone: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.opal_spark.read_back", zone],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "spark_apps")])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "equal in all zones" in done.stdout, done.stderr[-3000:]


@pytest.mark.slow_but_one
@FORMATS
@given(table=tables().filter(lambda table: table.num_rows))
@settings(
    max_examples=20,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.filter_too_much],
)
def test_spark_reads_any_table(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory, file_format: str, table: pa.Table
) -> None:
    spec = spec_of(table, file_format)
    numbered = table.set_column(1, "d", pa.array(range(table.num_rows), pa.int64()))
    path = store(numbered, spec, tmp_path_factory.mktemp("any"))
    assert logical_rows(load(spark, spec, path), spec) == values_of(numbered)


@FORMATS
def test_columns_are_read_in_the_order_asked_for(
    spark: SparkSession, tmp_path: Path, file_format: str
) -> None:
    table = every_type()
    spec = spec_of(table, file_format)
    rows = load(spark, spec, store(table, spec, tmp_path)).select(
        *read_columns(spec, ["n", "RENAMED `s`", "k"])
    )
    assert rows.columns == ["n", "renamed `s`", "k"]
    assert rows.schema["renamed `s`"].dataType == T.StructType(
        [T.StructField("in side", T.IntegerType())]
    )


@FORMATS
def test_columns_younger_than_a_file_are_null(
    spark: SparkSession, tmp_path: Path, file_format: str
) -> None:
    table = every_type()
    path = store(table.select(["k", "d"]), spec_of(table.select(["k", "d"]), file_format), tmp_path)
    spec = spec_of(table, file_format)
    actual = load(spark, spec, path).select(*read_columns(spec)).toArrow()
    assert actual.num_rows == table.num_rows
    assert actual["s"].null_count == actual["t"].null_count == table.num_rows


def test_columns_without_conversion_are_pruned_to_the_read_members(
    spark: SparkSession, tmp_path: Path
) -> None:
    table = pa.table({"k": ["a"], "d": [1], "s": [{"x": 1, "y": 2}]})
    spec = spec_of(table, "parquet")
    rows = load(spark, spec, store(table, spec, tmp_path)).select(*read_columns(spec)).select("s.x")
    assert "ReadSchema: struct<s:struct<x:bigint>>" in rows._jdf.queryExecution().toString()


@pytest.mark.slow
def test_damage_is_an_error_in_spark_when_page_checksums_are_verified(
    spark: SparkSession, tmp_path: Path
) -> None:
    """The option reaches the vectorised reader.

    Without it the same bytes give wrong answers.
    """
    random = np.random.default_rng(0).random(500)  # does not compress: damaged values still decode
    table = pa.table({"k": pa.nulls(500, pa.string()), "d": range(500), "real": random})
    spec = spec_of(table, "parquet")
    path = Path(store(table, spec, tmp_path))
    data = path.read_bytes()
    truth = _sum(spark, path, "true")
    answers: dict[str, list[object]] = {"true": [], "false": []}
    for position in range(4, len(data) // 2, len(data) // 40):
        damaged = tmp_path / f"damaged-{position}.parquet"
        damaged.write_bytes(data[:position] + bytes([data[position] ^ 0x55]) + data[position + 1 :])
        for verify, sums in answers.items():
            sums.append(_sum(spark, damaged, verify))
    assert set(answers["true"]) <= {None, truth}
    assert set(answers["false"]) - {None, truth}


def _sum(spark: SparkSession, path: Path, verify: str) -> object:
    try:
        rows = (
            spark.read.option("parquet.page.verify-checksum.enabled", verify)
            .schema("d bigint, real double")
            .parquet(str(path))
        )
        return rows.agg(F.sum(F.xxhash64("d", "real").cast("decimal(38,0)"))).collect()[0][0]
    except Exception:  # noqa: BLE001 - whatever a reader says of damaged bytes
        return None


@FORMATS
def test_schemas_of_spark_and_arrow_agree(spark: SparkSession, file_format: str) -> None:
    spec = spec_of(every_type(), file_format, deletes="d = 1")
    assert arrow_of_spark(spark_schema(spec, physical=False)) == arrow_schema(spec.schema)
    physical = spark_schema(spec, physical=True)
    assert physical.names[-3:] == ["_opal_segment", "_opal_offset", "_opal_deleted"]
    assert spark.createDataFrame([], physical).schema == physical


def test_char_and_varchar_of_sources_are_strings() -> None:
    schema = T.StructType([T.StructField("c", T.CharType(3)), T.StructField("v", T.VarcharType(3))])
    assert arrow_of_spark(schema) == pa.schema([("c", pa.string()), ("v", pa.string())])


def test_char_and_varchar_in_the_schema_of_a_new_table_are_refused() -> None:
    nested = T.ArrayType(T.StructType([T.StructField("v", T.VarcharType(3))]))
    for kind, message in (
        (T.CharType(3), r"column 'a': CHAR\(3\) is not a type of a table"),
        (nested, r"column 'a.element.v': VARCHAR\(3\) is not a type of a table"),
        (T.MapType(T.VarcharType(2), T.LongType()), r"column 'a.key': VARCHAR\(2\)"),
    ):
        with pytest.raises(InvalidInputError, match=message):
            columns_of_schema(T.StructType([T.StructField("a", kind)]))
    plain = T.StructType([T.StructField("a", T.StringType())])
    assert columns_of_schema(plain) == pa.schema([("a", pa.string())])


@pytest.mark.parametrize(
    "kind,advice",
    [
        (T.DayTimeIntervalType(), "BIGINT microseconds"),
        (T.YearMonthIntervalType(), "INT months"),
        (T.CalendarIntervalType(), "STRING"),
        (T.VariantType(), "to_json"),
        (T.TimeType(), "STRING"),
        (T.NullType(), "cast it to the type"),
        (T.StringType("UNICODE_CI"), "COLLATE UTF8_BINARY"),
    ],
)
def test_types_without_a_place_are_refused_with_advice(kind: T.DataType, advice: str) -> None:
    schema = T.StructType(
        [T.StructField("a", T.ArrayType(T.StructType([T.StructField("b", kind)])))]
    )
    with pytest.raises(InvalidInputError, match=rf"'a\.element\.b'.*{advice}"):
        arrow_of_spark(schema)


@pytest.mark.parametrize("name", NAMES)
def test_quoted_names_are_found(spark: SparkSession, name: str) -> None:
    rows = spark.createDataFrame([(1,)], T.StructType([T.StructField(name, T.IntegerType())]))
    assert rows.select(F.col(quoted(name))).collect() == [(1,)]
