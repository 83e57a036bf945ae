"""The consumers of cities.py and cities.opal.yaml, which count by city from changes alone."""

from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from opal_lake.errors import NotFoundError
from opal_spark import Change, OpalTable

TOTALS = StructType.fromDDL("city STRING, version BIGINT, total BIGINT")


def count_by_city(change: Change) -> dict[str, int]:
    """Add one for each row that came to a city; subtract one for each that left."""
    has_come = F.col("_change_type").isin("insert", "update_postimage")
    difference = F.when(has_come, 1).otherwise(-1)
    moves = (
        change.rows.where("city IS NOT NULL")
        .groupBy("city")
        .agg(F.sum(difference).alias("net"))
        .where("net <> 0")
        .collect()
    )
    cities = open_or_create(change.spark, change.arguments["to"])
    rows_before = cities.get([{"city": move.city} for move in moves]).to_pylist()
    before = {row["city"]: row["total"] for row in rows_before}
    totals = [(move.city, change.version, before.get(move.city, 0) + move.net) for move in moves]
    rows = change.spark.createDataFrame(totals, TOTALS)
    # A repeat of this version, or of an earlier one, changes nothing
    cities.ingest(rows, metadata="inline", application=("count_by_city", change.version))
    return {"cities": len(totals)}


def open_or_create(spark: SparkSession, uri: str) -> OpalTable:
    """Return the table of the totals. A city without users has no row."""
    try:
        return OpalTable.for_path(spark, uri)
    except NotFoundError:
        return OpalTable.create(
            spark, uri, TOTALS, keys=["city"], delta="version", deletes="total = 0"
        )
