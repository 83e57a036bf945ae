"""Files written by Arrow, read by Spark, compared with the written values.

It also runs as a script, in a JVM of another time zone.
"""

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from opal_lake.data.columns import to_logical, to_physical
from opal_lake.data.data_file import encode_file
from opal_lake.definition.schema import arrow_schema
from opal_lake.definition.table_spec import TableSpec
from opal_spark.engine.columns import read_columns, spark_schema
from tests.opal_lake.shapes import every_type, spec_of, with_row_ids

SESSION_ZONES = ("UTC", "America/Los_Angeles", "Asia/Kolkata")


def store(table: pa.Table, spec: TableSpec, folder: Path) -> str:
    path = folder / f"rows.{spec.file_format}"
    path.write_bytes(encode_file(to_physical(with_row_ids(table), spec), spec).data)
    return str(path)


def load(spark: SparkSession, spec: TableSpec, path: str) -> DataFrame:
    """Return the physical columns, as a reader of tables loads them."""
    return (
        spark.read.schema(spark_schema(spec, physical=True))
        .option("datetimeRebaseMode", "CORRECTED")
        .format(spec.file_format)
        .load(path)
    )


def logical_rows(rows: DataFrame, spec: TableSpec) -> list[Any]:
    """Spark's rows by way of Arrow, with times in UTC."""
    actual = rows.select(*read_columns(spec)).toArrow()
    assert actual.column_names == spec.schema.names
    plain = spec_of(arrow_schema(spec.schema).empty_table(), "parquet")
    return values_of(to_logical(to_physical(actual, plain), plain).sort_by("d"))


def values_of(table: pa.Table) -> list[Any]:
    """Rows with the entries of maps in one order: Spark's slow ORC reader sorts them."""
    return [_unordered(row) for row in table.to_pylist()]


def _unordered(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _unordered(part) for name, part in value.items()}
    if isinstance(value, list) and value and isinstance(value[0], tuple):
        return {key: _unordered(part) for key, part in value}
    return [_unordered(part) for part in value] if isinstance(value, list) else value


def check_zones(spark: SparkSession, table: pa.Table, file_format: str) -> None:
    spec = spec_of(table, file_format)
    expected = values_of(table.sort_by("d"))
    with tempfile.TemporaryDirectory() as folder:
        path = store(table, spec, Path(folder))
        for zone in SESSION_ZONES:
            spark.conf.set("spark.sql.session.timeZone", zone)
            assert logical_rows(load(spark, spec, path), spec) == expected, (file_format, zone)
    spark.conf.unset("spark.sql.session.timeZone")


def main() -> None:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    options = f"-Duser.timezone={sys.argv[1]}"
    builder = SparkSession.builder.master("local[1]").config(
        "spark.driver.extraJavaOptions", options
    )
    settings = {
        "spark.ui.enabled": "false",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
    }
    spark = builder.config(map=settings).getOrCreate()
    assert spark.sparkContext._jvm.java.util.TimeZone.getDefault().getID() == sys.argv[1]
    for file_format in ("parquet", "orc"):
        check_zones(spark, every_type(), file_format)
    print("equal in all zones")
    spark.stop()


if __name__ == "__main__":
    main()
