"""The rows of the table that meet the condition of a statement, found by their ids.

A scan of the columns that the condition reads finds the ids of the rows. If these are few, only
their rows are read, by the pages that hold them. Otherwise all columns are scanned.
"""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
from pyroaring import BitMap
from pyspark.sql import Column, DataFrame, SparkSession

from opal_lake.data.column_read import readers
from opal_lake.data.columns import to_fields
from opal_lake.data.segment import DataFile
from opal_lake.definition.schema import OFFSET, SEGMENT, Field, arrow_type
from opal_lake.engine.executor import Batches
from opal_lake.events.bitmap import Bitmaps, add_rows
from opal_lake.events.segment_log import RowIds
from opal_lake.read.marked_rows import read_marked
from opal_lake.read.read import ReadPlan
from opal_lake.read.statement import StatementPlan
from opal_lake.read.where import where_predicate
from opal_lake.storage.uris import is_local
from opal_lake.write.unchanged import KnownTable
from opal_spark.engine.session import parallelism, rows_from_arrow
from opal_spark.engine.tasks import forget_archives, with_same_version
from opal_spark.engine.verify import verify_files
from opal_spark.read.reader import statement_read, stored_rows, visible_rows
from opal_spark.read.statement_rows import rows_of_named_keys, schema_with_ids, with_ids
from opal_spark.read.understood import compared, understood

_BATCH_ROWS = 10_000
_TASKS_A_CORE = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class IdLimits:
    """The limits up to which rows are read by their ids.

    Beyond them a scan of all columns is faster.

    - `ids` bounds their number, and `share` their share of the scanned rows; but `few` ids are
      read, whatever their share.
    - Up to `own_rows`, in files of up to `own_bytes`, are read in this process, as starting tasks
      takes longer. `disk_bytes` bounds the files instead if they are on this machine.
    """

    ids: int = 1 << 20
    share: float = 0.125
    few: int = 1 << 16
    own_rows: int = 300_000
    own_bytes: int = 256 << 20
    disk_bytes: int = 1 << 30


BY_IDS = IdLimits()


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetCondition:
    """A condition on rows of the table: as the user gave it, and as a Column of Spark."""

    given: Any
    holds: Column
    limits: IdLimits


def rows_where(
    spark: SparkSession, plan: StatementPlan, where: TargetCondition, fields: Sequence[Field]
) -> DataFrame:
    """Return the visible rows that meet a condition, with their row ids.

    `fields` are the columns that are needed of them.
    """
    condition = understood(where.given, plan.spec, plan.target)
    if condition is not None:
        rows = rows_of_named_keys(spark, plan, where.given)
        if rows is not None:
            return rows.alias(plan.target).where(where.holds)
    read = statement_read(plan.snapshot, where_predicate(condition))
    verify_files(spark, plan.snapshot, read.files)
    is_safe = compared(where.given, plan.spec, plan.target) is not None
    ids = _ids_where(spark, plan, read, where, is_safe=is_safe)
    if ids is not None:
        return _rows_of_ids(spark, read, ids, fields, where.limits)
    return visible_rows(spark, read, with_ids=True).alias(plan.target).where(where.holds)


def _ids_where(
    spark: SparkSession,
    plan: StatementPlan,
    read: ReadPlan,
    where: TargetCondition,
    *,
    is_safe: bool,
) -> Bitmaps | None:
    """Return the ids of the visible rows of a condition, None if these are many.

    A safe condition raises for no row. It is evaluated for hidden rows, too, because the test of
    their bits costs the scan more than all else.
    """
    limits = where.limits
    scanned = sum(file.rows for file in read.files)
    max_ids = min(limits.ids, max(limits.few, int(limits.share * scanned)))
    if is_safe and read.files:
        rows = stored_rows(spark, read)
    else:
        rows = visible_rows(spark, read, with_ids=True)
    ids = rows.alias(plan.target).where(where.holds).select(SEGMENT, OFFSET)
    if not read.files:
        # Connect finds faults of the condition when it is asked for the columns
        assert ids.columns == [SEGMENT, OFFSET]
        return {}
    collected = ids.limit(max_ids + 1).toArrow()
    if len(collected) > max_ids:
        return None
    marks: Bitmaps = {}
    add_rows(marks, collected[SEGMENT].to_numpy(), collected[OFFSET].to_numpy())
    visible: Bitmaps = {}
    for segment, marked in marks.items():
        remaining = marked - read.invalid.get(segment, BitMap())
        if remaining:
            visible[segment] = remaining
    return visible


def _rows_of_ids(
    spark: SparkSession, read: ReadPlan, ids: Bitmaps, fields: Sequence[Field], limits: IdLimits
) -> DataFrame:
    """Return fields of the rows with the given ids, in this process or in tasks."""
    files = [file for file in read.files if not ids.keys().isdisjoint(file.segments)]
    work = MarkedRead(known=KnownTable(snapshot=read.snapshot), ids=ids, fields=fields)
    schema = schema_with_ids({field.name: field for field in fields})
    rows = sum(map(len, ids.values()))
    size = sum(file.size for file in files)
    max_bytes = limits.disk_bytes if is_local(read.snapshot.storage.uri) else limits.own_bytes
    if rows <= limits.own_rows and size <= max_bytes:
        with ThreadPoolExecutor(readers(read.snapshot.storage, read.snapshot.spec)) as pool:
            parts = [*pool.map(work.rows, files)]
        nothing = RowIds(segment=np.empty(0, np.int64), offset=np.empty(0, np.int32))
        empty = with_ids(_arrow_schema(fields).empty_table(), nothing)
        return rows_from_arrow(spark, pa.concat_tables([empty, *parts]), schema)
    works = spark.range(0, len(files), 1, min(len(files), _TASKS_A_CORE * parallelism(spark)))
    task = partial(read_files, work=work, files=files)
    return works.mapInArrow(with_same_version(task), schema)


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkedRead:
    """A read of the rows with given ids: fields of them, and their ids."""

    known: KnownTable
    ids: Bitmaps
    fields: Sequence[Field]

    def rows(self, file: DataFile) -> pa.Table:
        """Return the rows that a file holds."""
        snapshot = self.known.snapshot
        physical = [*dict.fromkeys(field.physical for field in self.fields)]
        marked = read_marked(snapshot, self.ids, physical, file)
        rows = to_fields(marked.rows, snapshot.spec, self.fields)
        return with_ids(rows.cast(_arrow_schema(self.fields)), marked.ids)


def read_files(
    batches: Batches, *, work: MarkedRead, files: Sequence[DataFile]
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of files in a task, which gets the numbers of its files."""
    for batch in batches:
        for number in batch["id"].to_pylist():
            yield from work.rows(files[number]).to_batches(max_chunksize=_BATCH_ROWS)
    forget_archives()


def _arrow_schema(fields: Sequence[Field]) -> pa.Schema:
    return pa.schema([(field.name, arrow_type(field.type)) for field in fields])
