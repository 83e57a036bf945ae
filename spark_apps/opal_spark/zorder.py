"""Z-order on Spark: a sample says how each place's curve runs, native expressions put rows on it, each task writes one part of a curve.

A rank is found by binary search, a projection a step, so that generated code does it: as one expression it would double with every step.
Knots, cuts and what ranks add to z come by broadcast joins, first from a row's segment to its place, then to the place's arrays.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from opal_lake.commit import file_from_json, file_to_json
from opal_lake.rewrite_task import RewriteTask, Rewritten, Target, write_files
from opal_lake.schema import DELETED, OFFSET, SEGMENT, Atomic, Field
from opal_lake.segment import DataFile
from opal_lake.table import Table
from opal_lake.z_value import Curve, bits_of, plan_curve, spread_ranks
from opal_lake.zorder import ZOrderWork
from opal_spark.columns import quoted, spark_schema
from opal_spark.ingest import rows_a_batch
from opal_spark.outputs import collect_outputs
from opal_spark.scan import scan_files
from opal_spark.verify import verify_files

SAMPLE_ROWS, SAMPLE_ROWS_A_FILE, MOST_SAMPLE_ROWS = 100_000, 100, 2_000_000
_SAMPLE_TEXT = 256  # code points or bytes: bounds hold fewer
_SEED = 1
_PLACE, _TIE, _PART, _Z = "_opal_place", "_opal_tie", "_opal_part", "_opal_z"
_BASE, _CUTS, _KEY = "_opal_base", "_opal_cuts", "_opal_key"


@dataclass(frozen=True, slots=True, kw_only=True)
class ZOrdering:
    """Arranges the bins of a commit with Spark."""

    spark: SparkSession
    table: Table

    def __call__(self, work: ZOrderWork) -> list[Rewritten]:
        files = [file for one in work.bins for file in one.files]
        verify_files(self.spark, self.table, work.base, files)
        spec = work.base.spec
        rows = scan_files(self.spark, work.base.storage, files, spark_schema(spec, physical=True), spec.file_format)
        placed = self._placed(rows, work)
        curves = plan_curves(placed, work)
        parts = [place for place, curve in enumerate(curves) for _ in range(curve.parts)]
        along = part_rows(self.spark, placed, work, curves).repartitionById(len(parts), F.col(_PART)).sortWithinPartitions(_Z)
        own = [quoted(name) for name in rows.columns]
        task = partial(_write, task=work.task, targets=[work.target(work.bins[place], part, "") for part, place in enumerate(parts)])
        found = collect_outputs(along.select(*own), task, rows_a_batch(rows.schema), rows.columns)
        written: list[list[DataFile]] = [[] for _ in work.bins]
        for part, listed in found:
            written[parts[part]] += map(file_from_json, listed)
        return [
            Rewritten(replaced=tuple(file.path for file in one.files), files=tuple(files))
            for one, files in zip(work.bins, written, strict=True)
        ]

    def _placed(self, rows: DataFrame, work: ZOrderWork) -> DataFrame:
        """The rows with the number of their bin."""
        pairs = [(segment, place) for place, one in enumerate(work.bins) for segment in sorted(one.segments)]
        segments, places = zip(*pairs, strict=True)
        local = pa.table({_KEY: pa.array(segments, pa.int64()), _PLACE: pa.array(places, pa.int32())})
        marker = {DELETED: F.coalesce(F.col(DELETED), F.lit(False))} if DELETED in rows.columns else {}
        return rows.withColumns(marker).join(_broadcast(self.spark, local), F.expr(f"{SEGMENT} = {_KEY}")).drop(_KEY)


def _broadcast(spark: SparkSession, local: pa.Table) -> DataFrame:
    return F.broadcast(spark.createDataFrame(local))


def plan_curves(placed: DataFrame, work: ZOrderWork) -> list[Curve]:
    """The curve of each bin, from one pass over the columns that count."""
    total = sum(file.rows for one in work.bins for file in one.files)
    files = sum(map(work.files_of, work.bins))
    wanted = min(max(SAMPLE_ROWS, int(SAMPLE_ROWS_A_FILE * files)), MOST_SAMPLE_ROWS)
    tie = f"shiftright(cast({OFFSET} AS BIGINT), {work.tie_shift}) AS {_TIE}"
    seen = placed if total <= wanted else placed.sample(wanted / total, _SEED)
    orc = work.base.spec.file_format == "orc"
    sample = seen.selectExpr(_PLACE, tie, *[f"{sampled(field)} AS _{n}" for n, field in enumerate(work.columns)])
    found = sample.selectExpr(_PLACE, _TIE, *[f"{measured(f'_{n}', field, orc=orc)} AS _{n}" for n, field in enumerate(work.columns)])
    rows = found.toArrow()
    places = rows[_PLACE].to_numpy()
    order = np.argsort(places, kind="stable")
    ends = np.searchsorted(places[order], np.arange(len(work.bins) + 1))
    return [
        _curve(rows.take(pa.array(order[start:end])), work.files_of(one))
        for one, start, end in zip(work.bins, ends[:-1], ends[1:], strict=True)
    ]


def _curve(rows: pa.Table, files: float) -> Curve:
    columns = [rows.column(place).combine_chunks() for place in range(2, rows.num_columns)]
    return plan_curve(columns, rows[_TIE].to_numpy(), files)


def sampled(field: Field) -> str:
    """As much of a value as a sample needs."""
    texts = isinstance(field.type, Atomic) and field.type.name in ("string", "binary")
    return f"substring({quoted(field.physical)}, 1, {_SAMPLE_TEXT})" if texts else quoted(field.physical)


def measured(column: str, field: Field, *, orc: bool) -> str:
    """A column as what ranks go by: of a type that passes between Spark and Arrow unchanged, and in the same order."""
    assert isinstance(field.type, Atomic)
    match field.type.name:
        case "string":
            return f"cast({column} AS BINARY)"  # texts need not be UTF-8
        case "timestamp" if not orc:
            return f"unix_micros({column})"
        case "timestamp_ntz" if not orc:  # nothing that goes by the session's zone, which has gaps
            seconds = f"unix_date(cast({column} AS DATE)) * 86400L + hour({column}) * 3600L + minute({column}) * 60L"
            return f"({seconds}) * 1000000L + cast(extract(SECOND FROM {column}) * 1000000 AS BIGINT)"
        case "date" if not orc:
            return f"unix_date({column})"
    return column


def part_rows(spark: SparkSession, placed: DataFrame, work: ZOrderWork, curves: Sequence[Curve]) -> DataFrame:
    """The rows with their z, and the number of the part that they belong to."""
    count, orc = len(work.columns), work.base.spec.file_format == "orc"
    rows = placed.join(_broadcast(spark, _arrays(curves, count)), F.expr(f"{_PLACE} = {_KEY}"))
    rows = rows.withColumns(
        {f"_opal_v{n}": F.expr(measured(quoted(field.physical), field, orc=orc)) for n, field in enumerate(work.columns)}
    )
    rows = _searched(rows, {n: (f"_opal_v{n}", f"_opal_k{n}") for n in range(count)}, bits_of(count))
    ranks = [f"get(_opal_s{n}, _opal_i{n})" for n in range(count)]
    z = " | ".join([*ranks, f"shiftright(cast({OFFSET} AS BIGINT), {work.tie_shift})"])
    most_cuts = max(len(curve.cuts) for curve in curves)
    rows = _searched(rows.withColumn(_Z, F.expr(z)), {count: (_Z, _CUTS)}, most_cuts.bit_length())
    return rows.withColumn(_PART, F.expr(f"{_BASE} + _opal_i{count}"))


def _searched(rows: DataFrame, wanted: dict[int, tuple[str, str]], bits: int) -> DataFrame:
    """For each value and ascending array, in `_opal_i<n>`, how many elements the value is not less than; 0 for null."""
    rows = rows.withColumns({f"_opal_i{n}": F.lit(0) for n in wanted})
    for bit in reversed(range(bits)):
        rows = rows.withColumns({f"_opal_i{n}": _step(f"_opal_i{n}", value, array, 1 << bit) for n, (value, array) in wanted.items()})
    return rows


def _step(at: str, value: str, array: str, step: int) -> Column:
    """Beyond the array's end there is null, which no value reaches."""
    return F.expr(f"{at} | if({value} >= get({array}, {at} + {step - 1}), {step}, 0)")


