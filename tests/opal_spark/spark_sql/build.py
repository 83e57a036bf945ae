"""A lake with a table, and a view of Spark with the same rows: the model of what SQL means."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

import opal_spark
from opal_spark import OpalTable
from opal_spark.spark_sql.catalog import SETTING

DDL = "id BIGINT, at BIGINT, day DATE, name STRING, total DOUBLE, tags ARRAY<STRING>"
ROWS = """
    (1, 1, DATE '2026-01-01', 'ax', 10.0, array('a', 'b')),
    (2, 1, DATE '2026-01-01', 'it''s', 20.5, array()),
    (3, 1, DATE '2026-01-02', '{id}', NULL, NULL),
    (4, 2, DATE '2026-01-03', 'SELECT', -1.5, array('c')),
    (5, 2, NULL, NULL, 0.0, array(NULL)),
    (6, 2, DATE '2026-01-03', 'ax', 10.0, array('a'))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lake:
    """The catalog `lake` with a table `shop.orders`, and a view of its rows."""

    spark: SparkSession
    root: Path

    def sql(self, text: str, args: Any = None, token: str | None = None) -> DataFrame:
        return opal_spark.sql(self.spark, text, args, token)

    def rows(self, text: str, args: Any = None) -> list[str]:
        return content(self.sql(text, args))

    def create(self, name: str, ddl: str = DDL, **layout: Any) -> OpalTable:
        schema = self.spark.createDataFrame([], ddl).schema
        path = str(self.root.joinpath(*name.split(".")))
        return OpalTable.create(self.spark, path, schema, keys=["id"], delta="at", **layout)

    def counts(self, text: str, args: Any = None, token: str | None = None) -> dict[str, int]:
        [row] = self.sql(text, args, token).collect()
        counts = row.asDict()
        del counts["notes"]
        return {name.removeprefix("num_"): value for name, value in counts.items()}


@contextmanager
def lake(spark: SparkSession, root: Path) -> Iterator[Lake]:
    """Yield a lake with its table and view."""
    opal_spark.catalog(spark, "lake", root=str(root))
    made = Lake(spark=spark, root=root)
    try:
        made.create("shop.orders")
        made.sql(f"INSERT INTO lake.shop.orders VALUES {ROWS}")
        model(spark, spark.sql(f"SELECT * FROM VALUES {ROWS} AS t(id, at, day, name, total, tags)"))
        yield made
    finally:
        spark.conf.unset(SETTING + "lake")
        spark.catalog.dropTempView("orders")


def model(spark: SparkSession, rows: DataFrame) -> None:
    """Give the view `orders` these rows, in the types of the table."""
    columns = [part.split(" ", 1) for part in DDL.split(", ")]
    typed = rows.selectExpr(*[f"CAST({name} AS {kind}) AS {name}" for name, kind in columns])
    spark.createDataFrame(typed.collect(), typed.schema).createOrReplaceTempView("orders")


def content(rows: DataFrame) -> list[str]:
    """Return rows as texts, in an order of their own."""
    return sorted(repr(tuple(row)) for row in rows.collect())


def both(made: Lake, text: str, args: Any = None) -> tuple[Sequence[str], Sequence[str]]:
    """Return the rows of a query on the Opal table, and of the same query on the view.

    In the text, `@` stands for the table.
    """
    given = made.rows(text.replace("@", "lake.shop.orders"), args)
    expected = content(made.spark.sql(text.replace("@", "orders"), args))
    return given, expected
