"""The rows of the table that a statement reads, with their row ids.

All rows are scanned, or the rows of some keys are found through the key store: in this process for
the few keys that a condition names, and in tasks for the keys of a merge's source. `rows_by_id`
finds the rows of other conditions.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from opal_lake.definition.key_hash import hash_bytes, hashes_from_bytes
from opal_lake.definition.schema import (
    OFFSET,
    SEGMENT,
    Field,
    arrow_type,
    schema_of_arrow,
)
from opal_lake.definition.table_spec import TableSpec
from opal_lake.engine.executor import HASH, Batches
from opal_lake.errors import InvalidInputError
from opal_lake.events.segment_log import RowIds
from opal_lake.key_store.cache.protocol import RunCache
from opal_lake.read.get import hashed_keys, visible_rows
from opal_lake.read.statement import StatementPlan, keys_of_condition
from opal_lake.read.where import where_predicate
from opal_lake.write.unchanged import KnownTable
from opal_spark.engine.by_key import guess_slots
from opal_spark.engine.columns import arrow_of_spark, quoted, spark_field_type
from opal_spark.engine.key_hash import hash_slot, key_hash_sql
from opal_spark.engine.session import parallelism, rough_rows, rows_from_arrow
from opal_spark.engine.stored_values import misfit
from opal_spark.engine.tasks import forget_archives, with_same_version
from opal_spark.read.reader import rows_with_ids
from opal_spark.read.understood import understood

_MAX_KEYS = 10_000  # beyond so many, tasks scan the table
# Rows of a source whose keys a task looks up together. Each look-up opens the files of its rows
_LOOK_UP_ROWS = 1 << 17
_BATCH_ROWS = 10_000
_KEY = "_opal_key"


def rows_of_target(spark: SparkSession, plan: StatementPlan, where: Any) -> DataFrame:
    """Return at least the visible rows that meet a condition, with their row ids.

    The condition may be a text, a Column, or None.
    """
    condition = understood(where, plan.spec, plan.target)
    if condition is None:
        return rows_with_ids(spark, plan.snapshot, None)
    rows = rows_of_named_keys(spark, plan, where)
    if rows is not None:
        return rows
    return rows_with_ids(spark, plan.snapshot, where_predicate(condition))


def rows_of_named_keys(spark: SparkSession, plan: StatementPlan, where: Any) -> DataFrame | None:
    """Return the visible rows of the keys that an understood condition names.

    None if it names no keys, or too many, or keys that Spark would compare in its own way.
    """
    keys = keys_of_condition(where, plan.spec, plan.target)
    if keys is None or len(keys) > _MAX_KEYS:
        return None
    try:
        hashes, values = hashed_keys(keys, plan.spec)
    except InvalidInputError:
        # A value of another type than the key's
        return None
    fields = plan.spec.schema.fields
    rows, entries = visible_rows(plan.snapshot, plan.cache, hashes, fields, values)
    ids = RowIds(segment=entries.segment, offset=entries.offset)
    schema = schema_with_ids({field.name: field for field in fields})
    return rows_from_arrow(spark, with_ids(rows, ids), schema)


def schema_with_ids(fields: Mapping[str, Field]) -> T.StructType:
    """Return the schema of rows of the table with row ids."""
    members = [T.StructField(name, spark_field_type(field)) for name, field in fields.items()]
    ids = [T.StructField(SEGMENT, T.LongType()), T.StructField(OFFSET, T.IntegerType())]
    return T.StructType([*members, *ids])


def with_ids(rows: pa.Table, ids: RowIds) -> pa.Table:
    """Return rows with the columns of their ids."""
    with_segment = rows.append_column(SEGMENT, pa.array(ids.segment, pa.int64()))
    return with_segment.append_column(OFFSET, pa.array(ids.offset, pa.int32()))


def key_columns(source: DataFrame, spec: TableSpec) -> list[Column] | None:
    """Return the source's key columns in the types of the table's.

    None if equality in these types may differ from equality in Spark. A value that no key can have
    becomes null.
    """
    given = {field.name.casefold(): field for field in source.schema.fields}
    columns: list[Column] = []
    for key in spec.keys:
        field = given.get(key.name.casefold())
        if field is None or not _is_equal_alike(field, key):
            return None
        columns.append(F.col(quoted(field.name)).try_cast(spark_field_type(key)))
    return columns


def _is_equal_alike(given: T.StructField, key: Field) -> bool:
    expected = spark_field_type(key)
    if isinstance(expected, T.FractionalType) and not isinstance(expected, T.DecimalType):
        # -0.0 equals 0.0 in Spark
        return False
    if isinstance(given.dataType, T.IntegralType) and isinstance(expected, T.IntegralType):
        return True
    try:
        schema = schema_of_arrow(arrow_of_spark(T.StructType([given])))
    except InvalidInputError:
        return False
    return misfit(schema.fields[0].type, key.type, key.name) is None


@dataclass(frozen=True, slots=True, kw_only=True)
class LookUp:
    """A look-up of the visible rows of a source's keys.

    `source` and `target` are the columns of the two sides, by their names in the joined rows.
    """

    plan: StatementPlan
    source: Mapping[str, str]
    target: Mapping[str, Field]

    def rows(self, source: DataFrame, keys: Sequence[Column]) -> DataFrame:
        """Return the source's rows, each with the row of its key or with nulls."""
        spark, spec = source.sparkSession, self.plan.spec
        columns = [F.col(quoted(name)).alias(joined) for joined, name in self.source.items()]
        key_names = [f"{_KEY}{index}" for index in range(len(keys))]
        named_keys = [key.alias(name) for key, name in zip(keys, key_names, strict=True)]
        # A row without a key gets a hash that no key has
        hash_text = key_hash_sql(key_names, spec.key_types, "parquet")
        hashed = f"coalesce({hash_text}, unhex(repeat('0', 32)))"
        with_keys = source.select(*columns, *named_keys)
        rows = with_keys.selectExpr(*self.source, *key_names, f"{hashed} AS {HASH}")
        slots = guess_slots(rough_rows(rows), 0, parallelism(spark))
        by_key = rows.repartitionById(slots, hash_slot(HASH, slots))
        task = partial(
            look_up,
            known=KnownTable(snapshot=self.plan.snapshot),
            cache=self.plan.cache,
            fields=self.target,
        )
        given = [rows.schema[name] for name in self.source]
        schema = T.StructType([*given, *schema_with_ids(self.target).fields])
        return by_key.mapInArrow(with_same_version(task), schema)