def _arrays(curves: Sequence[Curve], columns: int) -> pa.Table:
    """A row a bin: the number of its first part, its cuts, and for each column its knots and what ranks add to z."""
    starts = np.cumsum([0, *(curve.parts for curve in curves[:-1])])
    found = {
        _KEY: pa.array(range(len(curves)), pa.int32()),
        _BASE: pa.array(starts, pa.int32()),
        _CUTS: _lists([pa.array(curve.cuts, pa.int64()) for curve in curves]),
    }
    for n in range(columns):
        found[f"_opal_k{n}"] = _lists([curve.knots[n] for curve in curves])
        found[f"_opal_s{n}"] = _lists([pa.array(spread_ranks(len(curve.knots[n]), n, columns)) for curve in curves])
    return pa.table(found)


def _lists(arrays: Sequence[pa.Array]) -> pa.ListArray:
    ends = pa.array(np.cumsum([0, *map(len, arrays)]), pa.int32())
    return pa.ListArray.from_arrays(ends, pa.concat_arrays(arrays))


def _write(batches: Iterable[pa.RecordBatch], *, task: RewriteTask, targets: Sequence[Target]) -> Any:
    context = TaskContext.get()
    assert context is not None
    part = context.partitionId()
    target = replace(targets[part], attempt=str(context.taskAttemptId()))
    return part, [file_to_json(file) for file in write_files(_tables(batches), task, target)]


def _tables(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    return (pa.Table.from_batches([batch]) for batch in batches)
