"""Rows with values from the names and positions of their files: deletes, delta and order."""

from collections.abc import Sequence
from functools import reduce
from operator import or_

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from opal_lake.data.rejects import BAD, NOTES
from opal_lake.definition.schema import DELETED, Atomic, DataType, decimal_parts, type_name
from opal_lake.definition.table_spec import TableSpec
from opal_lake.errors import InvalidInputError
from opal_lake.ids import MAX_PART
from opal_lake.source import BY_POSITION, BY_SUFFIX, Files
from opal_spark.engine.columns import columns_named, quoted, spark_schema, write_default
from opal_spark.sources.marks import BLOCK, FILE, PATH, plain_uris
from opal_spark.sources.named.parts import NamedFile, Part

# File n of ingest m has the delta m * 1,000,000 + n, so that people can read it
MAX_POSITIONS = 1_000_000
_RANK, _POSITION, _NAME = "_opal_rank", "_opal_position", "_opal_name"
_MADE_DELTA, _TURN = "_opal_made", "_opal_turn"
_BITS = {"byte": 7, "short": 15, "integer": 31, "long": 63}


def with_names(
    spark: SparkSession,
    source: Files,
    spec: TableSpec,
    number: int,
    parts: Sequence[tuple[Part, DataFrame]],
) -> DataFrame:
    """Return the rows of all parts with the table's columns.

    If the source has an order, only the last row of each key and delta is returned, because no read
    can show an earlier one.
    """
    parts_with_columns = [_with_all_columns(part, part_rows, spec) for part, part_rows in parts]
    rows = reduce(DataFrame.unionByName, parts_with_columns)
    if source.order is None:
        return rows
    files: list[NamedFile] = []
    for part, _ in parts:
        files += part.files
    deltas = _deltas(source, spec, number, files)
    with_positions = _with_positions(spark, rows, files, deltas, spec)
    return _last_rows(with_positions, spec)


def _with_all_columns(part: Part, rows: DataFrame, spec: TableSpec) -> DataFrame:
    """Return the rows with the table's columns, those that files lack by default."""
    known = set(rows.columns)
    columns = []
    for field in spark_schema(spec, physical=False):
        if field.name in known:
            columns.append(F.col(quoted(field.name)))
        else:
            columns.append(write_default(spec, field.name).alias(field.name))
    notes = columns_named(name for name in NOTES if name in known)
    is_delete = F.lit(part.is_deletes).alias(DELETED)
    # The rank rises within the block of a file that a task reads
    rank = F.monotonically_increasing_id().alias(_RANK)
    return rows.select(*columns, *notes, FILE, is_delete, rank)


def _deltas(
    source: Files, spec: TableSpec, number: int, files: Sequence[NamedFile]
) -> list[int] | None:
    """Return the delta of each file's rows; None if the files have the delta column."""
    if not source.makes_delta:
        return None
    if source.order == BY_POSITION:
        return _position_deltas(spec, number, files)
    return _suffix_deltas(spec, files)


def _position_deltas(spec: TableSpec, number: int, files: Sequence[NamedFile]) -> list[int]:
    delta = spec.delta
    if delta.type != Atomic(name="long"):
        raise InvalidInputError(
            f"order={BY_POSITION!r} (--order) needs a delta column of type BIGINT, but "
            f"{delta.name!r} is {type_name(delta.type)}; give order={BY_SUFFIX!r}, or create the "
            "table with a BIGINT delta column"
        )
    if len(files) > MAX_POSITIONS:
        raise InvalidInputError(
            f"order={BY_POSITION!r} (--order) takes at most {MAX_POSITIONS:,} files, got "
            f"{len(files):,}; ingest fewer files at a time"
        )
    # So the greatest delta is below 2**63
    assert number <= MAX_PART
    return [number * MAX_POSITIONS + file.position for file in files]


def _suffix_deltas(spec: TableSpec, files: Sequence[NamedFile]) -> list[int]:
    delta = spec.delta
    suffixes = [file.increment.suffix or 0 for file in files]
    greatest_suffix = max(suffixes)
    max_value = _max_integer(delta.type)
    if max_value is None or greatest_suffix > max_value:
        file = files[suffixes.index(greatest_suffix)]
        why = f"is {type_name(delta.type)}, too small for it"
        if max_value is None:
            why = "holds no whole numbers"
        raise InvalidInputError(
            f"order={BY_SUFFIX!r}: {file.increment.source} has the suffix {greatest_suffix}, "
            f"and the delta column {delta.name!r} {why}; make the table with a BIGINT delta column"
        )
    return suffixes


def _max_integer(kind: DataType) -> int | None:
    """Return the greatest integer of a type; None if it holds other values."""
    if not isinstance(kind, Atomic):
        return None
    if parts := decimal_parts(kind.name):
        precision, scale = parts
        limit: int = 10 ** (precision - scale)
        return limit - 1
    if kind.name in _BITS:
        return (1 << _BITS[kind.name]) - 1
    return None


def _with_positions(
    spark: SparkSession,
    rows: DataFrame,
    files: Sequence[NamedFile],
    deltas: Sequence[int] | None,
    spec: TableSpec,
) -> DataFrame:
    """Add the position of each row's file, and the file's delta if `deltas` are given."""
    uris = [file.uri for file in files]
    positions = [file.position for file in files]
    file_deltas = [0] * len(files) if deltas is None else deltas
    table = pa.table(
        {
            _NAME: pa.array(uris, pa.string()),
            _POSITION: pa.array(positions, pa.int32()),
            _MADE_DELTA: pa.array(file_deltas, pa.int64()),
        }
    )
    named = rows.withColumn(_NAME, plain_uris(F.col(FILE).getField(PATH)))
    with_file = named.join(F.broadcast(spark.createDataFrame(table)), _NAME, "left")
    # Without this error, a row whose file is not in the table would be lost silently
    message = F.concat(F.lit("no file of the source is called "), F.col(_NAME))
    unknown_file = F.raise_error(message).cast("int")
    columns = {_POSITION: F.coalesce(_POSITION, unknown_file)}
    if deltas is not None:
        delta_type = rows.schema[spec.delta.name].dataType
        columns[spec.delta.name] = F.col(_MADE_DELTA).cast(delta_type)
    return with_file.withColumns(columns).drop(_NAME, _MADE_DELTA)


def _last_rows(rows: DataFrame, spec: TableSpec) -> DataFrame:
    """Return the last row of each key, delta and tie break, and all bad rows."""
    key_and_delta = columns_named(column.name for column in (*spec.keys, spec.delta))
    tie_break = columns_named(column.name for column in spec.tie_break)
    has_null = [column.isNull() for column in key_and_delta]
    is_bad = reduce(or_, [F.col(BAD).isNotNull(), *has_null])
    # All bad rows are counted later, so the position of a bad row makes it a group of its own
    bad_position = F.when(is_bad, F.struct(FILE, _RANK))
    start_of_block = F.col(FILE).getField(BLOCK)
    groups = Window.partitionBy(*key_and_delta, *tie_break, bad_position)
    latest_first = groups.orderBy(F.desc(_POSITION), start_of_block.desc(), F.desc(_RANK))
    ranked = rows.withColumn(_TURN, F.row_number().over(latest_first))
    return ranked.where(F.col(_TURN) == 1).drop(_TURN, _POSITION, _RANK)
