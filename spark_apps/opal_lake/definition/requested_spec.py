"""The definition that a writer requests of a table which may exist already.

A pipeline may request the table as it was created, also after its columns changed: names and types
that columns had stay accepted.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pyarrow as pa

from opal_lake.definition.changes.uses import with_columns
from opal_lake.definition.conditions.faults import DELETES, Use
from opal_lake.definition.conditions.parser import parse
from opal_lake.definition.conditions.printer import text_of
from opal_lake.definition.conditions.tree import Column
from opal_lake.definition.constraints import use_of
from opal_lake.definition.properties import PROPERTIES, column_list, default_of
from opal_lake.definition.schema import (
    Array,
    Atomic,
    DataType,
    Field,
    Map,
    Schema,
    Struct,
    arrow_schema,
    type_name,
)
from opal_lake.definition.table_spec import NO_DELETES, TableLayout, TableSpec, plan_spec
from opal_lake.errors import InvalidInputError


def refuse_another_spec(
    uri: str, made: TableSpec, columns: pa.Schema | None, layout: TableLayout
) -> None:
    """Raise InvalidInputError if an existing table differs from the requested one.

    Without columns, those of the table are accepted. A request may name columns as they were called
    before they were renamed or dropped.
    """
    layout = _with_new_names(layout, made.schema)
    if columns is None:
        columns = arrow_schema(replace(made.schema, fields=made.schema.own_fields))
    else:
        columns = _remaining(columns, made.schema)
    requested = plan_spec(columns, layout)
    differences = spec_differences(made, requested)
    if differences:
        raise InvalidInputError(
            f"{uri} exists already, but {'; '.join(differences)}. "
            "Use the existing definition, or choose another path"
        )


def spec_differences(made: TableSpec, requested: TableSpec) -> list[str]:
    """Return the differences between a table and a requested spec, each as a text.

    Properties are compared if they are requested and are not properties of maintenance. Columns
    that were added later are not compared, so that a writer may request the table as it was
    created. Types may be those from before a change.
    """
    differences: list[str] = []
    requested_roles = _roles(requested)
    for role, own in _roles(made).items():
        other = requested_roles[role]
        if own != other and not (role == "deletes" and _are_same(made.deletes, requested.deletes)):
            differences.append(f"{role} is {own!r}, not {other!r}")
    for name, other in requested.properties.items():
        # `opal set` changes properties of maintenance while pipelines still request the first ones
        if PROPERTIES[name].maintenance:
            continue
        own = made.properties.get(name, default_of(name))
        if own != other:
            differences.append(f"property {name} is {own!r}, not {other!r}")
    differences += _constraint_differences(made, requested)
    return differences + _column_differences(made.schema, requested.schema)


def _constraint_differences(made: TableSpec, requested: TableSpec) -> list[str]:
    """Return the requested constraints that a table lacks.

    Further constraints of the table are not compared: they may be younger than the request.
    """
    own_names = {column.name for column in made.not_null}
    missing = [column.name for column in requested.not_null if column.name not in own_names]
    differences = [f"column {name!r} is not declared NOT NULL" for name in missing]
    for name, wanted in requested.constraints.items():
        own = made.constraints.get(name)
        if own is None:
            differences.append(f"constraint {name!r} is missing")
        elif parse(own, use_of(name)) != parse(wanted, use_of(name)):
            differences.append(f"constraint {name!r} is {own!r}, not {wanted!r}")
    return differences


def _column_differences(made: Schema, requested: Schema) -> list[str]:
    own_types = {column.name: column.type for column in made.fields}
    requested_types = {column.name: column.type for column in requested.fields}
    missing = [name for name in requested_types if name not in own_types]
    differences = [f"column {name!r} is missing" for name in missing]
    created = [column.name for column in made.own_fields if not made.is_added(column)]
    own_only = [name for name in created if name not in requested_types]
    differences += [f"column {name!r} is in the table only" for name in own_only]
    for column in made.fields:
        requested_type = requested_types.get(column.name)
        if requested_type is None or _may_have_been(column, requested_type, made):
            continue
        own_name, requested_name = type_name(column.type), type_name(requested_type)
        differences.append(f"column {column.name!r} is {own_name}, not {requested_name}")
    return differences


def _may_have_been(column: Field, requested: DataType, schema: Schema) -> bool:
    """Return whether a column has the requested type, or had it before a change.

    The schema does not say which members a struct had: each pair of one name has to fit.
    """
    if type_name(column.type) == type_name(requested):
        return True
    if schema.created_id is None:
        return False
    match column.type, requested:
        case Atomic(), Atomic(name=other):
            return other in column.earlier
        case Struct(fields=fields), Struct(fields=others):
            by_name = {other.name: other.type for other in others}
            pairs = [(field, by_name[field.name]) for field in fields if field.name in by_name]
        case Array(element=element), Array(element=other_element):
            pairs = [(element, other_element.type)]
        case Map(key=key, value=value), Map(key=other_key, value=other_value):
            pairs = [(key, other_key.type), (value, other_value.type)]
        case _:
            return False
    return all(_may_have_been(part, kind, schema) for part, kind in pairs)


def _with_new_names(layout: TableLayout, schema: Schema) -> TableLayout:
    """Return a layout that calls renamed columns by the names that they have now."""
    if not schema.former_names:
        return layout
    properties = dict(layout.properties)
    zorder = properties.get("zorder")
    if isinstance(zorder, str):
        properties["zorder"] = ",".join(_new_names(column_list(zorder), schema))
    deletes = layout.deletes
    if deletes is not None:
        deletes = _with_new_columns(deletes, DELETES, schema)
    constraints: dict[str, str] = {}
    for name, text in layout.constraints.items():
        constraints[name] = _with_new_columns(text, use_of(name), schema)
    return replace(
        layout,
        keys=_new_names(layout.keys, schema),
        delta=_new_name(layout.delta, schema),
        tie_break=_new_names(layout.tie_break, schema),
        partition_by=_new_names(layout.partition_by, schema),
        deletes=deletes,
        properties=properties,
        not_null=_new_names(layout.not_null, schema),
        constraints=constraints,
    )


def _with_new_columns(condition: str, use: Use, schema: Schema) -> str:
    def renamed(column: Column) -> Column:
        first, *members = column.path
        return replace(column, path=(_new_name(first, schema), *members))

    tree = parse(condition, use)
    changed = with_columns(tree, renamed)
    return condition if changed == tree else text_of(changed)


def _new_names(names: Sequence[str], schema: Schema) -> Sequence[str]:
    if isinstance(names, str):
        return names  # the caller refuses a text in the place of a list
    return [_new_name(name, schema) for name in names]


def _new_name(name: str, schema: Schema) -> str:
    """Return the name that a renamed column has now; other names stay."""
    field = schema.former(name)
    return name if field is None else field.name


def _remaining(columns: pa.Schema, schema: Schema) -> pa.Schema:
    """Return requested columns under their new names, without those that were dropped."""
    fields: list[pa.Field] = []
    for column in columns:
        field = schema.former(column.name)
        if field is not None:
            fields.append(column.with_name(field.name))
        elif not schema.had(column.name):
            fields.append(column)
    return pa.schema(fields)


def _are_same(condition: str | None, other: str | None) -> bool:
    """Return whether two delete conditions differ in their writing only.

    A statement that deletes rows gives a table without a condition the one that no row meets.
    """
    if condition == NO_DELETES and other is None:
        return True
    if condition is None or other is None:
        return condition == other
    return parse(condition, DELETES) == parse(other, DELETES)


def _roles(spec: TableSpec) -> Mapping[str, object]:
    """Return the parts of a spec that never change but for names, by argument."""
    return {
        "keys": [field.name for field in spec.keys],
        "delta": spec.delta.name if spec.has_keys else None,
        "tie_break": [field.name for field in spec.tie_break],
        "deletes": spec.deletes,
        "partition_by": [field.name for field in spec.partition_by],
        "file_format": spec.file_format,
    }
