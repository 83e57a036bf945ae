"""Z-order on Spark: each bin of rows gets a curve, and each task writes one part of a curve.

A sample of rows gives each bin's curve: for each column the knots (ascending values), and the cuts
(ascending values of z) at which a part of the curve ends. Native expressions then compute each
row's z. The rank of a value among the knots is found by binary search, with one projection for each
step: as one expression the search would double in size with every step. Two broadcast joins bring a
row's segment to its bin, and the bin to its arrays.
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
from opal_spark.engine.columns import quoted
from opal_spark.engine.scan import scan_files
from opal_spark.engine.tasks import collect_outputs, rows_a_batch

SAMPLE_ROWS, SAMPLE_ROWS_A_FILE, MAX_SAMPLE_ROWS = 100_000, 100, 2_000_000
_SAMPLE_TEXT = 256  # code points or bytes: the bounds of files hold fewer
_SEED = 1
_BIN, _TIE, _PART, _Z = "_opal_bin", "_opal_tie", "_opal_part", "_opal_z"
_BASE, _CUTS, _KEY = "_opal_base", "_opal_cuts", "_opal_key"


def in_order(spark: SparkSession, ordering: Ordering, task: Task[Result]) -> list[list[Result]]:
    """Run a task for each part of each bin's curve; return each bin's results."""
    rows = bin_rows(spark, ordering)
    numbered = numbered_rows(spark, rows, ordering)
    curves = plan_curves(numbered, ordering)
    bin_of_part: list[int] = []
    for index, curve in enumerate(curves):
        bin_of_part += [index] * curve.parts
    on_curve = rows_with_part(spark, numbered, ordering, curves)
    by_part = on_curve.repartitionById(len(bin_of_part), F.col(_PART))
    along_curve = by_part.sortWithinPartitions(_Z)
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
    """Run a task for one part, and return the part's number with the result."""
    attempt_in_bin = replace(attempt, bin=bin_of_part[attempt.part])
    return attempt.part, task(batches, attempt_in_bin)


def bin_rows(spark: SparkSession, ordering: Ordering) -> DataFrame:
    """Return the rows of all bins with all physical columns."""
    spec = ordering.base.spec
    files = list(chain.from_iterable(ordering.bins))
    return scan_files(spark, ordering.base.storage, files, spec)


def numbered_rows(spark: SparkSession, rows: DataFrame, ordering: Ordering) -> DataFrame:
    """Return the rows with the number of their bin in a further column."""
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
    """Return the curve of each bin, from one pass over the ordering columns."""
    rows = _sample(numbered, ordering).toArrow()
    bins = rows[_BIN].to_numpy()
    # Row indices sorted by bin; the rows of bin n are by_bin[ends[n]:ends[n + 1]]
    by_bin = np.argsort(bins, kind="stable")
    ends = np.searchsorted(bins[by_bin], np.arange(len(ordering.bins) + 1))
    curves = []
    for files, start, end in zip(ordering.files, ends[:-1], ends[1:], strict=True):
        bin_sample = rows.take(pa.array(by_bin[start:end]))
        curves.append(_curve(bin_sample, files))
    return curves


def _sample(numbered: DataFrame, ordering: Ordering) -> DataFrame:
    """Return sampled rows: their bin, the tie break of z, the ordering columns."""
    total = sum(file.rows for file in chain.from_iterable(ordering.bins))
    rows_for_files = int(SAMPLE_ROWS_A_FILE * sum(ordering.files))
    max_rows = min(max(SAMPLE_ROWS, rows_for_files), MAX_SAMPLE_ROWS)
    rows = numbered
    if total > max_rows:
        rows = numbered.sample(max_rows / total, _SEED)
    orc = ordering.base.spec.file_format == "orc"
    tie = f"shiftright(cast({OFFSET} AS BIGINT), {ordering.tie_shift}) AS {_TIE}"
    cut_columns, ranking_columns = [], []
    for n, field in enumerate(ordering.columns):
        cut_columns.append(f"{sampled_value(field)} AS _{n}")
        ranking_columns.append(f"{ranking_value(f'_{n}', field, orc=orc)} AS _{n}")
    cut_rows = rows.selectExpr(_BIN, tie, *cut_columns)
    return cut_rows.selectExpr(_BIN, _TIE, *ranking_columns)


def _curve(rows: pa.Table, files: float) -> Curve:
    """Return the curve of one bin from its sample, for so many files."""
    # The first two columns are the bin and the tie break
    columns = [rows.column(index).combine_chunks() for index in range(2, rows.num_columns)]
    return plan_curve(columns, rows[_TIE].to_numpy(), files)


def sampled_value(field: Field) -> str:
    """Return the SQL for the beginning of a value, which is enough for a sample."""
    column = quoted(field.physical)
    if isinstance(field.type, Atomic) and field.type.name in ("string", "binary"):
        return f"substring({column}, 1, {_SAMPLE_TEXT})"
    return column


