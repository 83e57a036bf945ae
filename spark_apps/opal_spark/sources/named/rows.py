"""What the names and places of files say, put to their rows: deletes, the delta, and which of several rows is the last."""

from collections.abc import Sequence
from functools import reduce
from operator import or_

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from opal_lake.data.rejects import BAD, NOTES
from opal_lake.definition.schema import DELETED, Atomic, decimal_parts, type_name
from opal_lake.definition.table_spec import TableSpec
from opal_lake.errors import InvalidInputError
from opal_lake.ids import MAX_PART
from opal_lake.source import BY_POSITION, BY_SUFFIX, Files
from opal_spark.engine.columns import quoted, spark_schema
from opal_spark.sources.marks import BLOCK, FILE, PATH, plain_uris
from opal_spark.sources.named.parts import NamedFile, Part

MOST_PLACES = (
    1_000_000  # file n of ingest m has the delta m * 1,000,000 + n, so that people can read it
)
_RANK, _PLACE, _MADE, _NAME, _TURN = (
    "_opal_rank",
    "_opal_place",
    "_opal_made",
    "_opal_name",
    "_opal_turn",
)
_BITS = {"byte": 7, "short": 15, "integer": 31, "long": 63}


def with_names(
    spark: SparkSession,
    source: Files,
    spec: TableSpec,
    number: int,
    parts: Sequence[tuple[Part, DataFrame]],
) -> DataFrame:
    """The rows of all parts with the table's columns. With an order, the last one of each key and delta, which alone can ever be seen."""
    rows = reduce(DataFrame.unionByName, [_whole(part, read, spec) for part, read in parts])
    if source.order is None:
        return rows
    files = [file for part, _ in parts for file in part.files]
    deltas = _deltas(source, spec, number, files)
    return _last(_placed(spark, rows, files, deltas, spec), spec)


def _whole(part: Part, rows: DataFrame, spec: TableSpec) -> DataFrame:
    """With null in the columns that the files do not have."""
    known = set(rows.columns)
    columns = [
        F.col(quoted(field.name))
        if field.name in known
        else F.lit(None).cast(field.dataType).alias(field.name)
        for field in spark_schema(spec, physical=False)
    ]
    noted = [F.col(name) for name in NOTES if name in known]
    rank = F.monotonically_increasing_id().alias(
        _RANK
    )  # rises within the block of a file that a task reads
    return rows.select(*columns, *noted, FILE, F.lit(part.is_deletes).alias(DELETED), rank)


def _deltas(
    source: Files, spec: TableSpec, number: int, files: Sequence[NamedFile]
) -> list[int] | None:
    """What each file's rows have in the delta column; None if they have it themselves."""
    delta = spec.delta
    if not source.makes_delta:
        return None
    kind = delta.type.name if isinstance(delta.type, Atomic) else "nested"
    if source.order == BY_POSITION:
        if kind != "long":
            raise InvalidInputError(
                f"order={BY_POSITION!r} makes numbers that need a BIGINT, and the delta column "
                f"{delta.name!r} is {type_name(delta.type)}"
            )
        if len(files) > MOST_PLACES:
            raise InvalidInputError(
                f"order={BY_POSITION!r} takes at most {MOST_PLACES:,} files, and there are {len(files):,}; ingest fewer at once"
            )
        assert number <= MAX_PART
        return [number * MOST_PLACES + file.place for file in files]
    suffixes = [file.increment.suffix or 0 for file in files]
    parts = decimal_parts(kind)
    most = (
        10 ** (parts[0] - parts[1]) - 1
        if parts
        else (1 << _BITS[kind]) - 1
        if kind in _BITS
        else -1
    )
    greatest = max(range(len(files)), key=suffixes.__getitem__)
    if most < suffixes[greatest]:
        why = (
            "holds no whole numbers"
            if most < 0
            else f"is {type_name(delta.type)}, too small for it"
        )
        raise InvalidInputError(
            f"order={BY_SUFFIX!r}: {files[greatest].increment.source} has the suffix {suffixes[greatest]}, and the delta column "
            f"{delta.name!r} {why}; make the table with a BIGINT there"
        )
    return suffixes


def _placed(
    spark: SparkSession,
    rows: DataFrame,
    files: Sequence[NamedFile],
    deltas: Sequence[int] | None,
    spec: TableSpec,
) -> DataFrame:
    """With the place of each row's file, and the delta that it gives."""
    table = pa.table(
        {
            _NAME: pa.array([file.uri for file in files], pa.string()),
            _PLACE: pa.array([file.place for file in files], pa.int32()),
            _MADE: pa.array(deltas or [0] * len(files), pa.int64()),
        }
    )
    named = rows.withColumn(_NAME, plain_uris(F.col(FILE).getField(PATH)))
    found = named.join(F.broadcast(spark.createDataFrame(table)), _NAME, "left")
    place = F.coalesce(
        _PLACE,
        F.raise_error(F.concat(F.lit("no file of the source is called "), F.col(_NAME))).cast(
            "int"
        ),
    )
    columns = {_PLACE: place}
    if deltas is not None:
        columns[spec.delta.name] = F.col(_MADE).cast(rows.schema[spec.delta.name].dataType)
    return found.withColumns(columns).drop(_NAME, _MADE)


def _last(rows: DataFrame, spec: TableSpec) -> DataFrame:
    """Bad rows are all kept, to be counted: each is alone."""
    needed = [F.col(quoted(column.name)) for column in (*spec.keys, spec.delta)]
    alone = reduce(or_, [F.col(BAD).isNotNull(), *(column.isNull() for column in needed)])
    equal = [
        *needed,
        *(F.col(quoted(column.name)) for column in spec.tie_break),
        F.when(alone, F.struct(FILE, _RANK)),
    ]
    latest = [F.desc(_PLACE), F.col(FILE).getField(BLOCK).desc(), F.desc(_RANK)]
    turn = F.row_number().over(Window.partitionBy(*equal).orderBy(*latest))
    return rows.withColumn(_TURN, turn).where(F.col(_TURN) == 1).drop(_TURN, _PLACE, _RANK)
