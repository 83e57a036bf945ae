"""Ingest on Spark: make a DataFrame fit the table, let each task write its segments, commit once."""

from collections.abc import Iterable
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from opal_lake.errors import InvalidInputError
from opal_lake.ingest import IngestTask, ingest_rows, output_from_json, output_to_json
from opal_lake.ingest_job import IngestRun, commit_ingest
from opal_lake.job import JobResult
from opal_lake.rejects import NOTES
from opal_lake.schema import DELETED
from opal_lake.snapshot import Snapshot
from opal_lake.storage.behind import puts_behind
from opal_lake.storage.protocol import Storage
from opal_lake.table import Table
from opal_lake.table_spec import TableSpec
from opal_spark.assign import assigned_columns
from opal_spark.columns import quoted
from opal_spark.failures import first_words
from opal_spark.outputs import FIXED_WIDTH_ROWS, collect_outputs

_FEW_ROWS, _MANY_ROWS = 1024, 4096  # with texts; of 1024 rows, texts of 50 KB still make batches that any executor can hold
_SMALL_ROW = 128  # bytes on disk: so do 4096 rows that compress a hundredfold
_PAGES = 8 << 10  # bytes that a file of few rows has anyway


def ingest(table: Table, rows: DataFrame, run: IngestRun) -> JobResult:
    """Rows become segments, pending until a MetaGen."""
    spec = run.base.spec
    task = partial(_write, storage=table.storage, spec=spec, number=run.number, quarantine=run.quarantine)
    fit = fitting(rows, spec)
    outputs = collect_outputs(fit, task, rows_a_batch(fit.schema, run.base))
    return commit_ingest(table.log, run, [output_from_json(output) for output in outputs])


def rows_a_batch(schema: T.StructType, base: Snapshot | None = None) -> int | None:
    """How many rows go to Python at a time, whatever their size; None where a value may be as large as a file: bytes have to count.

    Each batch costs something on either side: of texts, many go at a time where the newest ingests brought small rows.
    """
    kinds = [field.dataType for field in schema.fields]
    if any(isinstance(kind, T.BinaryType | T.ArrayType | T.MapType | T.StructType | T.VariantType) for kind in kinds):
        return None
    if not any(isinstance(kind, T.StringType) for kind in kinds):
        return FIXED_WIDTH_ROWS
    return _MANY_ROWS if base is not None and _has_small_rows(base) else _FEW_ROWS


def _has_small_rows(base: Snapshot) -> bool:
    """As far as it can be told without reading anything: from the commits since the checkpoint."""
    files = [file for commit in base.commits for file in commit.actions.ingested]
    is_known = bool(files) and all(commit.actions.ingested_side is None for commit in base.commits)
    return is_known and all(file.size - file.footer_bytes <= _SMALL_ROW * file.rows + _PAGES for file in files)


def _write(batches: Iterable[pa.RecordBatch], *, storage: Storage, spec: TableSpec, number: int, quarantine: bool) -> Any:
    context = TaskContext.get()
    assert context is not None
    attempt = str(context.taskAttemptId())
    with puts_behind(storage) as behind:
        task = IngestTask(storage=behind, spec=spec, number=number, task=context.partitionId(), attempt=attempt, quarantine=quarantine)
        return output_to_json(ingest_rows(batches, task))


def fitting(rows: DataFrame, spec: TableSpec, *, together: bool = True) -> DataFrame:
    """The table's columns in order, with the delete marker and what a source reader noted; partition values brought together or not."""
    noted = [F.col(name) for name in NOTES if name in rows.columns]
    marker = [delete_marker(rows, spec.deletes).alias(DELETED)] if spec.deletes is not None else []
    fit = rows.select(*assigned_columns(rows, spec), *marker, *noted)
    if spec.partition_by and together:
        fit = fit.hint("rebalance", *[F.col(quoted(column.name)) for column in spec.partition_by])
    return fit


def delete_marker(rows: DataFrame, condition: str) -> Column:
    """True for rows that delete their key; null counts as false."""
    marker = F.coalesce(F.expr(condition).cast("boolean"), F.lit(False))
    try:
        rows.select("*", marker)
    except AnalysisException as error:
        raise InvalidInputError(
            f"the delete condition {condition!r} does not fit the columns {rows.columns}: {first_words(error)}"
        ) from error
    return marker
