"""Reads on Spark: dead files not at all, groups with hidden rows by a join with packed words and a native bit test, others plain.

The words come by a broadcast join on `_opal_segment`, one broadcast a group. Within a group the files without hidden rows go the same way,
with no words: a union of both would break Spark's code generation, which costs all rows three times what the bit test costs them. `get`
because checked array access costs more. A shift takes the low six bits of its distance, so that `~offset` brings the row's bit to the sign.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from threading import Lock
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from opal_lake.bitmap import Bitmaps, words_of
from opal_lake.errors import InvalidInputError
from opal_lake.explain import explain
from opal_lake.ordering import INTEGER_TYPES, from_order
from opal_lake.read import ReadPlan, event_time_of, plan_read, sieve_of
from opal_lake.schema import OFFSET, SEGMENT, Atomic
from opal_lake.segment import DataFile
from opal_lake.snapshot import Snapshot
from opal_lake.table import Table
from opal_lake.table_spec import refuse_text
from opal_lake.visibility import invalid_rows
from opal_spark.columns import quoted, read_columns, spark_schema
from opal_spark.failures import first_words
from opal_spark.predicate import parse_predicate
from opal_spark.scan import scan_files
from opal_spark.session import session_zone
from opal_spark.verify import verify_files

_KEY, _WORDS = "_opal_key", "_opal_words"
_IS_VISIBLE = f"coalesce(shiftleft(get({_WORDS}, shiftright({OFFSET}, 6)), ~{OFFSET}), 0L) >= 0L"
_NO_WORDS = np.zeros(0, np.int64)
_KEPT = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """What part of a table a read wants."""

    version: int | None = None
    timestamp: object = None
    event_time: object = None
    columns: Sequence[str] | None = None
    where: str | None = None
    partition_key: str | None = None
    after: int | None = None


def read(spark: SparkSession, table: Table, view: View) -> DataFrame:
    """A DataFrame of the visible rows. The state is fixed now; rows are read when the DataFrame is used."""
    refuse_text("columns", view.columns)
    snapshot = table.snapshot_at(view.version, view.timestamp)
    spec = snapshot.spec
    predicate = parse_predicate(view.where, spec, session_zone=session_zone(spark)) if view.where else None
    until = event_time_of(snapshot, view.event_time)
    invalid = table.narrow(snapshot, _cached_invalid(snapshot, until), view.partition_key, view.after)
    plan = plan_read(snapshot, until, predicate, invalid)
    verify_files(spark, table, snapshot, plan.files)
    rows = visible_rows(spark, plan)
    if view.where:
        rows = _where(rows, view.where)
    return rows if view.columns is None else rows.select(*[quoted(spec.schema.field(name).name) for name in view.columns])


def explain_read(spark: SparkSession, table: Table, view: View) -> dict[str, Any]:
    """What a read of the view would open and skip."""
    snapshot = table.snapshot_at(view.version, view.timestamp)
    predicate = None
    if view.where:
        _where(spark.createDataFrame([], spark_schema(snapshot.spec, physical=False)), view.where)  # Spark says what is wrong with it
        predicate = parse_predicate(view.where, snapshot.spec, session_zone=session_zone(spark))
    until = event_time_of(snapshot, view.event_time)
    return explain(sieve_of(snapshot, until, predicate, _cached_invalid(snapshot, until)))


def visible_rows(spark: SparkSession, plan: ReadPlan) -> DataFrame:
    """All columns of the visible rows."""
    spec = plan.snapshot.spec
    mixed = sorted({file.group for file in plan.mixed})
    schema, logical = spark_schema(spec, physical=True), read_columns(spec)

    def scan(files: Sequence[DataFile]) -> DataFrame:
        return scan_files(spark, plan.snapshot.storage, files, schema, spec.file_format)

    whole = [file for file in plan.plain if file.group not in mixed]
    parts = [scan(whole)] if whole else []
    for group in mixed:
        files = [file for file in plan.files if file.group == group]
        parts.append(_filtered(spark, scan(files), plan, files))
    if not parts:
        return spark.createDataFrame([], spark_schema(spec, physical=False))
    return reduce(DataFrame.union, [rows.select(*logical) for rows in parts])


def _filtered(spark: SparkSession, rows: DataFrame, plan: ReadPlan, files: Sequence[DataFile]) -> DataFrame:
    if plan.until is not None:
        rows = rows.where(_not_after(plan))
    segments = sorted({segment for file in files for segment in file.segments})
    if plan.invalid.keys().isdisjoint(segments):
        return rows
    words = [words_of(plan.invalid[s], plan.snapshot.segments[s].rows) if s in plan.invalid else _NO_WORDS for s in segments]
    ends = np.cumsum([0, *map(len, words)]).astype(np.int32)
    local = pa.table({_KEY: pa.array(segments, pa.int64()), _WORDS: pa.ListArray.from_arrays(ends, np.concatenate(words))})
    return rows.join(F.broadcast(spark.createDataFrame(local)), F.expr(f"{SEGMENT} = {_KEY}")).where(_IS_VISIBLE)


def _not_after(plan: ReadPlan) -> str:
    """The delta column against the event time, as files hold it."""
    delta = plan.snapshot.spec.delta
    assert isinstance(delta.type, Atomic)
    assert plan.until is not None
    if delta.type.name.startswith("decimal"):
        literal = f"{from_order(plan.until, delta.type)}BD"
    elif plan.snapshot.spec.file_format == "orc" or delta.type.name in INTEGER_TYPES:
        literal = f"{plan.until}L"
    elif delta.type.name == "timestamp_ntz":
        literal = f"timestamp_ntz'{from_order(plan.until, delta.type)}'"
    else:
        literal = f"timestamp_micros({plan.until}L)" if delta.type.name == "timestamp" else f"date_from_unix_date({plan.until})"
    return f"{quoted(delta.physical)} <= {literal}"


def _where(rows: DataFrame, where: str) -> DataFrame:
    try:
        return rows.where(where)
    except AnalysisException as error:
        raise InvalidInputError(f"where={where!r} does not fit the columns {rows.columns}: {first_words(error)}") from error


_cached: OrderedDict[tuple[str, str, int | None], Bitmaps] = OrderedDict()
_cache_lock = Lock()


def _cached_invalid(snapshot: Snapshot, until: int | None) -> Bitmaps:
    """The bitmaps of the last few states that this process read; a write id names a state for ever."""
    key = (snapshot.root.table_id, snapshot.root.write_id, until)
    with _cache_lock:
        found = _cached.pop(key, None)
    if found is None:
        found = invalid_rows(snapshot, until)
    with _cache_lock:
        _cached[key] = found
        while len(_cached) > _KEPT:
            _cached.popitem(last=False)
    return found
