"""The change feed on Spark.

Rows that began or ended are found by a broadcast join with packed words, as a read finds invalid
rows. The plan may know which of them are the two rows of an update. Otherwise a window over the
changed rows finds the pairs by their keys. The join adds to each row arrays of its segment's size.
Generated code uses and drops these arrays: copying them with each row would cost more than all
other steps.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial, reduce
from itertools import chain

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
_MAX_TIMES = 256  # commit times as literals; Spark's parser reads them one by one
_MAX_RANGES = 32  # more ORs would slow Spark's optimizer down


def changes(spark: SparkSession, asked: ChangesPlan) -> DataFrame:
    """Return the changes as a DataFrame, whose set of rows is fixed now.

    If the changes are few, they are read now, otherwise when the DataFrame is used.
    """
    versions, feed, condition = asked.versions, asked.feed, asked.condition
    spec = versions.head.spec
    if feed.is_of_history:
        rows_of = partial(_history_rows, asked)
        return history_changes(spark, spec, rows_of, feed.columns, condition)
    fields = feed_fields(spec, feed.columns)
    plan = plan_changes(asked.log, versions, where_predicate(condition), is_net=feed.is_net)
    if plan.is_within(IN_PROCESS):
        # A condition may name columns that are not chosen
        local_fields = fields if condition is None else None
        rows = _local_rows(spark, plan, feed, local_fields)
    else:
        for span in plan.spans:
            verify_files(spark, span.snapshot, span.files)
        # If one row of an update may be missing in the files, tasks cannot rely on the plan's pairs
        plan = replace(plan, has_pairs=plan.has_pairs and not plan.may_lack)
        rows = _changed_rows(spark, plan)
        if not plan.has_pairs:
            rows = _matched_by_key(rows, spec, feed)
        rows = _labelled(rows, feed)
    if condition:
        rows = filtered(rows, condition)
    columns = [quoted(field.name) for field in fields]
    return rows.select(*columns, CHANGE_TYPE, COMMIT_VERSION, COMMIT_TIMESTAMP)


def _local_rows(
    spark: SparkSession, plan: ChangePlan, feed: Changes, fields: Sequence[Field] | None
) -> DataFrame:
    """Read the changes in this process, with the given fields or all fields of a feed."""
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
    """Return the rows that began and ended, with the version and its commit time.

    `_AFTER` is true for a row that began, `_UPDATE` for a row of an update. A row that began and
    ended occurs twice.
    """
    fields = [field for field in plan.spec.schema.fields if not is_named(field, FEED_COLUMNS)]
    columns = [*read_fields(fields, plan.spec), _VERSION, _AFTER, _UPDATE]
    parts: list[DataFrame] = []
    for span in plan.spans:
        groups = {file.group for file in span.files}
        for group in groups:
            rows = _changed_rows_of_group(spark, plan, span, group)
            parts.append(rows.select(*columns))
    if not parts:
        schema = spark_schema(plan.spec, physical=True)
        schema = schema.add(_VERSION, "long").add(_AFTER, "boolean").add(_UPDATE, "boolean")
        schema = schema.add(COMMIT_TIMESTAMP, "timestamp")
        return spark.createDataFrame([], schema).select(*columns, COMMIT_TIMESTAMP)
    return _with_times(spark, reduce(DataFrame.union, parts), plan.times_us)


def _with_times(spark: SparkSession, rows: DataFrame, times_us: Mapping[int, int]) -> DataFrame:
    """Add the commit time of each row's version; `times_us` has it by version.

    If the versions are close to each other, their times are literals, which saves a Spark job.
    """
    first, last = min(times_us, default=0), max(times_us, default=0)
    if last - first < _MAX_TIMES:
        literals: list[str] = []
        for version in range(first, last + 1):
            time_us = times_us.get(version)
            literals.append("NULL" if time_us is None else f"{time_us}L")
        time = f"get(array({', '.join(literals)}), int({_VERSION} - {first}L))"
        return rows.withColumn(COMMIT_TIMESTAMP, F.expr(f"timestamp_micros({time})"))
    versions = pa.array(times_us.keys(), pa.int64())
    times = pa.array(times_us.values(), pa.timestamp("us", "UTC"))
    time_of_version = spark.createDataFrame(pa.table({_KEY: versions, COMMIT_TIMESTAMP: times}))
    joined = rows.join(F.broadcast(time_of_version), F.expr(f"{_VERSION} = {_KEY}"))
    return joined.drop(_KEY)


def _changed_rows_of_group(
    spark: SparkSession, plan: ChangePlan, span: ChangeSpan, group: int
) -> DataFrame:
    """Return the changed rows of a group of files, with the plan's columns.

    A column that a file lacks, because it was added to the table later, is null.
    """
    spec, snapshot = plan.spec, span.snapshot
    files = [file for file in span.files if file.group == group]
    rows = scan_files(spark, snapshot.storage, files, spec)
    in_files = set(chain.from_iterable(file.segments for file in files))
    segments = sorted(in_files & {*span.begun, *span.marks})
    ended_rows = span.ended.take(np.isin(span.ended.segment, segments))
    # A row for each segment: the version in which its rows began, and the words of its bitmaps
    begun_versions = [span.begun.get(segment) for segment in segments]
    local = {
        _KEY: pa.array(segments, pa.int64()),
        _BEGAN: pa.array(begun_versions, pa.int64()),
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
        rows = rows.where(_in_ranges(span, segments))
    marks = F.broadcast(spark.createDataFrame(pa.table(local)))
    rows = rows.join(marks, F.expr(f"{SEGMENT} = {_KEY}"))
    begun = f"{_BEGAN} IS NOT NULL AND {is_not_marked(_HIDDEN)}"
    ended = is_marked(_ENDED)
    rows = rows.where(f"({begun}) OR {ended}")
    if span.begun.keys().isdisjoint(span.marks):
        # No segment has rows that began and rows that ended, so no row occurs twice
        after = F.expr(begun)
        columns = {
            _VERSION: F.when(after, F.col(_BEGAN)).otherwise(ended_by),
            _AFTER: after,
            _UPDATE: F.expr(f"if({begun}, {is_update}, NOT {was_deleted})"),
        }
        return rows.withColumns(columns)
    changes_of_row = F.array(
        _change(begun, F.col(_BEGAN), is_update, after=True),
        _change(ended, ended_by, f"NOT {was_deleted}", after=False),
    )
    rows = rows.withColumn(_CHANGE, F.explode(changes_of_row))
    return rows.where(f"{_CHANGE} IS NOT NULL").select("*", f"{_CHANGE}.*")


def _in_ranges(span: ChangeSpan, segments: Sequence[int]) -> str:
    """Return the SQL condition that a row's id is in the range of changed rows.

    Spark skips row groups of Parquet files whose bounds do not meet it.
    """
    ranges = []
    for segment in segments:
        rows = f"{SEGMENT} = {segment}L"
        if segment not in span.begun:
            marks = span.marks[segment]
            rows += f" AND {OFFSET} BETWEEN {marks.min()} AND {marks.max()}"
        ranges.append(f"({rows})")
    return " OR ".join(ranges) or "false"


def _change(happened: str, version: Column, is_update: str, *, after: bool) -> Column:
    """Return a struct of a row's change; null unless `happened` (SQL) is true."""
    change = F.struct(
        version.alias(_VERSION), F.lit(after).alias(_AFTER), F.expr(is_update).alias(_UPDATE)
    )
    return F.when(F.expr(happened), change)


