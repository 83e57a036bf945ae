"""The change feed on Spark: rows that ended or began are found as reads find invalid ones, by a broadcast join with packed words.

The plan says which of them belong to one update. Where it does not, a window over the changed rows alone does, by their keys. What a
segment brings to the join are arrays of its size: they end where a row has been judged, in generated code, for a copy of them with each row
would cost more than all else.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial, reduce

import numpy as np
import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F
from pyspark.sql.types import StructType
from pyspark.sql.window import WindowSpec

from opal_lake.definition.schema import OFFSET, SEGMENT, Field
from opal_lake.definition.table_spec import TableSpec
from opal_lake.operations.read import Changes
from opal_lake.read.changed_rows import (
    CHANGE_TYPE,
    COMMIT_TIMESTAMP,
    COMMIT_VERSION,
    DELETE,
    FEED_COLUMNS,
    INSERT,
    POSTIMAGE,
    PREIMAGE,
    feed_fields,
    read_changes,
)
from opal_lake.read.changes import ChangePlan, ChangeSpan, EndedRows, plan_changes
from opal_lake.read.history_changes import history_changes as read_history_changes
from opal_lake.read.result_columns import is_named
from opal_lake.read.view import ChangesPlan
from opal_lake.read.where import where_predicate
from opal_spark.engine.columns import quoted, read_fields, spark_schema
from opal_spark.engine.conditions import filtered
from opal_spark.engine.scan import scan_files
from opal_spark.engine.session import rows_from_arrow
from opal_spark.engine.verify import verify_files
from opal_spark.read.history_view import history_changes
from opal_spark.read.words import is_marked, is_not_marked, rank_lists, rank_of, word_lists

_KEY, _CHANGE, _BEGAN, _HIDDEN = "_opal_key", "_opal_change", "_opal_began", "_opal_hidden"
_ENDED, _ENDED_BY, _RANK = "_opal_ended", "_opal_ended_by", "_opal_rank"
_UPDATED, _GONE = "_opal_updated", "_opal_gone"
_AFTER, _VERSION, _UPDATE = "_opal_after", "_opal_version", "_opal_update"
_MOST_TIMES = 256  # as literals: Spark's parser reads them one by one
_MOST_RANGES = 32  # Spark's optimizer goes into every OR


def changes(spark: SparkSession, asked: ChangesPlan) -> DataFrame:
    """Return the changes as a DataFrame. Which rows they are is fixed now.

    Few rows are read now, more when the DataFrame is used.
    """
    versions, feed, condition = asked.versions, asked.feed, asked.condition
    spec = versions.head.spec
    if feed.is_of_history:
        rows_of = partial(_history_rows, asked)
        return history_changes(spark, spec, rows_of, feed.columns, condition)
    fields = feed_fields(spec, feed.columns)
    plan = plan_changes(asked.log, versions, where_predicate(condition), is_net=feed.is_net)
    if plan.is_small:
        rows = _local_rows(spark, plan, feed, fields if condition is None else None)
    else:
        for span in plan.spans:
            verify_files(spark, span.snapshot, span.files)
        plan = replace(
            plan, has_pairs=plan.has_pairs and not plan.may_lack
        )  # a task does not know which rows are in no file
        rows = _changed_rows(spark, plan)
        rows = _labelled(rows if plan.has_pairs else _matched_by_key(rows, spec, feed), feed)
    rows = filtered(rows, condition) if condition else rows
    return rows.select(
        *(quoted(field.name) for field in fields), CHANGE_TYPE, COMMIT_VERSION, COMMIT_TIMESTAMP
    )


def _local_rows(
    spark: SparkSession, plan: ChangePlan, feed: Changes, fields: Sequence[Field] | None
) -> DataFrame:
    """The same, read in this process; of all columns that a feed can have, unless some are chosen."""
    if fields is None:
        fields = [field for field in plan.spec.schema.fields if not is_named(field, FEED_COLUMNS)]
    known = spark_schema(plan.spec, physical=False)
    schema = StructType([known[field.name] for field in fields])
    schema = (
        schema.add(CHANGE_TYPE, "string")
        .add(COMMIT_VERSION, "long")
        .add(COMMIT_TIMESTAMP, "timestamp")
    )
    return rows_from_arrow(spark, read_changes(plan, feed, fields), schema)


def _history_rows(asked: ChangesPlan, names: Sequence[str]) -> pa.Table:
    feed = replace(asked.feed, columns=names)
    return read_history_changes(asked.log, asked.cache, asked.versions, feed)


def _changed_rows(spark: SparkSession, plan: ChangePlan) -> DataFrame:
    """Rows that ended and rows that began, with the version and the time of that; a row that did both comes twice."""
    fields = [field for field in plan.spec.schema.fields if not is_named(field, FEED_COLUMNS)]
    logical = [*read_fields(fields, plan.spec), _VERSION, _AFTER, _UPDATE]
    groups = [(span, group) for span in plan.spans for group in {file.group for file in span.files}]
    parts = [_of_group(spark, plan, span, group).select(*logical) for span, group in groups]
    if not parts:
        schema = (
            spark_schema(plan.spec, physical=True)
            .add(_VERSION, "long")
            .add(_AFTER, "boolean")
            .add(_UPDATE, "boolean")
        )
        schema = schema.add(COMMIT_TIMESTAMP, "timestamp")
        return spark.createDataFrame([], schema).select(*logical, COMMIT_TIMESTAMP)
    return _with_times(spark, reduce(DataFrame.union, parts), plan.times_us)


def _with_times(spark: SparkSession, rows: DataFrame, times_us: Mapping[int, int]) -> DataFrame:
    """When each version was committed: of neighbours as literals, which saves a job."""
    first, count = min(times_us, default=0), max(times_us, default=0) - min(times_us, default=0) + 1
    if count <= _MOST_TIMES:
        known = (
            f"{times_us[version]}L" if version in times_us else "NULL"
            for version in range(first, first + count)
        )
        return rows.withColumn(
            COMMIT_TIMESTAMP,
            F.expr(f"timestamp_micros(get(array({', '.join(known)}), int({_VERSION} - {first}L)))"),
        )
    moments = pa.array(times_us.values(), pa.timestamp("us", "UTC"))
    times = pa.table({_KEY: pa.array(times_us, pa.int64()), COMMIT_TIMESTAMP: moments})
    return rows.join(
        F.broadcast(spark.createDataFrame(times)), F.expr(f"{_VERSION} = {_KEY}")
    ).drop(_KEY)


def _of_group(spark: SparkSession, plan: ChangePlan, span: ChangeSpan, group: int) -> DataFrame:
    """By the specification of the whole feed: files of an earlier version lack what was added since, which is null."""
    spec = plan.spec
    files = [file for file in span.files if file.group == group]
    rows = scan_files(
        spark, span.snapshot.storage, files, spark_schema(spec, physical=True), spec.file_format
    )
    segments = sorted(
        {segment for file in files for segment in file.segments} & {*span.begun, *span.marks}
    )
    mine = span.ended.take(np.isin(span.ended.segment, segments))
    local = {
        _KEY: pa.array(segments, pa.int64()),
        _BEGAN: pa.array([span.begun.get(segment) for segment in segments], pa.int64()),
        _HIDDEN: word_lists(span.never_visible, segments, span.snapshot),
        _ENDED: word_lists(span.marks, segments, span.snapshot),
    }
    was_deleted, is_update = "false", "false"
    if plan.has_pairs:
        local[_UPDATED], is_update = (
            word_lists(plan.updated, segments, span.snapshot),
            is_marked(_UPDATED),
        )
    if plan.has_pairs and span.deleted:
        local[_GONE], was_deleted = (
            word_lists(span.deleted, segments, span.snapshot),
            is_marked(_GONE),
        )
    ended_by = F.lit(int(mine.version[0]) if len(mine) else 0).cast("long")
    if len(np.unique(mine.version)) > 1:
        local |= {
            _RANK: rank_lists(span.marks, segments, span.snapshot),
            _ENDED_BY: _version_lists(mine, segments),
        }
        ended_by = F.expr(f"get({_ENDED_BY}, {rank_of(_ENDED, _RANK)})")
    if len(segments) <= _MOST_RANGES:
        rows = rows.where(_near(span, segments))
    rows = rows.join(
        F.broadcast(spark.createDataFrame(pa.table(local))), F.expr(f"{SEGMENT} = {_KEY}")
    )
    begun, ended = f"{_BEGAN} IS NOT NULL AND {is_not_marked(_HIDDEN)}", is_marked(_ENDED)
    rows = rows.where(f"({begun}) OR {ended}")
    if span.begun.keys().isdisjoint(span.marks):
        after, update = F.expr(begun), F.expr(f"if({begun}, {is_update}, NOT {was_deleted})")
        return rows.withColumns(
            {
                _VERSION: F.when(after, F.col(_BEGAN)).otherwise(ended_by),
                _AFTER: after,
                _UPDATE: update,
            }
        )
    did = F.array(
        _change(begun, F.col(_BEGAN), is_update, after=True),
        _change(ended, ended_by, f"NOT {was_deleted}", after=False),
    )
    rows = rows.withColumn(_CHANGE, F.explode(did))
    return rows.where(f"{_CHANGE} IS NOT NULL").select("*", f"{_CHANGE}.*")


def _near(span: ChangeSpan, segments: Sequence[int]) -> str:
    """Where the rows are, for the extremes that Parquet keeps of row groups."""
    ranges = []
    for segment in segments:
        rows = f"{SEGMENT} = {segment}L"
        if segment not in span.begun:
            rows += (
                f" AND {OFFSET} BETWEEN {span.marks[segment].min()} AND {span.marks[segment].max()}"
            )
        ranges.append(f"({rows})")
    return " OR ".join(ranges) or "false"


def _change(happened: str, version: Column, is_update: str, *, after: bool) -> Column:
    return F.when(
        F.expr(happened),
        F.struct(
            version.alias(_VERSION), F.lit(after).alias(_AFTER), F.expr(is_update).alias(_UPDATE)
        ),
    )


def _version_lists(ended: EndedRows, segments: Sequence[int]) -> pa.ListArray:
    """Of each segment the versions that ended its rows, in the order of these."""
    ends = np.searchsorted(ended.segment, segments, side="right").astype(np.int32)
    return pa.ListArray.from_arrays(
        np.concatenate([np.zeros(1, np.int32), ends]), pa.array(ended.version)
    )


def _matched_by_key(rows: DataFrame, spec: TableSpec, feed: Changes) -> DataFrame:
    """Of a net feed the rows that it tells of, and which rows are those of updates. Without updates nothing has to be sorted."""
    keys = [quoted(field.name) for field in spec.keys]
    if feed.is_net:
        by_time = _by_hash(keys).orderBy(_VERSION, _AFTER)
        whole = by_time.rowsBetween(Window.unboundedPreceding, Window.unboundedFollowing)
        existed, exists = ~F.first(_AFTER).over(whole), F.last(_AFTER).over(whole)
        is_first, is_last = (
            F.lag(_AFTER).over(by_time).isNull(),
            F.lead(_AFTER).over(by_time).isNull(),
        )
        return rows.withColumns(
            {_UPDATE: existed & exists, _ENDED: is_first & existed | is_last & exists}
        ).where(_ENDED)
    if feed.compute_updates:  # of a key, a version ends one row and begins one at most
        return rows.withColumn(_UPDATE, F.count(F.lit(1)).over(_by_hash([*keys, _VERSION])) > 1)
    return rows


def _labelled(rows: DataFrame, feed: Changes) -> DataFrame:
    """What happened to each row, as `opal_lake.read.changed_rows` says it."""
    is_update = F.col(_UPDATE) & feed.compute_updates
    kind = F.when(F.col(_AFTER), F.when(is_update, POSTIMAGE).otherwise(INSERT)).otherwise(
        F.when(is_update, PREIMAGE).otherwise(DELETE)
    )
    return rows.withColumn(CHANGE_TYPE, kind).withColumnRenamed(_VERSION, COMMIT_VERSION)


def _by_hash(columns: Sequence[str]) -> WindowSpec:
    """By these columns, sorted by a hash of them first: of texts Spark compares eight bytes quickly, which many keys have in common."""
    return Window.partitionBy(F.xxhash64(*columns), *columns)
