"""Z-order on Spark: a sample says how each place's curve runs, native expressions put rows on it, each task writes one part of a curve.

A rank is found by binary search, a projection a step, so that generated code does it: as one expression it would double with every step.
Knots, cuts and what ranks add to z come by broadcast joins, first from a row's segment to its place, then to the place's arrays.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from opal_lake.data.z_value import Curve, bits_of, plan_curve, spread_ranks
from opal_lake.definition.schema import DELETED, OFFSET, SEGMENT, Atomic, Field
from opal_lake.engine.executor import Attempt, Batches, Ordering, Task
from opal_lake.engine.executor import T as Result
from opal_spark.engine.columns import quoted, spark_schema
from opal_spark.engine.scan import scan_files
from opal_spark.engine.tasks import collect_outputs, rows_a_batch

SAMPLE_ROWS, SAMPLE_ROWS_A_FILE, MOST_SAMPLE_ROWS = 100_000, 100, 2_000_000
_SAMPLE_TEXT = 256  # code points or bytes: bounds hold fewer
_SEED = 1
_PLACE, _TIE, _PART, _Z = "_opal_place", "_opal_tie", "_opal_part", "_opal_z"
_BASE, _CUTS, _KEY = "_opal_base", "_opal_cuts", "_opal_key"


def in_order(spark: SparkSession, ordering: Ordering, task: Task[Result]) -> list[list[Result]]:
    """A task for each part of a curve, by bin."""
    rows = bin_rows(spark, ordering)
    placed = placed_rows(spark, rows, ordering)
    curves = plan_curves(placed, ordering)
    bins = [index for index, curve in enumerate(curves) for _ in range(curve.parts)]
    along = (
        part_rows(spark, placed, ordering, curves)
        .repartitionById(len(bins), F.col(_PART))
        .sortWithinPartitions(_Z)
    )
    own = along.select(*[quoted(name) for name in rows.columns])
    collected = collect_outputs(
        own, partial(_in_bin, task=task, bins=bins), rows_a_batch(rows.schema), rows.columns
    )
    results: list[list[Result]] = [[] for _ in ordering.bins]
    for part, result in collected:
        results[bins[part]].append(result)
    return results


def _in_bin(
    batches: Batches, attempt: Attempt, *, task: Task[Result], bins: Sequence[int]
) -> tuple[int, Result]:
    return attempt.part, task(batches, replace(attempt, bin=bins[attempt.part]))


def bin_rows(spark: SparkSession, ordering: Ordering) -> DataFrame:
    """All columns of all bins."""
    spec, files = ordering.base.spec, [file for files in ordering.bins for file in files]
    return scan_files(
        spark, ordering.base.storage, files, spark_schema(spec, physical=True), spec.file_format
    )


def placed_rows(spark: SparkSession, rows: DataFrame, ordering: Ordering) -> DataFrame:
    """The rows with the number of their bin."""
    segments = [
        sorted({segment for file in files for segment in file.segments}) for files in ordering.bins
    ]
    pairs = [(segment, index) for index, members in enumerate(segments) for segment in members]
    numbers, places = zip(*pairs, strict=True)
    local = pa.table({_KEY: pa.array(numbers, pa.int64()), _PLACE: pa.array(places, pa.int32())})
    marker = {DELETED: F.coalesce(F.col(DELETED), F.lit(False))} if DELETED in rows.columns else {}
    return (
        rows.withColumns(marker)
        .join(_broadcast(spark, local), F.expr(f"{SEGMENT} = {_KEY}"))
        .drop(_KEY)
    )


def _broadcast(spark: SparkSession, local: pa.Table) -> DataFrame:
    return F.broadcast(spark.createDataFrame(local))


def plan_curves(placed: DataFrame, ordering: Ordering) -> list[Curve]:
    """The curve of each bin, from one pass over the columns that count."""
    total = sum(file.rows for files in ordering.bins for file in files)
    files = sum(ordering.files)
    most = min(max(SAMPLE_ROWS, int(SAMPLE_ROWS_A_FILE * files)), MOST_SAMPLE_ROWS)
    tie = f"shiftright(cast({OFFSET} AS BIGINT), {ordering.tie_shift}) AS {_TIE}"
    seen = placed if total <= most else placed.sample(most / total, _SEED)
    orc = ordering.base.spec.file_format == "orc"
    sample = seen.selectExpr(
        _PLACE, tie, *[f"{sampled(field)} AS _{n}" for n, field in enumerate(ordering.columns)]
    )
    values = sample.selectExpr(
        _PLACE,
        _TIE,
        *[
            f"{measured(f'_{n}', field, orc=orc)} AS _{n}"
            for n, field in enumerate(ordering.columns)
        ],
    )
    rows = values.toArrow()
    places = rows[_PLACE].to_numpy()
    order = np.argsort(places, kind="stable")
    ends = np.searchsorted(places[order], np.arange(len(ordering.bins) + 1))
    return [
        _curve(rows.take(pa.array(order[start:end])), files)
        for files, start, end in zip(ordering.files, ends[:-1], ends[1:], strict=True)
    ]


def _curve(rows: pa.Table, files: float) -> Curve:
    columns = [rows.column(index).combine_chunks() for index in range(2, rows.num_columns)]
    return plan_curve(columns, rows[_TIE].to_numpy(), files)


def sampled(field: Field) -> str:
    """The part of a value that a sample needs."""
    texts = isinstance(field.type, Atomic) and field.type.name in ("string", "binary")
    return (
        f"substring({quoted(field.physical)}, 1, {_SAMPLE_TEXT})"
        if texts
        else quoted(field.physical)
    )


def measured(column: str, field: Field, *, orc: bool) -> str:
    """A column in a form for ranking: of a type that passes between Spark and Arrow unchanged, in the same order."""
    assert isinstance(field.type, Atomic)
    match field.type.name:
        case "string":
            return f"cast({column} AS BINARY)"  # texts need not be UTF-8
        case "timestamp" if not orc:
            return f"unix_micros({column})"
        case "timestamp_ntz" if not orc:  # nothing that goes by the session's zone, which has gaps
            seconds = f"unix_date(cast({column} AS DATE)) * 86400L + hour({column}) * 3600L + minute({column}) * 60L"
            return (
                f"({seconds}) * 1000000L + cast(extract(SECOND FROM {column}) * 1000000 AS BIGINT)"
            )
        case "date" if not orc:
            return f"unix_date({column})"
    return column


def part_rows(
    spark: SparkSession, placed: DataFrame, ordering: Ordering, curves: Sequence[Curve]
) -> DataFrame:
    """The rows with their z, and the number of the part that they belong to."""
    count, orc = len(ordering.columns), ordering.base.spec.file_format == "orc"
    rows = placed.join(_broadcast(spark, _arrays(curves, count)), F.expr(f"{_PLACE} = {_KEY}"))
    rows = rows.withColumns(
        {
            f"_opal_v{n}": F.expr(measured(quoted(field.physical), field, orc=orc))
            for n, field in enumerate(ordering.columns)
        }
    )
    rows = _searched(
        rows, {n: (f"_opal_v{n}", f"_opal_k{n}") for n in range(count)}, bits_of(count)
    )
    ranks = [f"get(_opal_s{n}, _opal_i{n})" for n in range(count)]
    z = " | ".join([*ranks, f"shiftright(cast({OFFSET} AS BIGINT), {ordering.tie_shift})"])
    most_cuts = max(len(curve.cuts) for curve in curves)
    rows = _searched(rows.withColumn(_Z, F.expr(z)), {count: (_Z, _CUTS)}, most_cuts.bit_length())
    return rows.withColumn(_PART, F.expr(f"{_BASE} + _opal_i{count}"))


def _searched(rows: DataFrame, searches: dict[int, tuple[str, str]], bits: int) -> DataFrame:
    """For each value and ascending array, in `_opal_i<n>`, how many elements the value is not less than; 0 for null."""
    rows = rows.withColumns({f"_opal_i{n}": F.lit(0) for n in searches})
    for bit in reversed(range(bits)):
        rows = rows.withColumns(
            {
                f"_opal_i{n}": _step(f"_opal_i{n}", value, array, 1 << bit)
                for n, (value, array) in searches.items()
            }
        )
    return rows


def _step(at: str, value: str, array: str, step: int) -> Column:
    """Beyond the array's end there is null, which no value reaches."""
    return F.expr(f"{at} | if({value} >= get({array}, {at} + {step - 1}), {step}, 0)")


def _arrays(curves: Sequence[Curve], columns: int) -> pa.Table:
    """A row a bin: the number of its first part, its cuts, and for each column its knots and what ranks add to z."""
    starts = np.cumsum([0, *(curve.parts for curve in curves[:-1])])
    arrays = {
        _KEY: pa.array(range(len(curves)), pa.int32()),
        _BASE: pa.array(starts, pa.int32()),
        _CUTS: _lists([pa.array(curve.cuts, pa.int64()) for curve in curves]),
    }
    for n in range(columns):
        arrays[f"_opal_k{n}"] = _lists([curve.knots[n] for curve in curves])
        arrays[f"_opal_s{n}"] = _lists(
            [pa.array(spread_ranks(len(curve.knots[n]), n, columns)) for curve in curves]
        )
    return pa.table(arrays)


def _lists(arrays: Sequence[pa.Array]) -> pa.ListArray:
    ends = pa.array(np.cumsum([0, *map(len, arrays)]), pa.int32())
    return pa.ListArray.from_arrays(ends, pa.concat_arrays(arrays))