def _version_lists(ended: EndedRows, segments: Sequence[int]) -> pa.ListArray:
    """Return for each segment the versions that ended its rows, in the rows' order.

    `ended` is sorted by segment, and has no other segments than these.
    """
    ends = np.searchsorted(ended.segment, segments, side="right").astype(np.int32)
    offsets = np.concatenate([np.zeros(1, np.int32), ends])
    return pa.ListArray.from_arrays(offsets, pa.array(ended.version))


def _matched_by_key(rows: DataFrame, spec: TableSpec, feed: Changes) -> DataFrame:
    """Mark the rows of updates by their keys; in a net feed, return only net changes.

    Rows are sorted only for a net feed, and for a feed that computes updates.
    """
    keys = [quoted(field.name) for field in spec.keys]
    if feed.is_net:
        by_time = _by_hash(keys).orderBy(_VERSION, _AFTER)
        all_rows = by_time.rowsBetween(Window.unboundedPreceding, Window.unboundedFollowing)
        # Whether the key had a row before the first version, and after the last one
        existed = ~F.first(_AFTER).over(all_rows)
        exists = F.last(_AFTER).over(all_rows)
        is_first = F.lag(_AFTER).over(by_time).isNull()
        is_last = F.lead(_AFTER).over(by_time).isNull()
        is_net = (is_first & existed) | (is_last & exists)
        marked = rows.withColumns({_UPDATE: existed & exists, _ENDED: is_net})
        return marked.where(_ENDED)
    if feed.compute_updates:
        # A version ends at most one row of a key, and begins at most one: two rows are an update
        rows_of_key = F.count(F.lit(1)).over(_by_hash([*keys, _VERSION]))
        return rows.withColumn(_UPDATE, rows_of_key > 1)
    return rows


def _labelled(rows: DataFrame, feed: Changes) -> DataFrame:
    """Add the type of each change, as `opal_lake.read.changed_rows` names it."""
    is_update = F.col(_UPDATE) & feed.compute_updates
    began = F.when(is_update, POSTIMAGE).otherwise(INSERT)
    ended = F.when(is_update, PREIMAGE).otherwise(DELETE)
    kind = F.when(F.col(_AFTER), began).otherwise(ended)
    return rows.withColumn(CHANGE_TYPE, kind).withColumnRenamed(_VERSION, COMMIT_VERSION)


def _by_hash(columns: Sequence[str]) -> WindowSpec:
    """Return a window partitioned by a hash of the columns and by the columns.

    Spark sorts by the hash first. Its fast comparison of texts uses only their first eight bytes,
    which are the same in many keys.
    """
    return Window.partitionBy(F.xxhash64(*columns), *columns)
