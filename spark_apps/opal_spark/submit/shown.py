"""Rows as values that go into JSON: what JSON lacks becomes text, and nothing is rounded."""

import math
from collections.abc import Mapping
from datetime import date, datetime, time
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame

from opal_lake.errors import InvalidInputError


def json_rows(rows: DataFrame) -> list[dict[str, Any]]:
    """All rows of a small DataFrame."""
    table: pa.Table = rows.toArrow()
    try:
        return [{name: json_value(value) for name, value in row.items()} for row in table.to_pylist()]
    except (ValueError, OverflowError) as error:  # years that Python does not hold
        raise InvalidInputError(f"a value cannot be shown ({error}); leave its column out, or export the rows") from error


def json_value(value: Any) -> Any:
    """Timestamps as ISO 8601, in UTC whatever the session's zone, decimals as text, bytes as hex, maps as objects."""
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return value if math.isfinite(value) else str(value)
        case datetime() | date() | time():
            return value.isoformat()
        case bytes():
            return value.hex()
        case Mapping():
            return {str(name): json_value(member) for name, member in value.items()}
        case [(_, _), *_] if all(isinstance(member, tuple) for member in value):  # Arrow's maps
            return {str(json_value(name)): json_value(member) for name, member in value}
        case list():
            return [json_value(member) for member in value]
    return str(value)
