"""Partitions of Iceberg tables as events name them: a JSON value for each readable field.

These are identity fields, with the value as in the data, and those of a year, month, day or hour,
as 2026, 2026-11, 2026-11-01 and 2026-11-01-03. Fields of a bucket or of a truncated value are left
out: nobody waits for such a partition.
"""

import math
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from lakechime.event import JsonValue

if TYPE_CHECKING:
    from pyiceberg.partitioning import PartitionField, PartitionSpec
    from pyiceberg.schema import Schema
    from pyiceberg.types import IcebergType

_OF_TIME = ("year", "month", "day", "hour")
_IDENTITY = "identity"


def levels_of(spec: "PartitionSpec") -> "list[tuple[int, PartitionField]]":
    """Return the fields that events name, each with its index in a file's partition."""
    named = (_IDENTITY, *_OF_TIME)
    return [
        (index, field) for index, field in enumerate(spec.fields) if str(field.transform) in named
    ]


def values_of(
    spec: "PartitionSpec", schemas: "Iterable[Schema]"
) -> Callable[[Any], tuple[JsonValue, ...] | None]:
    """Return a function from a file's partition to that of an event.

    It returns None where events name no field of the partition.
    """
    levels = levels_of(spec)
    types = _types(schemas)

    def values(partition: Any) -> tuple[JsonValue, ...] | None:
        named = tuple(
            _value(field, types.get(field.source_id), partition[index]) for index, field in levels
        )
        return named or None

    return values


def _types(schemas: "Iterable[Schema]") -> "dict[int, IcebergType]":
    """Return the types of fields by id, also of those that newer schemas dropped."""
    from pyiceberg.schema import index_by_id

    types = {}
    for schema in schemas:
        for field_id, field in index_by_id(schema).items():
            types[field_id] = field.field_type
    return types


def _value(field: "PartitionField", kind: "IcebergType | None", value: Any) -> JsonValue:
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
