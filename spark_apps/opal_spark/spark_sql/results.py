"""Results of statements that are not queries, as DataFrames."""

import json
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from opal_lake.result import JobResult

_JOB = (
    "operation STRING, table STRING, version BIGINT, repeated BOOLEAN, "
    "counts MAP<STRING, BIGINT>, notes ARRAY<STRING>"
)
_TYPES = {bool: "BOOLEAN", int: "BIGINT", float: "DOUBLE"}


def job_frame(spark: SparkSession, result: JobResult) -> DataFrame:
    """Return the result of a job as one row."""
    row = (
        result.operation,
        result.table,
        result.version,
        result.repeated,
        dict(result.counts),
        list(result.notes),
    )
    return spark.createDataFrame([row], _JOB)


def text_frame(spark: SparkSession, columns: Sequence[str], rows: Sequence[Any]) -> DataFrame:
    """Return rows of texts."""
    schema = ", ".join(f"{name} STRING" for name in columns)
    return spark.createDataFrame([tuple(row) for row in rows], schema)


def value_frame(spark: SparkSession, result: Any) -> DataFrame:
    """Return what a verb of a table returned: a row of a mapping, or rows of a list.

    Nested values are JSON. A list of texts has one column, `result`.
    """
    if isinstance(result, Mapping):
        result = [result]
    values = list(result)
    if not all(isinstance(value, Mapping) for value in values) or not values:
        return text_frame(spark, ["result"], [(str(value),) for value in values])
    names = list(dict.fromkeys(chain.from_iterable(values)))
    types = [_type_of(values, name) for name in names]
    columns = [f"`{name}` {kind}" for name, kind in zip(names, types, strict=True)]
    rows = []
    for value in values:
        cells = zip(names, types, strict=True)
        rows.append(tuple(_cell(value.get(name), kind) for name, kind in cells))
    return spark.createDataFrame(rows, ", ".join(columns))


def _type_of(rows: Sequence[Mapping[str, Any]], name: str) -> str:
    """Return the type of a column in SQL; what has no type of its own is text."""
    values = [row.get(name) for row in rows]
    kinds = {type(value) for value in values if value is not None}
    if len(kinds) != 1:
        return "STRING"
    return _TYPES.get(kinds.pop(), "STRING")


def _cell(value: Any, kind: str) -> Any:
    if value is None or kind != "STRING" or isinstance(value, str):
        return value
    return json.dumps(value, default=str)
