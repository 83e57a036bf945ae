"""The history view on Spark: the rows of a key in the rule's order, each valid until the next.

`opal_lake.read.history_view` is the same without Spark.
"""

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
    """Return the history view; the history of a few keys is read in this process."""
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
    """Return every row that is valid at some readable event time.

    Files that cannot hold keys for which the condition is true are not read.
    """
    fields = view_fields(snapshot, columns)
    spec, pending = snapshot.spec, snapshot.pending
    processed = [file for file in snapshot.files.values() if pending.isdisjoint(file.segments)]
    files = files_by_keys(processed, where_predicate(condition), spec)
    verify_files(spark, snapshot, files)
    schema = spark_schema(spec, physical=True)
    if files:
        rows = scan_files(spark, snapshot.storage, files, spec)
    else:
        rows = spark.createDataFrame([], schema)
    delta = spec.delta
    shown = [field for field in spec.schema.fields if not is_named(field, VIEW_COLUMNS)]
    shown += [
        Field(id=delta.id, name=VALID_FROM, physical=delta.physical, type=delta.type),
        Field(id=delta.id, name=VALID_UNTIL, physical=_UNTIL, type=delta.type),
    ]
    is_current = F.col(_UNTIL).isNull().alias(IS_CURRENT)
    was_deleted = F.col(_DELETED_THEN).alias(WAS_DELETED)
    valid = _valid_rows(rows, snapshot)
    view = valid.select(*read_fields(shown, spec), is_current, was_deleted)
    return _view(view, fields, condition)


def _view(view: DataFrame, fields: Sequence[Field], condition: Condition | None) -> DataFrame:
    """Return the rows for which the condition is true, with the chosen fields."""
    # The condition comes first, because it may name a column that is not chosen
    if condition:
        view = filtered(view, condition)
    names = [quoted(field.name) for field in fields]
    return view.select(*names, VALID_FROM, VALID_UNTIL, IS_CURRENT, WAS_DELETED)


def _history_of_keys(
    spark: SparkSession,
    snapshot: Snapshot,
    rows_of: Callable[[Sequence[str]], pa.Table],
    columns: Sequence[str] | None,
    condition: Condition | None,
) -> DataFrame:
    """Return the history of a few keys.

    `rows_of` reads the rows in this process; its argument are the names of the table's columns.
    """
    fields = view_fields(snapshot, columns)
    spec = snapshot.spec
    names = [field.name for field in spec.schema.fields if not is_named(field, VIEW_COLUMNS)]
    view = rows_from_arrow(spark, rows_of(names), _view_schema(spec, names))
    return _view(view, fields, condition)


def history_changes(
    spark: SparkSession,
    spec: TableSpec,
    rows_of: Callable[[Sequence[str]], pa.Table],
    columns: Sequence[str] | None,
    condition: Condition | None,
) -> DataFrame:
    """Return the change feed of the history.

    `rows_of` reads the feed in this process; its argument are the names of the table's columns.
    """
    fields = history_fields(spec, columns)
    own_columns = FEED_COLUMNS | VIEW_COLUMNS
    names = [field.name for field in spec.schema.fields if not is_named(field, own_columns)]
    schema = _view_schema(spec, names)
    schema.add(CHANGE_TYPE, "string")
    schema.add(COMMIT_VERSION, "long")
    schema.add(COMMIT_TIMESTAMP, "timestamp")
    rows = rows_from_arrow(spark, rows_of(names), schema)
    if condition:
        rows = filtered(rows, condition)
    chosen = [quoted(field.name) for field in fields]
    # The columns that follow the table's: those of the history view and of a change
    added = schema.fieldNames()[len(names) :]
    return rows.select(*chosen, *added)


def _view_schema(spec: TableSpec, names: Sequence[str]) -> StructType:
    known = spark_schema(spec, physical=False)
    schema = StructType([known[name] for name in names])
    for name in (VALID_FROM, VALID_UNTIL):
        schema = schema.add(name, known[spec.delta.name].dataType)
    return schema.add(IS_CURRENT, "boolean").add(WAS_DELETED, "boolean")


def _valid_rows(rows: DataFrame, snapshot: Snapshot) -> DataFrame:
    """Return the rows that are visible at some event time, with their end.

    `_UNTIL` is the delta of the key's next row, `_DELETED_THEN` whether this next row is a delete.
    """
    spec, floor = snapshot.spec, snapshot.root.floor
    delta = quoted(spec.delta.physical)
    keys = [quoted(field.physical) for field in spec.keys]
    ties = [F.col(quoted(field.physical)).asc_nulls_first() for field in spec.tie_break]
    in_order = Window.partitionBy(*keys).orderBy(delta, *ties, SEGMENT, OFFSET)
    rows = rows.withColumn(_UNTIL, F.lead(delta).over(in_order))
    # Among a key's rows with the same delta only the last one is ever visible
    rows = rows.where(f"{_UNTIL} IS NULL OR {_UNTIL} <> {delta}")
    if spec.deletes is None:
        rows = rows.withColumn(_DELETED_THEN, F.lit(False))
    else:
        is_delete = F.coalesce(F.col(DELETED), F.lit(False))
        next_is_delete = F.lead(is_delete, 1, False).over(in_order)
        rows = rows.withColumn(_DELETED_THEN, next_is_delete).where(~is_delete)
    if floor is None:
        return rows
    # I21: compaction may have dropped rows that ended at or before the floor, so none is shown
    return rows.where(f"{_UNTIL} IS NULL OR NOT {not_after(spec, floor, _UNTIL)}")
