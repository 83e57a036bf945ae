"""Partitions of Iceberg tables as an event names them: a JSON value for each field that a person can name.

These are identity fields, with the value as it is in the data, and those of a year, month, day or hour, as 2026, 2026-11, 2026-11-01 and
2026-11-01-03. Fields of a bucket or of a cut-off value name no partition that anybody waits for, and are left out.
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
    """The fields that are named, with their places in a file's partition."""
    return [
        (place, field)
        for place, field in enumerate(spec.fields)
        if str(field.transform) in (_IDENTITY, *_OF_TIME)
    ]


def values_of(
    spec: "PartitionSpec", schemas: "Iterable[Schema]"
) -> Callable[[Any], tuple[JsonValue, ...] | None]:
    """From a file's partition to that of an event; None where no field is named."""
    levels, types = levels_of(spec), _types(schemas)

    def values(partition: Any) -> tuple[JsonValue, ...] | None:
        return (
            tuple(
                _value(field, types.get(field.source_id), partition[place])
                for place, field in levels
            )
            or None
        )

    return values


def _types(schemas: "Iterable[Schema]") -> "dict[int, IcebergType]":
    """By the ids of fields, also of those that newer schemas have dropped."""
    from pyiceberg.schema import index_by_id

    return {
        number: field.field_type
        for schema in schemas
        for number, field in index_by_id(schema).items()
    }


def _value(field: "PartitionField", kind: "IcebergType | None", value: Any) -> JsonValue:
    from pyiceberg.types import (
        BooleanType,
        DoubleType,
        FloatType,
        IntegerType,
        LongType,
        StringType,
    )

    is_plain = str(field.transform) == _IDENTITY and (
        kind is None
        or isinstance(
            kind, BooleanType | IntegerType | LongType | FloatType | DoubleType | StringType
        )
    )
    if value is None or (is_plain and isinstance(value, bool | int | str)):
        return value
    if is_plain and isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    return str(value) if kind is None else field.transform.to_human_string(kind, value)
