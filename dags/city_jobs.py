"""What the consumers of cities.py and cities.opal.yaml do: they count by city, from what has changed alone."""

from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from opal_lake.errors import NotFoundError
from opal_spark import Change, OpalTable

TOTALS = StructType.fromDDL("city STRING, version BIGINT, total BIGINT")


def count_by_city(change: Change) -> dict[str, int]:
    """One more for each row that came to a city, one less for each that left it. What was counted before is not counted again."""
    one = F.when(F.col("_change_type").isin("insert", "update_postimage"), 1).otherwise(-1)
    moves = (
        change.rows.where("city IS NOT NULL")
        .groupBy("city")
        .agg(F.sum(one).alias("net"))
        .where("net <> 0")
        .collect()
    )
    cities = open_or_create(change.spark, change.arguments["to"])
    before = {
        row["city"]: row["total"]
        for row in cities.get([{"city": move.city} for move in moves]).to_pylist()
    }
    totals = [(move.city, change.version, before.get(move.city, 0) + move.net) for move in moves]
    rows = change.spark.createDataFrame(totals, TOTALS)
    cities.ingest(
        rows, metadata="inline", application=("count_by_city", change.version)
    )  # does nothing if done up to this version
    return {"cities": len(totals)}


def open_or_create(spark: SparkSession, uri: str) -> OpalTable:
    """The table of the totals. A city of nobody has no row."""
    try:
        return OpalTable.for_path(spark, uri)
    except NotFoundError:
        return OpalTable.create(
            spark, uri, TOTALS, keys=["city"], delta="version", deletes="total = 0"
        )
