"""The change feed on Spark.

Rows that ended or began are found as reads find invalid ones, by a broadcast join with packed
words. The plan says which of them belong to one update. If it does not, a window over the changed
rows alone does, by their keys. A segment brings arrays of its size to the join. They are used and
dropped in generated code: to copy them with each row would cost more than all other steps.
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
from opal_lake.read.changes import IN_PROCESS, ChangePlan, ChangeSpan, EndedRows, plan_changes
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
_MAX_TIMES = 256  # as literals: Spark's parser reads them one by one
_MAX_RANGES = 32  # Spark's optimizer goes into every OR


def changes(spark: SparkSession, asked: ChangesPlan) -> DataFrame:
    """Return the changes as a DataFrame; the set of its rows is fixed now.

    Few rows are read now, more when the DataFrame is used.
    """
    versions, feed, condition = asked.versions, asked.feed, asked.condition
    spec = versions.head.spec
    if feed.is_of_history:
        rows_of = partial(_history_rows, asked)
        return history_changes(spark, spec, rows_of, feed.columns, condition)
    fields = feed_fields(spec, feed.columns)
    plan = plan_changes(asked.log, versions, where_predicate(condition), is_net=feed.is_net)
    if plan.is_within(IN_PROCESS):
        rows = _local_rows(spark, plan, feed, fields if condition is None else None)
    else:
        for span in plan.spans:
            verify_files(spark, span.snapshot, span.files)
        # A task does not know which rows are missing in all files
        plan = replace(plan, has_pairs=plan.has_pairs and not plan.may_lack)
        rows = _changed_rows(spark, plan)
        if not plan.has_pairs:
            rows = _matched_by_key(rows, spec, feed)
        rows = _labelled(rows, feed)
    if condition:
        rows = filtered(rows, condition)
    return rows.select(
        *(quoted(field.name) for field in fields), CHANGE_TYPE, COMMIT_VERSION, COMMIT_TIMESTAMP
    )


def _local_rows(
    spark: SparkSession, plan: ChangePlan, feed: Changes, fields: Sequence[Field] | None
) -> DataFrame:
    """Read the changes in this process: all columns of a feed, unless some are chosen."""
    if fields is None:
        fields = [field for field in plan.spec.schema.fields if not is_named(field, FEED_COLUMNS)]
    known = spark_schema(plan.spec, physical=False)
    schema = StructType([known[field.name] for field in fields])
    schema.add(CHANGE_TYPE, "string")
    schema.add(COMMIT_VERSION, "long")
    schema.add(COMMIT_TIMESTAMP, "timestamp")
    return rows_from_arrow(spark, read_changes(plan, feed, fields), schema)


def _history_rows(asked: ChangesPlan, names: Sequence[str]) -> pa.Table:
    feed = replace(asked.feed, columns=names)
    return read_history_changes(asked.log, asked.cache, asked.versions, feed)


def _changed_rows(spark: SparkSession, plan: ChangePlan) -> DataFrame:
    """Return rows that ended and rows that began, with version and time of that.

    A row that did both comes twice.
    """
    fields = [field for field in plan.spec.schema.fields if not is_named(field, FEED_COLUMNS)]
    logical = [*read_fields(fields, plan.spec), _VERSION, _AFTER, _UPDATE]
    parts: list[DataFrame] = []
    for span in plan.spans:
        groups = {file.group for file in span.files}
        parts += [_of_group(spark, plan, span, group).select(*logical) for group in groups]
    if not parts:
        schema = spark_schema(plan.spec, physical=True)
        schema = schema.add(_VERSION, "long").add(_AFTER, "boolean").add(_UPDATE, "boolean")
        schema = schema.add(COMMIT_TIMESTAMP, "timestamp")
        return spark.createDataFrame([], schema).select(*logical, COMMIT_TIMESTAMP)
    return _with_times(spark, reduce(DataFrame.union, parts), plan.times_us)


def _with_times(spark: SparkSession, rows: DataFrame, times_us: Mapping[int, int]) -> DataFrame:
    """Add the commit time of each row's version.

    Times of neighbouring versions are literals, which saves a job.
    """
    first, last = min(times_us, default=0), max(times_us, default=0)
    if last - first < _MAX_TIMES:
        literals: list[str] = []
        for version in range(first, last + 1):
            time_us = times_us.get(version)
            literals.append("NULL" if time_us is None else f"{time_us}L")
        time = f"get(array({', '.join(literals)}), int({_VERSION} - {first}L))"
        return rows.withColumn(COMMIT_TIMESTAMP, F.expr(f"timestamp_micros({time})"))
    moments = pa.array(times_us.values(), pa.timestamp("us", "UTC"))
    times = pa.table({_KEY: pa.array(times_us, pa.int64()), COMMIT_TIMESTAMP: moments})
    joined = rows.join(F.broadcast(spark.createDataFrame(times)), F.expr(f"{_VERSION} = {_KEY}"))
    return joined.drop(_KEY)


def _of_group(spark: SparkSession, plan: ChangePlan, span: ChangeSpan, group: int) -> DataFrame:
    """Return the changed rows of a group of segments.

    They have the columns of the whole feed's spec: columns that files of an earlier version lack
    are null.
    """
    spec, snapshot = plan.spec, span.snapshot
    files = [file for file in span.files if file.group == group]
    schema = spark_schema(spec, physical=True)
    rows = scan_files(spark, snapshot.storage, files, schema, spec.file_format)
    in_files = {segment for file in files for segment in file.segments}
    segments = sorted(in_files & {*span.begun, *span.marks})
    ended_rows = span.ended.take(np.isin(span.ended.segment, segments))
    local = {
        _KEY: pa.array(segments, pa.int64()),
        _BEGAN: pa.array([span.begun.get(segment) for segment in segments], pa.int64()),
        _HIDDEN: word_lists(span.never_visible, segments, snapshot),
        _ENDED: word_lists(span.marks, segments, snapshot),
    }
    is_update = was_deleted = "false"
    if plan.has_pairs:
        local[_UPDATED] = word_lists(plan.updated, segments, snapshot)
        is_update = is_marked(_UPDATED)
    if plan.has_pairs and span.deleted:
        local[_GONE] = word_lists(span.deleted, segments, snapshot)
        was_deleted = is_marked(_GONE)
    if len(np.unique(ended_rows.version)) > 1:
        local[_RANK] = rank_lists(span.marks, segments, snapshot)
        local[_ENDED_BY] = _version_lists(ended_rows, segments)
        ended_by = F.expr(f"get({_ENDED_BY}, {rank_of(_ENDED, _RANK)})")
    else:
        only_version = int(ended_rows.version[0]) if len(ended_rows) else 0
        ended_by = F.lit(only_version).cast("long")
    if len(segments) <= _MAX_RANGES:
        rows = rows.where(_near(span, segments))
    marks = F.broadcast(spark.createDataFrame(pa.table(local)))
    rows = rows.join(marks, F.expr(f"{SEGMENT} = {_KEY}"))
    begun = f"{_BEGAN} IS NOT NULL AND {is_not_marked(_HIDDEN)}"
    ended = is_marked(_ENDED)
    rows = rows.where(f"({begun}) OR {ended}")
    if span.begun.keys().isdisjoint(span.marks):
        # No segment has rows of both kinds, so that no row comes twice
        after = F.expr(begun)
        columns = {
            _VERSION: F.when(after, F.col(_BEGAN)).otherwise(ended_by),
            _AFTER: after,
            _UPDATE: F.expr(f"if({begun}, {is_update}, NOT {was_deleted})"),
        }
        return rows.withColumns(columns)
    both = F.array(
        _change(begun, F.col(_BEGAN), is_update, after=True),
        _change(ended, ended_by, f"NOT {was_deleted}", after=False),
    )
    rows = rows.withColumn(_CHANGE, F.explode(both))
    return rows.where(f"{_CHANGE} IS NOT NULL").select("*", f"{_CHANGE}.*")


def _near(span: ChangeSpan, segments: Sequence[int]) -> str:
    """Return a condition on row ids, for the bounds that Parquet has of row groups."""
    ranges = []
    for segment in segments:
        rows = f"{SEGMENT} = {segment}L"
        if segment not in span.begun:
            marks = span.marks[segment]
            rows += f" AND {OFFSET} BETWEEN {marks.min()} AND {marks.max()}"
        ranges.append(f"({rows})")
    return " OR ".join(ranges) or "false"


def _change(happened: str, version: Column, is_update: str, *, after: bool) -> Column:
    change = F.struct(
        version.alias(_VERSION), F.lit(after).alias(_AFTER), F.expr(is_update).alias(_UPDATE)
    )
    return F.when(F.expr(happened), change)


def _version_lists(ended: EndedRows, segments: Sequence[int]) -> pa.ListArray:
    """Return for each segment the versions that ended its rows, in the rows' order."""
    ends = np.searchsorted(ended.segment, segments, side="right").astype(np.int32)
    offsets = np.concatenate([np.zeros(1, np.int32), ends])
    return pa.ListArray.from_arrays(offsets, pa.array(ended.version))


