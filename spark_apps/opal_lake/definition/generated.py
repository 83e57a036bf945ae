"""Generated columns, whose value is an expression over other columns of the row."""

from dataclasses import dataclass

from opal_lake.definition.conditions.expression import Expression, expression
from opal_lake.definition.conditions.kinds import kind_of
from opal_lake.definition.conditions.nodes import may_fail
from opal_lake.definition.conditions.typing import Columns
from opal_lake.definition.constraints import use_of_generated
from opal_lake.definition.schema import Atomic, Field, Schema, type_name
from opal_lake.errors import InvalidInputError


@dataclass(frozen=True, slots=True, kw_only=True)
class GeneratedColumn:
    """A generated column, and the expression that gives its value."""

    field: Field
    expression: Expression


def generated_columns(schema: Schema) -> list[GeneratedColumn]:
    """Return the generated columns; raise for one that cannot be computed."""
    others = [field for field in schema.own_fields if field.generated is None]
    generated = [field for field in schema.fields if field.generated is not None]
    return [_generated(field, others) for field in generated]


def generated_reason(name: str, text: str) -> str:
    """Return why a row with another value in a generated column is bad."""
    return f"column {name!r} differs from {text}, by which it is generated"


def _generated(field: Field, others: list[Field]) -> GeneratedColumn:
    text, use = field.generated, use_of_generated(field.name)
    try:
        bound = expression(text, field, Columns(fields=others, use=use))
    except InvalidInputError as error:
        raise InvalidInputError(f"{use.name}: {error}") from error
    if bound.typed is None or not bound.column_names:
        raise InvalidInputError(
            f"{use.name}: {text!r} reads no column; write an expression such as 'date(at)', or "
            "give the column a default"
        )
    if may_fail(bound.typed):
        raise InvalidInputError(f"{use.name}: {text!r} may divide by zero; {use.instead}")
    if _is_float(field):
        raise InvalidInputError(
            f"{use.name} is {type_name(field.type)}, and floats are not compared exactly; "
            "declare it DECIMAL or another type"
        )
    if not isinstance(field.type, Atomic) or bound.typed.kind != kind_of(field.type):
        raise InvalidInputError(
            f"{use.name} of type {type_name(field.type)}: {text!r} has the type "
            f"{bound.typed.kind.shown}; declare the column with this type"
        )
    return GeneratedColumn(field=field, expression=bound)


def _is_float(field: Field) -> bool:
    return isinstance(field.type, Atomic) and field.type.name in ("float", "double")