def look_up(
    batches: Batches, *, known: KnownTable, cache: RunCache, fields: Mapping[str, Field]
) -> Iterator[pa.RecordBatch]:
    """Yield rows with the visible rows of their keys, in a task."""
    for rows in _gathered(batches):
        hashes = hashes_from_bytes(rows[HASH])
        keys: dict[str, pa.ChunkedArray] = {}
        for index, field in enumerate(known.snapshot.spec.keys):
            keys[field.name] = rows[f"{_KEY}{index}"].cast(arrow_type(field.type))
        target, entries = visible_rows(known.snapshot, cache, hashes, [*fields.values()], keys)
        stored = hash_bytes(entries.high, entries.low)
        position = pc.index_in(rows[HASH].cast(pa.binary()), value_set=stored)
        joined = rows.drop_columns([HASH, *(f"{_KEY}{index}" for index in range(len(keys)))])
        for name, field in fields.items():
            values = target[field.name].cast(arrow_type(field.type))
            joined = joined.append_column(name, values.take(position))
        segment, offset = pa.array(entries.segment), pa.array(entries.offset)
        joined = joined.append_column(SEGMENT, segment.take(position))
        joined = joined.append_column(OFFSET, offset.take(position))
        yield from joined.to_batches(max_chunksize=_BATCH_ROWS)
    forget_archives()


def _gathered(batches: Batches) -> Iterator[pa.Table]:
    """Yield the rows of batches, many together."""
    gathered: list[pa.RecordBatch] = []
    for batch in batches:
        gathered.append(batch)
        if sum(map(len, gathered)) >= _LOOK_UP_ROWS:
            yield pa.Table.from_batches(gathered)
            gathered = []
    if gathered:
        yield pa.Table.from_batches(gathered)
