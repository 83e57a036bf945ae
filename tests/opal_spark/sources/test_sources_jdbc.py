"""PostgreSQL as a source: exact numbers and times, credentials from the environment, errors."""

from collections.abc import Iterator
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from opal_lake.errors import InvalidInputError, StorageError
from opal_lake.source import Jdbc
from opal_spark import OpalTable
from opal_spark.sources import read_source
from tests.fixtures_postgres import USER, Postgres

pytestmark = [pytest.mark.spark, pytest.mark.postgres]

DRIVER = "org.postgresql:postgresql:42.7.8"
COLUMNS = (
    "id long, price decimal(10,2), uid string, doc string, wall timestamp_ntz, at "
    "timestamp, day date, tags array<string>,"
    " amounts array<decimal(10,2)>, small short, `Na.me` string, raw binary, rate double, "
    "ok boolean"
)
CREATE = """
CREATE TABLE orders (
    id numeric(38,0), price numeric, uid uuid, doc jsonb, wall timestamp, at timestamptz, day date,
    tags text[], amounts numeric(12,4)[], small bigint, "Na.me" text, raw bytea,
    rate double precision, ok boolean)
"""
GOOD = """
INSERT INTO orders VALUES
(1, 2.50, '00000000-0000-0000-0000-000000000001', '{"a": [1]}', '2024-03-31 02:30:00.000001',
 '2024-10-27 02:30+01', '1500-01-01',
 '{a,NULL}', '{1.5000,NULL}', 7, 'x', '\\x00ff', 'NaN', true),
(2, NULL, NULL, NULL, NULL, '0001-01-01 00:00+00', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL)
"""


@pytest.fixture(scope="session")
def driver(spark: SparkSession) -> None:
    """Add the driver to the running session; in a cluster `--packages` adds it."""
    spark.sql(f"ADD JAR ivy://{DRIVER}?transitive=false")


@pytest.fixture
def orders(
    postgres: Postgres, driver: None, monkeypatch: pytest.MonkeyPatch, spark: SparkSession
) -> Iterator[Jdbc]:
    monkeypatch.setenv("SHOP_USER", USER)
    monkeypatch.setenv("SHOP_PASSWORD", postgres.password)
    spark.conf.set("spark.sql.session.timeZone", "Europe/Berlin")
    postgres.execute("DROP TABLE IF EXISTS orders", CREATE, GOOD)
    yield Jdbc(url=postgres.url, table="orders", user_env="SHOP_USER", password_env="SHOP_PASSWORD")
    spark.conf.unset("spark.sql.session.timeZone")


@pytest.fixture
def table(spark: SparkSession, tmp_path: Path) -> OpalTable:
    schema: Any = spark.createDataFrame([], COLUMNS).schema  # type: ignore[arg-type]  # columns are text here
    return OpalTable.create(spark, str(tmp_path / "table"), schema, keys=["id"], delta="at")


def refused(table: OpalTable, source: Jdbc) -> str:
    with pytest.raises(InvalidInputError) as caught:
        table.ingest(source)
    assert len(table.history()) == 1
    return str(caught.value)


def test_postgres_types_arrive_exactly(table: OpalTable, orders: Jdbc) -> None:
    assert table.ingest(orders).counts["rows"] == 2
    table.metagen()
    first, second = table.read().withColumn("at", F.unix_micros("at")).orderBy("id").collect()
    assert (first["id"], first["price"], first["uid"]) == (
        1,
        Decimal("2.50"),
        "00000000-0000-0000-0000-000000000001",
    )
    assert (first["doc"], first["tags"], first["amounts"]) == (
        '{"a": [1]}',
        ["a", None],
        [Decimal("1.50"), None],
    )
    assert first["wall"] == datetime(2024, 3, 31, 2, 30, 0, 1), (
        "a wall-clock time that Berlin never had"
    )
    assert first["at"] == 1_729_992_600_000_000, "the second 02:30 of that night"
    assert (first["day"], first["small"], first["Na.me"], bytes(first["raw"]), first["ok"]) == (
        date(1500, 1, 1),
        7,
        "x",
        b"\x00\xff",
        True,
    )
    assert first["rate"] != first["rate"], "a double may be NaN"
    assert second["at"] == -62_135_596_800_000_000
    assert [second[name] for name in ("price", "wall", "day", "tags", "amounts", "small")] == [
        None
    ] * 6


