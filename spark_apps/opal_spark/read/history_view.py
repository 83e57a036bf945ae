"""The history view on Spark: the rows of a key in the order of the rule, each valid until the next (`opal_lake.read.history_view`)."""

from collections.abc import Callable, Sequence
from functools import partial

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from opal_lake.definition.conditions.condition import Condition
from opal_lake.definition.schema import DELETED, OFFSET, SEGMENT, Field
from opal_lake.definition.table_spec import TableSpec
from opal_lake.log.snapshot import Snapshot
from opal_lake.read.changed_rows import CHANGE_TYPE, COMMIT_TIMESTAMP, COMMIT_VERSION, FEED_COLUMNS
from opal_lake.read.history_changes import history_fields
from opal_lake.read.history_view import DELETED as WAS_DELETED
from opal_lake.read.history_view import (
    IS_CURRENT,
    VALID_FROM,
    VALID_UNTIL,
    VIEW_COLUMNS,
    view_fields,
)
from opal_lake.read.history_view import history_of_keys as read_history_of_keys
from opal_lake.read.read import files_by_keys
from opal_lake.read.result_columns import is_named
from opal_lake.read.view import HistoryPlan
from opal_lake.read.where import where_predicate
from opal_spark.engine.columns import quoted, read_fields, spark_schema
from opal_spark.engine.conditions import filtered
from opal_spark.engine.scan import not_after, scan_files
from opal_spark.engine.session import rows_from_arrow
from opal_spark.engine.verify import verify_files

_UNTIL, _DELETED_THEN = "_opal_until", "_opal_deleted_then"


def history(spark: SparkSession, plan: HistoryPlan) -> DataFrame:
    """Return the history view; that of a few keys is read in this process."""
    if plan.keys is None:
        return _history_of_all(spark, plan.snapshot, plan.columns, plan.condition)
    rows_of = partial(read_history_of_keys, plan.snapshot, plan.cache, plan.keys)
    return _history_of_keys(spark, plan.snapshot, rows_of, plan.columns, plan.condition)


def _history_of_all(
    spark: SparkSession,
    snapshot: Snapshot,
    columns: Sequence[str] | None,
    condition: Condition | None,
) -> DataFrame:
    """Every row that is valid at some readable event time. Conditions on keys skip files."""
    spec, fields = snapshot.spec, view_fields(snapshot, columns)
    files = files_by_keys(
        [file for file in snapshot.files.values() if snapshot.pending.isdisjoint(file.segments)],
        where_predicate(condition),
        spec,
    )
    verify_files(spark, snapshot, files)
    schema = spark_schema(spec, physical=True)
    rows = (
        scan_files(spark, snapshot.storage, files, schema, spec.file_format)
        if files
        else spark.createDataFrame([], schema)
    )
    shown = [field for field in spec.schema.fields if not is_named(field, VIEW_COLUMNS)]
    shown += [
        Field(id=spec.delta.id, name=VALID_FROM, physical=spec.delta.physical, type=spec.delta.type)
    ]
    shown += [Field(id=spec.delta.id, name=VALID_UNTIL, physical=_UNTIL, type=spec.delta.type)]
    flags = F.col(_UNTIL).isNull().alias(IS_CURRENT), F.col(_DELETED_THEN).alias(WAS_DELETED)
    view = _valid_rows(rows, snapshot).select(*read_fields(shown, spec), *flags)
    view = filtered(view, condition) if condition else view
    return view.select(
        *(quoted(field.name) for field in fields), VALID_FROM, VALID_UNTIL, IS_CURRENT, WAS_DELETED
    )


def _history_of_keys(
    spark: SparkSession,
    snapshot: Snapshot,
    rows_of: Callable[[Sequence[str]], pa.Table],
    columns: Sequence[str] | None,
    condition: Condition | None,
) -> DataFrame:
    """Of a few keys: `rows_of` reads these columns of their history in this process."""
    spec, fields = snapshot.spec, view_fields(snapshot, columns)
    names = [field.name for field in spec.schema.fields if not is_named(field, VIEW_COLUMNS)]
    view = rows_from_arrow(spark, rows_of(names), _view_schema(spec, names))
    view = filtered(view, condition) if condition else view
    return view.select(
        *(quoted(field.name) for field in fields), VALID_FROM, VALID_UNTIL, IS_CURRENT, WAS_DELETED
    )


def history_changes(
    spark: SparkSession,
    spec: TableSpec,
    rows_of: Callable[[Sequence[str]], pa.Table],
    columns: Sequence[str] | None,
    condition: Condition | None,
) -> DataFrame:
    """The feed of the history, which `rows_of` reads in this process."""
    fields, own = history_fields(spec, columns), FEED_COLUMNS | VIEW_COLUMNS
    names = [field.name for field in spec.schema.fields if not is_named(field, own)]
    schema = (
        _view_schema(spec, names)
        .add(CHANGE_TYPE, "string")
        .add(COMMIT_VERSION, "long")
        .add(COMMIT_TIMESTAMP, "timestamp")
    )
    rows = rows_from_arrow(spark, rows_of(names), schema)
    rows = filtered(rows, condition) if condition else rows
    return rows.select(
        *(quoted(field.name) for field in fields), *schema.fieldNames()[len(names) :]
    )


def _view_schema(spec: TableSpec, names: Sequence[str]) -> StructType:
    known = spark_schema(spec, physical=False)
    schema = StructType([known[name] for name in names])
    for name in (VALID_FROM, VALID_UNTIL):
        schema = schema.add(name, known[spec.delta.name].dataType)
    return schema.add(IS_CURRENT, "boolean").add(WAS_DELETED, "boolean")


def _valid_rows(rows: DataFrame, snapshot: Snapshot) -> DataFrame:
    """With the delta of the next row of the key, and whether that is a delete."""
    spec, floor = snapshot.spec, snapshot.root.floor
    delta, ties = (
        quoted(spec.delta.physical),
        (F.col(quoted(field.physical)).asc_nulls_first() for field in spec.tie_break),
    )
    in_order = Window.partitionBy(*(quoted(field.physical) for field in spec.keys)).orderBy(
        delta, *ties, SEGMENT, OFFSET
    )
    rows = rows.withColumn(_UNTIL, F.lead(delta).over(in_order)).where(
        f"{_UNTIL} IS NULL OR {_UNTIL} <> {delta}"
    )
    if spec.deletes is None:
        rows = rows.withColumn(_DELETED_THEN, F.lit(False))
    else:
        is_deleted = F.coalesce(F.col(DELETED), F.lit(False))
        rows = rows.withColumn(_DELETED_THEN, F.lead(is_deleted, 1, False).over(in_order)).where(
            ~is_deleted
        )
    return (
        rows
        if floor is None
        else rows.where(f"{_UNTIL} IS NULL OR NOT {not_after(spec, floor, _UNTIL)}")
    )
