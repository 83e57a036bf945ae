"""Reads on Spark.

Files without visible rows are not opened. Groups of files without hidden rows are plain scans. In
the other groups each row is filtered by its bit in a bitmap, whose packed words (`words`) are
joined on `_opal_segment`, with one broadcast for each group. Files of such a group without hidden
rows are joined, too, with empty lists of words. A union of a filtered and a plain scan would break
Spark's code generation, which costs each row three times as much as the test of a bit.
"""

from collections.abc import Sequence
from functools import reduce
from itertools import chain

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import IntegerType, LongType, StructType

from opal_lake.data.prune import Predicate
from opal_lake.data.recent import Recent
from opal_lake.data.segment import DataFile
from opal_lake.definition.schema import OFFSET, SEGMENT
from opal_lake.definition.table_spec import TableSpec
from opal_lake.events.bitmap import Bitmaps
from opal_lake.log.snapshot import Snapshot
from opal_lake.log.visibility import invalid_rows
from opal_lake.read.partition_net import plan_net
from opal_lake.read.read import ReadPlan, plan_read
from opal_lake.read.result_columns import chosen_fields
from opal_lake.read.view import View
from opal_lake.read.where import where_predicate
from opal_spark.engine.columns import quoted, read_columns, spark_schema
from opal_spark.engine.conditions import filtered
from opal_spark.engine.scan import not_after, scan_files
from opal_spark.engine.verify import verify_files
from opal_spark.read.partition_net import net_rows
from opal_spark.read.words import is_not_marked, word_lists

_KEY, _WORDS = "_opal_key", "_opal_words"
_MAX_CACHED = 4  # states of tables whose bitmaps are kept in memory


def read(spark: SparkSession, view: View, files_where: Predicate | None = None) -> DataFrame:
    """Return a DataFrame of the visible rows, or of the net rows of a partition key.

    The state of the table is fixed now; rows are read when the DataFrame is used. Files whose
    bounds do not meet `files_where` are left out of visible rows.
    """
    snapshot = view.snapshot
    spec = snapshot.spec
    if view.net_of is not None:
        # The condition does not limit the files: each key's last row is found first
        plan = plan_net(snapshot, view.net_of, view.as_of)
        verify_files(spark, snapshot, plan.files)
        rows = net_rows(spark, plan, cached_invalid(snapshot, None))
    else:
        invalid = view.narrowed(cached_invalid(snapshot, view.as_of))
        predicate = files_where or where_predicate(view.condition)
        read_plan = plan_read(snapshot, view.as_of, predicate, invalid)
        verify_files(spark, snapshot, read_plan.files)
        rows = visible_rows(spark, read_plan)
    if view.condition is not None:
        rows = filtered(rows, view.condition)
    if view.columns is None and not spec.orders_by_commit:
        return rows
    columns = [quoted(field.name) for field in chosen_fields(spec, view.columns)]
    return rows.select(*columns)


def rows_with_ids(spark: SparkSession, snapshot: Snapshot, where: Predicate | None) -> DataFrame:
    """Return the visible rows with all columns and their row ids.

    Files whose bounds do not meet the predicate are left out.
    """
    plan = statement_read(snapshot, where)
    verify_files(spark, snapshot, plan.files)
    return visible_rows(spark, plan, with_ids=True)


def statement_read(snapshot: Snapshot, where: Predicate | None) -> ReadPlan:
    """Plan a read of the visible rows.

    Files whose bounds do not meet the predicate are left out.
    """
    return plan_read(snapshot, None, where, cached_invalid(snapshot, None))


def stored_rows(spark: SparkSession, plan: ReadPlan) -> DataFrame:
    """Return all rows of a plan's files, hidden ones too, with their row ids."""
    spec = plan.snapshot.spec
    rows = scan_files(spark, plan.snapshot.storage, plan.files, spec)
    return rows.select(*read_columns(spec), SEGMENT, OFFSET)


def visible_rows(spark: SparkSession, plan: ReadPlan, *, with_ids: bool = False) -> DataFrame:
    """Return the visible rows with all columns, and with their row ids if asked for."""
    spec = plan.snapshot.spec
    # The groups with hidden rows
    mixed = sorted({file.group for file in plan.mixed})
    table_columns = read_columns(spec)
    if with_ids:
        table_columns += [SEGMENT, OFFSET]

    def scan(files: Sequence[DataFile]) -> DataFrame:
        return scan_files(spark, plan.snapshot.storage, files, spec)

    whole = [file for file in plan.plain if file.group not in mixed]
    parts = [scan(whole)] if whole else []
    for group in mixed:
        files = [file for file in plan.files if file.group == group]
        parts.append(_filtered(spark, scan(files), plan, files))
    if not parts:
        return spark.createDataFrame([], _schema(spec, with_ids=with_ids))
    return reduce(DataFrame.union, [rows.select(*table_columns) for rows in parts])


def _schema(spec: TableSpec, *, with_ids: bool) -> StructType:
    schema = spark_schema(spec, physical=False)
    if with_ids:
        schema.add(SEGMENT, LongType()).add(OFFSET, IntegerType())
    return schema


def _filtered(
    spark: SparkSession, rows: DataFrame, plan: ReadPlan, files: Sequence[DataFile]
) -> DataFrame:
    """Return the visible ones of the rows of a group's files."""
    if plan.as_of is not None:
        rows = rows.where(not_after(plan.snapshot.spec, plan.as_of))
    segments = sorted(set(chain.from_iterable(file.segments for file in files)))
    if plan.invalid.keys().isdisjoint(segments):
        return rows
    local = pa.table(
        {
            _KEY: pa.array(segments, pa.int64()),
            _WORDS: word_lists(plan.invalid, segments, plan.snapshot),
        }
    )
    words = F.broadcast(spark.createDataFrame(local))
    joined = rows.join(words, F.expr(f"{SEGMENT} = {_KEY}"))
    return joined.where(is_not_marked(_WORDS))


_cached: Recent[tuple[str, str, int | None], Bitmaps] = Recent(max_size=_MAX_CACHED)


def cached_invalid(snapshot: Snapshot, as_of: int | None) -> Bitmaps:
    """Return the bitmaps of invalid rows, from memory if they were read recently."""
    # A write id permanently names one state of the table
    key = (snapshot.root.table_id, snapshot.root.write_id, as_of)
    return _cached.get(key, lambda: invalid_rows(snapshot, as_of))