def test_rows_that_do_not_fit_exactly_fail_the_run_or_are_put_aside(
    table: OpalTable, orders: Jdbc, postgres: Postgres, tmp_path: Path
) -> None:
    bad = {
        "column 'id' is not a valid BIGINT": ["id = 99999999999999999999"],
        "column 'price' is not a valid DECIMAL(10,2)": [
            "price = 'NaN'",
            "price = 1.234",
            "price = 123456789",
        ],
        "column 'wall' is not a valid TIMESTAMP_NTZ": [
            "wall = 'infinity'",
            "wall = '0044-03-15 BC'",
        ],
        "column 'at' is not a valid TIMESTAMP": ["at = 'infinity'", "at = '-infinity'"],
        "column 'day' is not a valid DATE": ["day = 'infinity'"],
        "column 'amounts.element' is not a valid DECIMAL(10,2)": [
            "amounts = '{NaN}'",
            "amounts = '{1.0001}'",
        ],
        "column 'small' is not a valid SMALLINT": ["small = 100000"],
        "key column 'id' is null": ["id = NULL"],
        "delta column 'at' is null": ["at = NULL"],
    }
    for change in (change for changes in bad.values() for change in changes):
        name, _, value = change.partition(" = ")
        other = ("at", "now()") if name == "id" else ("id", "10")
        names, values = (
            [name, other[0]] + (["at"] if "at" not in (name, other[0]) else []),
            [value, other[1], "now()"],
        )
        postgres.execute(
            f"INSERT INTO orders ({', '.join(names)}) VALUES ({', '.join(values[: len(names)])})"
        )
    counts = {reason: len(changes) for reason, changes in bad.items()}
    message = refused(table, orders)
    assert all(
        f"{count} row{'s' * (count > 1)}: {reason}" in message for reason, count in counts.items()
    )
    result = table.ingest(orders, on_bad_rows="quarantine")
    assert (result.counts["rows"], result.counts["rejected"]) == (2, sum(counts.values()))
    assert set(result.notes[:-1]) == {
        f"rejected {count} row{'s' * (count > 1)}: {reason}" for reason, count in counts.items()
    }
    rejected = [
        row
        for path in (tmp_path / "table/_opal/rejected").iterdir()
        for row in pq.read_table(path).to_pylist()
    ]
    assert {row["source"] for row in rejected} == {"jdbc:orders"}
    assert any('"wall":"infinity"' in row["row"] for row in rejected)


def test_a_query_is_read_in_parts_by_any_numeric_column(
    table: OpalTable, orders: Jdbc, postgres: Postgres, spark: SparkSession
) -> None:
    postgres.execute(
        "DELETE FROM orders",
        "INSERT INTO orders (id, at) SELECT n, now() FROM generate_series(1, 100) n",
    )
    split = {"partitionColumn": "id", "lowerBound": "1", "upperBound": "100", "numPartitions": "4"}
    source = Jdbc(
        url=orders.url,
        query="SELECT * FROM orders WHERE id > 10",
        user_env="SHOP_USER",
        password_env="SHOP_PASSWORD",
        options=split,
    )
    parts = (
        read_source(spark, source, table.snapshot_at().spec, 1)
        .groupBy(F.spark_partition_id())
        .count()
        .collect()
    )
    assert len(parts) == 4
    assert table.ingest(source).counts["rows"] == 90


def test_the_password_is_in_no_plan_and_no_message(
    table: OpalTable,
    orders: Jdbc,
    postgres: Postgres,
    spark: SparkSession,
    capsys: pytest.CaptureFixture[str],
) -> None:
    read_source(spark, orders, table.snapshot_at().spec, 1).explain("extended")
    assert "orders" in (plan := capsys.readouterr().out)
    assert postgres.password not in plan
    assert postgres.password not in refused(
        table,
        Jdbc(url=orders.url, query="SELEC", user_env="SHOP_USER", password_env="SHOP_PASSWORD"),
    )


def test_errors_of_a_database_say_what_to_correct(
    table: OpalTable, orders: Jdbc, monkeypatch: pytest.MonkeyPatch
) -> None:
    login = {"user_env": "SHOP_USER", "password_env": "SHOP_PASSWORD"}
    assert 'relation "nowhere" does not exist' in refused(
        table, Jdbc(url=orders.url, table="nowhere", **login)
    )
    columns = refused(
        table, Jdbc(url=orders.url, query="SELECT id::text, 5 AS extra FROM orders", **login)
    )
    assert "unknown column 'extra'" in columns
    assert "missing column 'at'" in columns
    assert "column 'id' is STRING, the table has BIGINT" in columns
    assert "partitionColumn" in refused(
        table, Jdbc(url=orders.url, table="orders", options={"partitionColumn": "id"}, **login)
    )
    assert "'NOT_SET'" in refused(
        table, Jdbc(url=orders.url, table="orders", user_env="SHOP_USER", password_env="NOT_SET")
    )
    monkeypatch.setenv("SHOP_PASSWORD", "wrong")
    assert "password authentication failed" in refused(table, orders)


def test_a_database_that_does_not_answer_may_do_so_later(table: OpalTable, driver: None) -> None:
    with pytest.raises(StorageError, match="try again"):
        table.ingest(Jdbc(url="jdbc:postgresql://127.0.0.1:1/shop", table="orders"))


def test_a_missing_driver_is_named_with_the_package_that_brings_it(table: OpalTable) -> None:
    message = refused(table, Jdbc(url="jdbc:mysql://127.0.0.1:1/shop", table="orders"))
    assert "--packages com.mysql:mysql-connector-j" in message
