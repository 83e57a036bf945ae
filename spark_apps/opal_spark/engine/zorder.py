"""Z-order on Spark: each bin of rows gets a curve, and each task writes one part of a curve.

A sample says how each bin's curve runs, and native expressions put rows on it. A rank is found by
binary search, a projection a step, so that generated code does it: as one expression it would
double with every step. Knots, cuts and what ranks add to z come by broadcast joins: first from a
row's segment to its bin, then to the bin's arrays.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import chain

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

SAMPLE_ROWS, SAMPLE_ROWS_A_FILE, MAX_SAMPLE_ROWS = 100_000, 100, 2_000_000
_SAMPLE_TEXT = 256  # code points or bytes: the bounds of files hold fewer
_SEED = 1
_BIN, _TIE, _PART, _Z = "_opal_bin", "_opal_tie", "_opal_part", "_opal_z"
_BASE, _CUTS, _KEY = "_opal_base", "_opal_cuts", "_opal_key"


def in_order(spark: SparkSession, ordering: Ordering, task: Task[Result]) -> list[list[Result]]:
    """Run a task for each part of a curve, and return the results by bin."""
    rows = bin_rows(spark, ordering)
    numbered = numbered_rows(spark, rows, ordering)
    curves = plan_curves(numbered, ordering)
    bin_of_part: list[int] = []
    for index, curve in enumerate(curves):
        bin_of_part += [index] * curve.parts
    along_curve = (
        part_rows(spark, numbered, ordering, curves)
        .repartitionById(len(bin_of_part), F.col(_PART))
        .sortWithinPartitions(_Z)
    )
    own_columns = along_curve.select(*[quoted(name) for name in rows.columns])
    bin_task = partial(_in_bin, task=task, bin_of_part=bin_of_part)
    collected = collect_outputs(own_columns, bin_task, rows_a_batch(rows.schema), rows.columns)
    results: list[list[Result]] = [[] for _ in ordering.bins]
    for part, result in collected:
        results[bin_of_part[part]].append(result)
    return results


def _in_bin(
    batches: Batches, attempt: Attempt, *, task: Task[Result], bin_of_part: Sequence[int]
) -> tuple[int, Result]:
    result = task(batches, replace(attempt, bin=bin_of_part[attempt.part]))
    return attempt.part, result


def bin_rows(spark: SparkSession, ordering: Ordering) -> DataFrame:
    """Return all columns of the rows of all bins."""
    spec = ordering.base.spec
    files = list(chain.from_iterable(ordering.bins))
    schema = spark_schema(spec, physical=True)
    return scan_files(spark, ordering.base.storage, files, schema, spec.file_format)


def numbered_rows(spark: SparkSession, rows: DataFrame, ordering: Ordering) -> DataFrame:
    """Return the rows with the number of their bin."""
    segments: list[int] = []
    bins: list[int] = []
    for index, files in enumerate(ordering.bins):
        members = set(chain.from_iterable(file.segments for file in files))
        segments += sorted(members)
        bins += [index] * len(members)
    bin_of_segment = pa.table(
        {_KEY: pa.array(segments, pa.int64()), _BIN: pa.array(bins, pa.int32())}
    )
    if DELETED in rows.columns:
        # I14: the column is not null; files that lack it are read as null
        rows = rows.withColumns({DELETED: F.coalesce(F.col(DELETED), F.lit(False))})
    is_of_segment = F.expr(f"{SEGMENT} = {_KEY}")
    return rows.join(_broadcast(spark, bin_of_segment), is_of_segment).drop(_KEY)


def _broadcast(spark: SparkSession, local: pa.Table) -> DataFrame:
    return F.broadcast(spark.createDataFrame(local))


def plan_curves(numbered: DataFrame, ordering: Ordering) -> list[Curve]:
    """Return the curve of each bin, from one pass over the columns that order."""
    rows = _sample(numbered, ordering).toArrow()
    bins = rows[_BIN].to_numpy()
    by_bin = np.argsort(bins, kind="stable")
    ends = np.searchsorted(bins[by_bin], np.arange(len(ordering.bins) + 1))
    curves = []
    for files, start, end in zip(ordering.files, ends[:-1], ends[1:], strict=True):
        bin_sample = rows.take(pa.array(by_bin[start:end]))
        curves.append(_curve(bin_sample, files))
    return curves


def _sample(numbered: DataFrame, ordering: Ordering) -> DataFrame:
    total = sum(file.rows for file in chain.from_iterable(ordering.bins))
    wanted = max(SAMPLE_ROWS, int(SAMPLE_ROWS_A_FILE * sum(ordering.files)))
    max_rows = min(wanted, MAX_SAMPLE_ROWS)
    rows = numbered if total <= max_rows else numbered.sample(max_rows / total, _SEED)
    orc = ordering.base.spec.file_format == "orc"
    tie = f"shiftright(cast({OFFSET} AS BIGINT), {ordering.tie_shift}) AS {_TIE}"
    cut_columns, measured_columns = [], []
    for n, field in enumerate(ordering.columns):
        cut_columns.append(f"{sampled(field)} AS _{n}")
        measured_columns.append(f"{measured(f'_{n}', field, orc=orc)} AS _{n}")
    cut = rows.selectExpr(_BIN, tie, *cut_columns)
    return cut.selectExpr(_BIN, _TIE, *measured_columns)


def _curve(rows: pa.Table, files: float) -> Curve:
    columns = [rows.column(index).combine_chunks() for index in range(2, rows.num_columns)]
    return plan_curve(columns, rows[_TIE].to_numpy(), files)


def sampled(field: Field) -> str:
    """Return the SQL expression for the part of a value that a sample needs."""
    column = quoted(field.physical)
    if isinstance(field.type, Atomic) and field.type.name in ("string", "binary"):
        return f"substring({column}, 1, {_SAMPLE_TEXT})"
    return column


def measured(column: str, field: Field, *, orc: bool) -> str:
    """Return the SQL expression for a column in a form for ranking.

    Its type passes between Spark and Arrow unchanged, and has the same order.
    """
    assert isinstance(field.type, Atomic)
    match field.type.name:
        case "string":
            # Texts need not be UTF-8
            return f"cast({column} AS BINARY)"
        case "timestamp" if not orc:
            return f"unix_micros({column})"
        case "timestamp_ntz" if not orc:
            # Without a function that goes by the session's zone, which has gaps
            days = f"unix_date(cast({column} AS DATE)) * 86400L"
            seconds = f"{days} + hour({column}) * 3600L + minute({column}) * 60L"
            micros = f"cast(extract(SECOND FROM {column}) * 1000000 AS BIGINT)"
            return f"({seconds}) * 1000000L + {micros}"
        case "date" if not orc:
            return f"unix_date({column})"
    return column


def part_rows(
    spark: SparkSession, numbered: DataFrame, ordering: Ordering, curves: Sequence[Curve]
) -> DataFrame:
    """Return the rows with their z, and the number of the part that they belong to."""
    count = len(ordering.columns)
    orc = ordering.base.spec.file_format == "orc"
    arrays = _broadcast(spark, _arrays(curves, count))
    rows = numbered.join(arrays, F.expr(f"{_BIN} = {_KEY}"))
    # Columns by number: v a value, k its knots, i its rank, s what the ranks add to z
    values = {}
    for n, field in enumerate(ordering.columns):
        values[f"_opal_v{n}"] = F.expr(measured(quoted(field.physical), field, orc=orc))
    rows = rows.withColumns(values)
    searches = {n: (f"_opal_v{n}", f"_opal_k{n}") for n in range(count)}
    rows = _searched(rows, searches, bits_of(count))
    additions = [f"get(_opal_s{n}, _opal_i{n})" for n in range(count)]
    tie = f"shiftright(cast({OFFSET} AS BIGINT), {ordering.tie_shift})"
    rows = rows.withColumn(_Z, F.expr(" | ".join([*additions, tie])))
    max_cuts = max(len(curve.cuts) for curve in curves)
    rows = _searched(rows, {count: (_Z, _CUTS)}, max_cuts.bit_length())
    return rows.withColumn(_PART, F.expr(f"{_BASE} + _opal_i{count}"))


def _searched(rows: DataFrame, searches: dict[int, tuple[str, str]], bits: int) -> DataFrame:
    """Search a value in an ascending array, for each of the searches.

    `_opal_i<n>` becomes the number of elements that the value is not less than; 0 for null.
    """
    rows = rows.withColumns({f"_opal_i{n}": F.lit(0) for n in searches})
    for bit in reversed(range(bits)):
        steps = {}
        for n, (value, array) in searches.items():
            steps[f"_opal_i{n}"] = _step(f"_opal_i{n}", value, array, 1 << bit)
        rows = rows.withColumns(steps)
    return rows


def _step(at: str, value: str, array: str, step: int) -> Column:
    # `get` is null beyond the array's end, and no value reaches null
    return F.expr(f"{at} | if({value} >= get({array}, {at} + {step - 1}), {step}, 0)")


def _arrays(curves: Sequence[Curve], columns: int) -> pa.Table:
    """Return a row for each bin: the number of its first part, and arrays.

    The arrays are its cuts, and for each column its knots and what ranks add to z.
    """
    starts = np.cumsum([0, *(curve.parts for curve in curves[:-1])])
    arrays = {
        _KEY: pa.array(range(len(curves)), pa.int32()),
        _BASE: pa.array(starts, pa.int32()),
        _CUTS: _lists([pa.array(curve.cuts, pa.int64()) for curve in curves]),
    }
    for n in range(columns):
        knots = [curve.knots[n] for curve in curves]
        additions = [pa.array(spread_ranks(len(ranks), n, columns)) for ranks in knots]
        arrays[f"_opal_k{n}"] = _lists(knots)
        arrays[f"_opal_s{n}"] = _lists(additions)
    return pa.table(arrays)


def _lists(arrays: Sequence[pa.Array]) -> pa.ListArray:
    lengths = [len(array) for array in arrays]
    ends = pa.array(np.cumsum([0, *lengths]), pa.int32())
    return pa.ListArray.from_arrays(ends, pa.concat_arrays(arrays))
