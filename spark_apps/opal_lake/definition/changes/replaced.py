"""The definition that a table has after it is replaced (`REPLACE TABLE`).

It is that of a new table, on the field ids of the existing one. Older versions keep theirs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from opal_lake.definition.changes.apply import check_spec
from opal_lake.definition.changes.columns import WidenColumn
from opal_lake.definition.changes.paths import path_text
from opal_lake.definition.conditions.faults import DELETES
from opal_lake.definition.conditions.parser import parse
from opal_lake.definition.constraints import use_of_generated
from opal_lake.definition.schema import (
    Atomic,
    Field,
    Schema,
    altered,
    arrow_schema,
    atomic_type_name,
    is_widening,
    new_fields,
    type_name,
)
from opal_lake.definition.table_spec import NO_DELETES, TableSpec
from opal_lake.errors import InvalidInputError


class AnotherDefinitionError(InvalidInputError):
    """A table would differ in a part that never changes, such as the keys."""


def replaced_spec(own: TableSpec, planned: TableSpec) -> TableSpec:
    """Return the definition of a new table as the next one of an existing table.

    A column keeps its id if the name is the same, and the type is the same or wider. Any other
    column is new, also under the name of a former one. Raises AnotherDefinitionError if the two
    differ in a part that never changes.
    """
    differences = _fixed_differences(own, planned)
    if differences:
        raise AnotherDefinitionError("; ".join(differences))
    staying = _staying_columns(own, planned.schema)
    _refuse_another_role_column(own, staying, planned.schema)
    schema = _replaced_schema(own.schema, staying, planned.schema)
    spec = replace(
        own,
        schema=schema,
        properties=planned.properties,
        not_null_ids=tuple(sorted(schema.field(column.name).id for column in planned.not_null)),
        constraints=planned.constraints,
    )
    check_spec(spec)
    return spec


def _fixed_differences(own: TableSpec, planned: TableSpec) -> list[str]:
    """Return the parts that never change and that differ, each as a text."""
    differences: list[str] = []
    own_parts, planned_parts = _fixed_parts(own), _fixed_parts(planned)
    for name, part in own_parts.items():
        other = planned_parts[name]
        if _folded(part) != _folded(other):
            differences.append(f"{name} is {part!r} in the table, and would become {other!r}")
    deletes = None if own.deletes == NO_DELETES else own.deletes
    if not _are_same_conditions(deletes, planned.deletes):
        differences.append(
            f"deletes is {deletes!r} in the table, and would become {planned.deletes!r}"
        )
    return differences


def _fixed_parts(spec: TableSpec) -> Mapping[str, Sequence[str] | str]:
    return {
        "keys": [field.name for field in spec.keys],
        "delta": spec.delta.name,
        "tie_break": [field.name for field in spec.tie_break],
        "partition_by": [field.name for field in spec.partition_by],
        "file_format": spec.file_format,
    }


def _folded(part: Sequence[str] | str) -> list[str]:
    names = [part] if isinstance(part, str) else part
    return [name.casefold() for name in names]


def _are_same_conditions(condition: str | None, other: str | None) -> bool:
    if condition is None or other is None:
        return condition == other
    return parse(condition, DELETES) == parse(other, DELETES)


def _staying_columns(own: TableSpec, planned: Schema) -> dict[str, Field]:
    """Return the columns of the table that stay, by their name in lower case."""
    staying: dict[str, Field] = {}
    # Roles and conditions would refuse a change of their columns, and all of them are replaced
    bare = replace(own, deletes=None, properties={}, constraints={}, not_null_ids=())
    for column in planned.fields:
        existing = own.schema.find(column.name)
        if existing is None or not _is_generated_alike(existing, column):
            continue
        if type_name(existing.type) == type_name(column.type):
            staying[column.name.casefold()] = existing
        elif _is_wider(existing, column):
            assert isinstance(column.type, Atomic)
            change = WidenColumn(path_text([existing.name]), atomic_type_name(column.type.name))
            widened = change.applied(bare).schema.field(existing.name)
            staying[column.name.casefold()] = widened
    return staying


def _is_wider(existing: Field, column: Field) -> bool:
    if not isinstance(existing.type, Atomic) or not isinstance(column.type, Atomic):
        return False
    # Not in every table does a date become wider
    before = existing.type.name
    return before != "date" and is_widening(before, column.type.name)


def _is_generated_alike(existing: Field, column: Field) -> bool:
    """Return whether two columns have the same expression, or both have none."""
    if existing.generated is None or column.generated is None:
        return existing.generated == column.generated
    use = use_of_generated(column.name)
    return parse(existing.generated, use) == parse(column.generated, use)


def _refuse_another_role_column(
    own: TableSpec, staying: Mapping[str, Field], planned: Schema
) -> None:
    """Raise AnotherDefinitionError if a column with a role does not stay."""
    for column in (*own.keys, own.delta, *own.tie_break, *own.partition_by):
        if column.name.casefold() in staying:
            continue
        wanted = planned.field(column.name)
        shown = [_shown_column(column), _shown_column(wanted)]
        raise AnotherDefinitionError(
            f"column {column.name!r}, of the keys, the order or the partitions, is {shown[0]} in "
            f"the table, and would become {shown[1]}"
        )


def _shown_column(column: Field) -> str:
    kind = type_name(column.type)
    return kind if column.generated is None else f"{kind} generated as {column.generated!r}"


def _replaced_schema(own: Schema, staying: Mapping[str, Field], planned: Schema) -> Schema:
    """Return the planned columns in their order: those that stay, and new ones."""
    arrow = arrow_schema(planned)
    added_names = [name for name in planned.names if name.casefold() not in staying]
    added: dict[str, Field] = {}
    last_id = own.last_id
    if added_names:
        columns = [arrow.field(name) for name in added_names]
        new, last_id = new_fields(own, columns, own.fields)
        added = {field.name: field for field in new}
    fields: list[Field] = []
    for column in planned.fields:
        base = added.get(column.name) or staying[column.name.casefold()]
        fields.append(
            replace(base, name=column.name, write=column.write, generated=column.generated)
        )
    if tuple(fields) == own.fields:
        return own
    former = _former_names(own, fields)
    return replace(altered(own), fields=tuple(fields), last_id=last_id, former_names=former)


def _former_names(own: Schema, fields: Sequence[Field]) -> tuple[tuple[str, int], ...]:
    """Return the names that dropped columns had, unless a column has the name now."""
    remaining = {field.id for field in fields}
    pairs = {name.casefold(): (name, number) for name, number in own.former_names}
    for column in own.fields:
        if column.id not in remaining:
            pairs[column.name.casefold()] = (column.name, column.id)
    for column in fields:
        pairs.pop(column.name.casefold(), None)
    return tuple(sorted(pairs.values()))
