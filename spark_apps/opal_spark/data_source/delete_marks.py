"""Which rows delete their key, where no Spark session evaluates the table's condition: simple conditions, over Arrow.

Simple is what can be evaluated exactly as Spark does: comparisons of texts, integers and booleans with literals, IN, LIKE 'prefix%',
IS NULL, and AND, OR, NOT of them.
"""

from functools import reduce
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from opal_lake.data.prune import And, Compare, In, IsNull, Or, Predicate, Unknown
from opal_lake.errors import InvalidInputError
from opal_lake.spec.ordering import INTEGER_TYPES
from opal_lake.spec.schema import Atomic
from opal_lake.spec.table_spec import TableSpec
from opal_spark.read.predicate import parse_predicate

_NO_ZONE = "none"  # no times are compared
_TYPES = {"boolean", "string", *INTEGER_TYPES}
_COMPARE = {
    "=": pc.equal,
    "!=": pc.not_equal,
    "<": pc.less,
    "<=": pc.less_equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
}


def delete_predicate(spec: TableSpec) -> Predicate | None:
    """None for a table without deletes."""
    if spec.deletes is None:
        return None
    predicate = parse_predicate(spec.deletes, spec, session_zone=_NO_ZONE)
    if not _is_simple(
        predicate,
        {
            field.id: field.type.name
            for field in spec.schema.fields
            if isinstance(field.type, Atomic)
        },
    ):
        raise InvalidInputError(
            f"format('opal') cannot evaluate the table's delete condition {spec.deletes!r}: it knows comparisons of texts, integers and "
            "booleans with literals only; write with OpalTable.for_path(spark, path).ingest(rows, metadata='inline')"
        )
    return predicate


def _is_simple(predicate: Predicate, types: dict[int, str]) -> bool:
    match predicate:
        case And(parts=parts) | Or(parts=parts):
            return all(_is_simple(part, types) for part in parts)
        case Compare(field_id=number) | In(field_id=number):
            return types.get(number) in _TYPES
    return not isinstance(predicate, Unknown)


def delete_marks(predicate: Predicate, batch: pa.RecordBatch, spec: TableSpec) -> pa.BooleanArray:
    """Of each row whether the predicate is true; null counts as false. `batch` has the table's columns in their order."""
    columns = {
        field.id: column for field, column in zip(spec.schema.fields, batch.columns, strict=True)
    }
    return _holds(predicate, columns, batch.num_rows)


def _holds(predicate: Predicate, columns: dict[int, Any], rows: int) -> pa.BooleanArray:
    match predicate:
        case And(parts=parts):
            return reduce(
                pc.and_, (_holds(part, columns, rows) for part in parts), pa.repeat(True, rows)
            )
        case Or(parts=parts):
            return reduce(
                pc.or_, (_holds(part, columns, rows) for part in parts), pa.repeat(False, rows)
            )
        case Compare(field_id=number, op=op, value=value):
            return pc.fill_null(
                _COMPARE[op](columns[number], pa.scalar(value, columns[number].type)), False
            )
        case In(field_id=number, values=values):
            return pc.is_in(columns[number], pa.array(values, columns[number].type))
        case IsNull(field_id=number, negated=negated):
            return pc.is_valid(columns[number]) if negated else pc.is_null(columns[number])
    raise AssertionError(predicate)