def _matched_by_key(rows: DataFrame, spec: TableSpec, feed: Changes) -> DataFrame:
    """Mark the rows of updates by their keys; of a net feed, keep only net changes.

    Without updates nothing has to be sorted.
    """
    keys = [quoted(field.name) for field in spec.keys]
    if feed.is_net:
        by_time = _by_hash(keys).orderBy(_VERSION, _AFTER)
        whole = by_time.rowsBetween(Window.unboundedPreceding, Window.unboundedFollowing)
        existed = ~F.first(_AFTER).over(whole)
        exists = F.last(_AFTER).over(whole)
        is_first = F.lag(_AFTER).over(by_time).isNull()
        is_last = F.lead(_AFTER).over(by_time).isNull()
        is_net = is_first & existed | is_last & exists
        return rows.withColumns({_UPDATE: existed & exists, _ENDED: is_net}).where(_ENDED)
    if feed.compute_updates:
        # Of a key, a version ends one row and begins one at most
        changed = F.count(F.lit(1)).over(_by_hash([*keys, _VERSION]))
        return rows.withColumn(_UPDATE, changed > 1)
    return rows


def _labelled(rows: DataFrame, feed: Changes) -> DataFrame:
    """Add the type of each change, as `opal_lake.read.changed_rows` names it."""
    is_update = F.col(_UPDATE) & feed.compute_updates
    began = F.when(is_update, POSTIMAGE).otherwise(INSERT)
    ended = F.when(is_update, PREIMAGE).otherwise(DELETE)
    kind = F.when(F.col(_AFTER), began).otherwise(ended)
    return rows.withColumn(CHANGE_TYPE, kind).withColumnRenamed(_VERSION, COMMIT_VERSION)


def _by_hash(columns: Sequence[str]) -> WindowSpec:
    """Return a window by columns, sorted by a hash of them first.

    Spark compares the first eight bytes of texts quickly, and many keys begin alike.
    """
    return Window.partitionBy(F.xxhash64(*columns), *columns)
