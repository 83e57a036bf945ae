"""Reads on Spark: whole files plain, dead files not at all, and for the mixed ones a join with packed words and a bit test in native code.

The words come by a broadcast join on `_opal_segment`, one broadcast a group; `get` because checked array access costs more.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from threading import Lock

import pyarrow as pa
from pyroaring import BitMap
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from opal_lake.bitmap import Bitmaps, words_of
from opal_lake.errors import InvalidInputError
from opal_lake.ordering import INTEGER_TYPES, from_order
from opal_lake.read import ReadPlan, event_time_of, plan_read
from opal_lake.schema import OFFSET, SEGMENT, Atomic
from opal_lake.segment import DataFile
from opal_lake.snapshot import Snapshot
from opal_lake.table import Table
from opal_lake.visibility import invalid_rows
from opal_spark.columns import quoted, read_columns, spark_schema
from opal_spark.predicate import parse_predicate
from opal_spark.scan import scan_files
from opal_spark.session import session_zone
from opal_spark.verify import verify_files

_KEY, _WORDS = "_opal_key", "_opal_words"
_IS_VISIBLE = f"(shiftrightunsigned(get({_WORDS}, shiftright({OFFSET}, 6)), {OFFSET} & 63) & 1L) = 0L"
_KEPT = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """What part of a table a read wants."""

    version: int | None = None
    timestamp: object = None
    event_time: object = None
    columns: Sequence[str] | None = None
    where: str | None = None


def read(spark: SparkSession, table: Table, view: View) -> DataFrame:
    """A DataFrame of the visible rows. The state is fixed now; rows are read when the DataFrame is used."""
    snapshot = table.snapshot_at(view.version, view.timestamp)
    spec = snapshot.spec
    columns = [spec.schema.field(name).name for name in view.columns] if view.columns is not None else spec.schema.names
    predicate = parse_predicate(view.where, spec, session_zone=session_zone(spark)) if view.where else None
    until = event_time_of(snapshot, view.event_time)
    plan = plan_read(snapshot, until, predicate, invalid=_cached_invalid(snapshot, until))
    verify_files(spark, table, snapshot, plan.files)
    rows = visible_rows(spark, plan)
    if view.where:
        rows = _where(rows, view.where)
    return rows.select(*[F.col(quoted(name)) for name in columns])


def visible_rows(spark: SparkSession, plan: ReadPlan) -> DataFrame:
    """All columns of the visible rows."""
    spec = plan.snapshot.spec
    schema = spark_schema(spec, physical=True)
    logical = read_columns(spec, spec.schema.names)
    parts = []
    if plan.plain:
        parts.append(scan_files(spark, plan.snapshot.storage, plan.plain, schema, spec.file_format).select(*logical))
    for group in sorted({file.group for file in plan.mixed}):
        files = [file for file in plan.mixed if file.group == group]
        rows = scan_files(spark, plan.snapshot.storage, files, schema, spec.file_format)
        parts.append(_filtered(spark, rows, plan, files).select(*logical))
    if not parts:
        return spark.createDataFrame([], spark_schema(spec, physical=False))
    return reduce(DataFrame.union, parts)


def _filtered(spark: SparkSession, rows: DataFrame, plan: ReadPlan, files: Sequence[DataFile]) -> DataFrame:
    if plan.until is not None:
        rows = rows.where(_not_after(plan))
    segments = sorted({segment for file in files for segment in file.segments})
    if not any(segment in plan.invalid for segment in segments):
        return rows
    sizes = {segment: plan.snapshot.segments[segment].rows for segment in segments}
    words = [pa.array(words_of(plan.invalid.get(segment, BitMap()), sizes[segment])) for segment in segments]
    local = pa.table({_KEY: pa.array(segments, pa.int64()), _WORDS: pa.array(words, pa.list_(pa.int64()))})
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
    return f"{delta.physical} <= {literal}"


def _where(rows: DataFrame, where: str) -> DataFrame:
    try:
        return rows.where(where)
    except AnalysisException as error:
        raise InvalidInputError(f"where={where!r} does not fit the columns {rows.columns}: {error}") from error


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
