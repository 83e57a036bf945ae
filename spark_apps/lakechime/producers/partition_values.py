"""Partitions of Iceberg tables as events name them: a JSON value for each readable field.

An identity field has the value of the data. A field of a year, month, day or hour has a text such
as 2026, 2026-11, 2026-11-01 or 2026-11-01-03. Fields of a bucket or of a truncated value are left
out, because nobody waits for such a partition.
"""

import math
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from lakechime.event import JsonValue

if TYPE_CHECKING:
    from pyiceberg.partitioning import PartitionField, PartitionSpec
    from pyiceberg.schema import Schema
    from pyiceberg.types import IcebergType

_IDENTITY = "identity"
_NAMED_TRANSFORMS = (_IDENTITY, "year", "month", "day", "hour")


def levels_of(spec: "PartitionSpec") -> "list[tuple[int, PartitionField]]":
    """Return the fields that events name, as (index in a file's partition, field)."""
    levels = []
    for index, field in enumerate(spec.fields):
        if str(field.transform) in _NAMED_TRANSFORMS:
            levels.append((index, field))
    return levels


def values_of(
    spec: "PartitionSpec", schemas: "Iterable[Schema]"
) -> Callable[[Any], tuple[JsonValue, ...] | None]:
    """Return a function that maps a file's partition to an event's partition.

    The function returns None if events name no field of the partition.
    """
    levels = levels_of(spec)
    types = _types(schemas)

    def values(partition: Any) -> tuple[JsonValue, ...] | None:
        if not levels:
            return None
        return tuple(
            _value(field, types.get(field.source_id), partition[index]) for index, field in levels
        )

    return values


def _types(schemas: "Iterable[Schema]") -> "dict[int, IcebergType]":
    """Return the types of all fields by id, also of dropped fields."""
    from pyiceberg.schema import index_by_id

    types = {}
    for schema in schemas:
        for field_id, field in index_by_id(schema).items():
            types[field_id] = field.field_type
    return types


def _value(field: "PartitionField", kind: "IcebergType | None", value: Any) -> JsonValue:
    """Return a partition value as JSON; `kind` is the type of its source column."""
    from pyiceberg.types import (
        BooleanType,
        DoubleType,
        FloatType,
        IntegerType,
        LongType,
        StringType,
    )

    plain_types = BooleanType | IntegerType | LongType | FloatType | DoubleType | StringType
    is_plain_type = kind is None or isinstance(kind, plain_types)
    is_plain = is_plain_type and str(field.transform) == _IDENTITY
    if value is None or (is_plain and isinstance(value, bool | int | str)):
        return value
    if is_plain and isinstance(value, float):
        # JSON has no infinity and no NaN
        return value if math.isfinite(value) else str(value)
    if kind is None:
        return str(value)
    return field.transform.to_human_string(kind, value)
