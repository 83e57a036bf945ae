"""Tables of the shop on Spark, their rows, and a store that fails in the driver alone."""

from collections.abc import Sequence
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from opal_lake.storage import Storage
from opal_lake.table import table_on
from opal_spark import OpalTable
from tests.kit.failing_store import FailingStore
from tests.opal_lake.shop import Row

DDL = "sku STRING, at BIGINT, price INT"
FIRST: list[Row] = [("ax", 1, 10), ("bow", 1, 20), ("cup", 1, 30)]
SECOND: list[Row] = [("ax", 2, 11), ("bow", 3, None), ("cup", 0, 29), ("elk", 2, 50)]
DAYS: list[list[Row]] = [
    [("ax", 1, 10), ("bow", 1, 20), ("cup", 1, 30), ("dye", 5, 40)],
    [("ax", 2, 11), ("bow", 3, None), ("cup", 0, 29), ("elk", 2, 50)],
    [("bow", 4, None), ("ax", 6, 12), ("fan", 6, 60)],
]


def frame(spark: SparkSession, rows: Sequence[Row], slices: int = 1) -> DataFrame:
    return spark.createDataFrame(list(rows), DDL).repartition(slices)


def content(rows: DataFrame) -> list[Row]:
    return sorted((row.sku, row.at, row.price) for row in rows.collect())


def create(
    spark: SparkSession, path: Path, file_format: str = "parquet", **properties: int
) -> OpalTable:
    schema = spark.createDataFrame([], DDL).schema
    return OpalTable.create(
        spark,
        str(path),
        schema,
        keys=["sku"],
        delta="at",
        deletes="price IS NULL",
        file_format=file_format,
        properties=properties,
    )


class DriverStore(FailingStore):
    """A store that fails in this process only: workers get the sound store below."""

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return _itself, (self.inner,)


def _itself(storage: Storage) -> Storage:
    return storage


def upsert(spark: SparkSession, storage: Storage, metadata: str) -> None:
    """Run a whole upsert with tokens, as a scheduler reruns it."""
    table = OpalTable.on(spark, table_on(storage))
    table.ingest(frame(spark, SECOND), token="ingest", metadata=metadata)
    if metadata == "batch":
        table.metagen(token="metagen")