def ranking_value(column: str, field: Field, *, orc: bool) -> str:
    """Return the SQL for a value in the column's order, by which rows are ranked.

    Its type is one that passes between Spark and Arrow unchanged.
    """
    assert isinstance(field.type, Atomic)
    match field.type.name:
        case "string":
            # A text may not be valid UTF-8, which Arrow requires
            return f"cast({column} AS BINARY)"
        case "timestamp" if not orc:
            return f"unix_micros({column})"
        case "timestamp_ntz" if not orc:
            # No function that uses the session's zone, in which some wall-clock times are missing
            days = f"unix_date(cast({column} AS DATE)) * 86400L"
            seconds = f"{days} + hour({column}) * 3600L + minute({column}) * 60L"
            micros = f"cast(extract(SECOND FROM {column}) * 1000000 AS BIGINT)"
            return f"({seconds}) * 1000000L + {micros}"
        case "date" if not orc:
            return f"unix_date({column})"
    return column


def rows_with_part(
    spark: SparkSession, numbered: DataFrame, ordering: Ordering, curves: Sequence[Curve]
) -> DataFrame:
    """Return the rows with their z, and the curve's part that z belongs to."""
    count = len(ordering.columns)
    orc = ordering.base.spec.file_format == "orc"
    arrays = _broadcast(spark, _arrays(curves, count))
    rows = numbered.join(arrays, F.expr(f"{_BIN} = {_KEY}"))
    # For column n: _opal_v<n> is its value, _opal_k<n> its knots, _opal_i<n> the rank of the value
    # among the knots, _opal_s<n> the bits that each rank sets in z
    values = {}
    for n, field in enumerate(ordering.columns):
        value = ranking_value(quoted(field.physical), field, orc=orc)
        values[f"_opal_v{n}"] = F.expr(value)
    rows = rows.withColumns(values)
    searches = {n: (f"_opal_v{n}", f"_opal_k{n}") for n in range(count)}
    rows = _searched(rows, searches, bits_of(count))
    rank_bits = [f"get(_opal_s{n}, _opal_i{n})" for n in range(count)]
    tie_bits = f"shiftright(cast({OFFSET} AS BIGINT), {ordering.tie_shift})"
    rows = rows.withColumn(_Z, F.expr(" | ".join([*rank_bits, tie_bits])))
    max_cuts = max(len(curve.cuts) for curve in curves)
    rows = _searched(rows, {count: (_Z, _CUTS)}, max_cuts.bit_length())
    return rows.withColumn(_PART, F.expr(f"{_BASE} + _opal_i{count}"))


def _searched(rows: DataFrame, searches: dict[int, tuple[str, str]], bits: int) -> DataFrame:
    """Add the rank of a value in an ascending array, for each search.

    `searches` has the columns of the value and of the array by number n. The rank is the new column
    `_opal_i<n>`: how many elements are not greater than the value, and 0 for null. An array has
    fewer than 2**bits elements.
    """
    rows = rows.withColumns({f"_opal_i{n}": F.lit(0) for n in searches})
    for bit in reversed(range(bits)):
        steps = {}
        for n, (value, array) in searches.items():
            steps[f"_opal_i{n}"] = _step(f"_opal_i{n}", value, array, 1 << bit)
        rows = rows.withColumns(steps)
    return rows


def _step(rank: str, value: str, array: str, step: int) -> Column:
    """Return the rank after one step of the search, which may set the bit `step`."""
    # Beyond the array's end `get` is null, and a comparison with null does not set the bit
    return F.expr(f"{rank} | if({value} >= get({array}, {rank} + {step - 1}), {step}, 0)")


def _arrays(curves: Sequence[Curve], columns: int) -> pa.Table:
    """Return a row for each bin: the number of its first part, and its arrays.

    The arrays are the cuts, and for each column the knots and the bits that each rank sets in z.
    """
    parts_of_bins = [curve.parts for curve in curves]
    # The number of each bin's first part
    first_parts = np.cumsum([0, *parts_of_bins[:-1]])
    arrays = {
        _KEY: pa.array(range(len(curves)), pa.int32()),
        _BASE: pa.array(first_parts, pa.int32()),
        _CUTS: _lists([pa.array(curve.cuts, pa.int64()) for curve in curves]),
    }
    for n in range(columns):
        knots_of_bins = [curve.knots[n] for curve in curves]
        rank_bits = [pa.array(spread_ranks(len(knots), n, columns)) for knots in knots_of_bins]
        arrays[f"_opal_k{n}"] = _lists(knots_of_bins)
        arrays[f"_opal_s{n}"] = _lists(rank_bits)
    return pa.table(arrays)


def _lists(arrays: Sequence[pa.Array]) -> pa.ListArray:
    """Return the arrays as one array of lists."""
    lengths = [len(array) for array in arrays]
    ends = pa.array(np.cumsum([0, *lengths]), pa.int32())
    return pa.ListArray.from_arrays(ends, pa.concat_arrays(arrays))
