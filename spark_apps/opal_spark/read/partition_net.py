"""The net rows of a partition key on Spark: its files alone, and a window that keeps each key's last row."""

from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from opal_lake.definition.schema import DELETED, OFFSET, SEGMENT
from opal_lake.events.bitmap import Bitmaps
from opal_lake.ids import SEQUENCE_BITS, segment_part
from opal_lake.read.partition_net import NetPlan
from opal_spark.engine.columns import quoted, read_columns, spark_schema
from opal_spark.engine.scan import not_after, scan_files

_PLACE = "_opal_place"
_MOST_RANGES = 32


def net_rows(spark: SparkSession, plan: NetPlan, invalid: Bitmaps) -> DataFrame:
    """All columns of the rows. Where no row of the key has an event, each is its key's last."""
    spec = plan.snapshot.spec
    if not plan.files:
        return spark.createDataFrame([], spark_schema(spec, physical=False))
    rows = scan_files(
        spark,
        plan.snapshot.storage,
        plan.files,
        spark_schema(spec, physical=True),
        spec.file_format,
    )
    if any(not plan.segments.issuperset(file.segments) for file in plan.files):
        rows = rows.where(_of_segments(plan))
    if plan.as_of is not None:
        rows = rows.where(not_after(spec, plan.as_of))
    if plan.as_of is not None or not plan.segments.isdisjoint(invalid):
        rows = _last_of_keys(rows, plan)
    return rows.select(*read_columns(spec))


def _of_segments(plan: NetPlan) -> Column:
    """Ranges of ids, an ingest each, which the bounds within files tell apart. What is pending lies in files of its own."""
    numbers = sorted({segment_part(segment) for segment in plan.segments})
    if len(numbers) > _MOST_RANGES:  # Spark's parser and its optimizer go into every OR
        return F.expr(f"shiftright({SEGMENT}, {SEQUENCE_BITS}) IN ({', '.join(map(str, numbers))})")
    ranges = (
        f"{SEGMENT} BETWEEN {number << SEQUENCE_BITS}L AND {((number + 1) << SEQUENCE_BITS) - 1}L"
        for number in numbers
    )
    return F.expr(" OR ".join(ranges))


def _last_of_keys(rows: DataFrame, plan: NetPlan) -> DataFrame:
    spec = plan.snapshot.spec
    order = [
        F.col(quoted(field.physical)).desc_nulls_last() for field in (spec.delta, *spec.tie_break)
    ]
    window = Window.partitionBy(*(quoted(field.physical) for field in spec.keys)).orderBy(
        *order, F.desc(SEGMENT), F.desc(OFFSET)
    )
    last = rows.withColumn(_PLACE, F.row_number().over(window)).where(f"{_PLACE} = 1")
    return last if spec.deletes is None else last.where(f"NOT coalesce({DELETED}, false)")
