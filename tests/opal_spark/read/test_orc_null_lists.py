"""A list of IN that holds a null keeps the same rows in ORC files as in Parquet files."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from opal_lake.errors import InvalidInputError
from opal_spark import OpalTable
from opal_spark.engine.failures import spark_errors

NULL_LISTS = {
    "c BYTE": "(1, 2, NULL)",
    "c SHORT": "(1, NULL)",
    "c INT": "(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, NULL)",
    "c LONG": "(1, 2, CAST(NULL AS BIGINT))",
    "c DECIMAL(10,2)": "(1.00, 2.0, NULL)",
    "c DECIMAL(30,2)": "(1.00, 2, NULL)",
    "c DOUBLE": "(1.0, 2e0, NULL)",
    "c BOOLEAN": "(true, NULL)",
    "c STRING": "('1', '2', NULL)",
    "c BINARY": "(CAST('1' AS BINARY), NULL)",
    "c DATE": "(DATE'1970-01-02', NULL)",
    "c TIMESTAMP": "(timestamp_seconds(1), NULL)",
    "c TIMESTAMP_NTZ": "(TIMESTAMP_NTZ'1970-01-01 00:00:01', NULL)",
}
VALUES = {
    "DATE": "date_from_unix_date(CAST(id AS INT))",
    "TIMESTAMP": "timestamp_seconds(id)",
    "BOOLEAN": "id = 1",
} | {
    "TIMESTAMP_NTZ": "CAST(concat('1970-01-01 00:00:0', id) AS TIMESTAMP_NTZ)",
    "BINARY": "CAST(CAST(id AS STRING) AS BINARY)",
}


@pytest.mark.slow
def test_a_null_in_a_list_keeps_the_same_rows_in_orc_and_in_parquet(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Spark's own filter of ORC files would end in a NullPointerException."""
    kinds = [named.removeprefix("c ") for named in NULL_LISTS]
    columns = [
        f"IF(id = 4, NULL, {VALUES.get(kind, f'CAST(id AS {kind})')}) AS c{position}"
        for position, kind in enumerate(kinds)
    ]
    rows = spark.range(6).selectExpr("id", "id AS at", *columns, "named_struct('x', id) AS s")
    tables = {}
    for file_format in ("orc", "parquet"):
        table = OpalTable.create(
            spark,
            str(tmp_path / file_format),
            rows.schema,
            keys=["id"],
            delta="at",
            file_format=file_format,
        )
        table.ingest(rows, metadata="inline")
        tables[file_format] = table
    lists = {f"c{position}": items for position, items in enumerate(NULL_LISTS.values())} | {
        "s.x": "(1, 2, NULL)"
    }
    filters = [f"{name} IN {items}" for name, items in lists.items()]
    filters += [f"{name} NOT IN {items} OR id = 5" for name, items in lists.items()]
    filters += [
        "NOT (c2 IN (1, NULL) AND id < 4)",
        "id < 3 AND c3 IN (1, nullif(2, 2))",
        "(c3 IN (1, NULL)) IS NULL",
    ]
    as_columns = [f"coalesce({one}, false) AS f{position}" for position, one in enumerate(filters)]
    plain = tables["parquet"].read().selectExpr("id", *as_columns).collect()
    for position, one in enumerate(filters):
        kept = sorted(row.id for row in plain if row[f"f{position}"])
        assert (
            sorted(row.id for row in tables["orc"].read(where=one).select("id").collect()) == kept
        ), one
    assert [
        row.id for row in tables["orc"].read(where="c3 IN (1, NULL)").where("c3 = 1").collect()
    ] == [1]
    with (
        pytest.raises(
            InvalidInputError, match=r"leave the NULL out, give the filter as read\(where=...\)"
        ),
        spark_errors(),
    ):
        tables["orc"].read().where("c3 IN (1, NULL)").collect()
