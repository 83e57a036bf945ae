"""The uses of a column: roles, conditions and properties of the table that name it.

A renamed column keeps its uses: stored conditions and properties follow. A used column is not
dropped.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any

from opal_lake.definition.changes.paths import Target, path_text, target_of
from opal_lake.definition.conditions.faults import DELETES, Use
from opal_lake.definition.conditions.parser import parse
from opal_lake.definition.conditions.printer import text_of
from opal_lake.definition.conditions.tree import Column, Node, nodes_of
from opal_lake.definition.constraints import use_of, use_of_generated
from opal_lake.definition.properties import column_list
from opal_lake.definition.schema import Field, Schema
from opal_lake.definition.table_spec import TableSpec
from opal_lake.errors import InvalidInputError

_ZORDER = "zorder"  # the one property that names columns


def uses_of(spec: TableSpec, target: Target) -> Iterator[str]:
    """Yield what needs a column, or a part of one, as a message names it."""
    yield from roles_of(spec, target)
    if spec.deletes is not None and condition_reads(spec.deletes, DELETES, spec.schema, target):
        yield "the delete condition"
    for name, text in spec.constraints.items():
        if condition_reads(text, use_of(name), spec.schema, target):
            yield f"constraint {name!r}"
    for field in spec.schema.fields:
        if field.generated is None:
            continue
        use = use_of_generated(field.name)
        if condition_reads(field.generated, use, spec.schema, target):
            yield f"the generated column {field.name!r}"
    if target.is_top and target.field in _zorder_columns(spec):
        yield "the property 'zorder'"


def roles_of(spec: TableSpec, target: Target) -> Iterator[str]:
    """Yield the roles of a column, such as `the key`."""
    if not target.is_top:
        return
    number = target.field.id
    if number in spec.key_ids:
        yield "the key"
    if number == spec.delta_id:
        yield "the delta"
    if number in spec.tie_break_ids:
        yield "the tie-breaks"
    if number in spec.partition_ids:
        yield "the partitioning"


def condition_reads(text: str, use: Use, schema: Schema, target: Target) -> bool:
    """Return whether a condition reads a column, or a part of one."""
    for node in nodes_of(parse(text, use)):
        if isinstance(node, Column) and target.field in _fields_on(schema, node.path):
            return True
    return False


def with_new_name(spec: TableSpec, target: Target, name: str) -> TableSpec:
    """Return the spec whose conditions and properties call a column by its new name.

    `spec` still has the old name in its schema.
    """
    if spec.deletes is not None:
        text = renamed_condition(spec.deletes, DELETES, spec.schema, target, name)
        spec = replace(spec, deletes=text)
    constraints = {
        constraint: renamed_condition(text, use_of(constraint), spec.schema, target, name)
        for constraint, text in spec.constraints.items()
    }
    fields: list[Field] = []
    for field in spec.schema.fields:
        if field.generated is not None:
            use = use_of_generated(field.name)
            text = renamed_condition(field.generated, use, spec.schema, target, name)
            # Fields that stay as they are stay the same objects, by which targets are found
            field = field if text == field.generated else replace(field, generated=text)
        fields.append(field)
    schema = replace(spec.schema, fields=tuple(fields))
    spec = replace(spec, schema=schema, constraints=constraints)
    if not target.is_top or target.field not in _zorder_columns(spec):
        return spec
    if column_list(name) != [name]:
        raise InvalidInputError(
            f"the property {_ZORDER!r} names column {target.text!r}, and cannot hold the name "
            f"{name!r}; choose one without commas, or set zorder='' before"
        )
    names = [name if field is target.field else field.name for field in _zorder_columns(spec)]
    return replace(spec, properties={**spec.properties, _ZORDER: ",".join(names)})


def renamed_condition(text: str, use: Use, schema: Schema, target: Target, name: str) -> str:
    """Return a condition that calls a column, or a part of one, by its new name.

    Only a condition that reads it is written again.
    """
    if not condition_reads(text, use, schema, target):
        return text

    def renamed(column: Column) -> Column:
        on_path = _fields_on(schema, column.path)
        path = list(column.path)
        for position, field in enumerate(on_path):
            if field is target.field:
                path[position] = name
        return replace(column, path=tuple(path))

    tree = with_columns(parse(text, use), renamed)
    written = text_of(tree)
    # What is stored must mean the same: the printer's text has to be read as the same tree
    if parse(written, use) != tree:
        raise InvalidInputError(
            f"{use.name} {text!r} reads column {target.text!r} and cannot be written with the name "
            f"{name!r}; choose another name"
        )
    return written


def by_ids(text: str, use: Use, schema: Schema) -> Node:
    """Return the tree of a condition, with field ids in place of names.

    Conditions with equal trees mean the same, whatever names the columns have had.
    """

    def numbered(column: Column) -> Column:
        ids = tuple(str(field.id) for field in _fields_on(schema, column.path))
        return replace(column, path=ids)

    return with_columns(parse(text, use), numbered)


def with_columns(node: Node, change: Callable[[Column], Column]) -> Node:
    """Return a tree with changed columns."""
    if isinstance(node, Column):
        return change(node)
    parts: dict[str, Any] = {}
    for member in fields(node):
        value = getattr(node, member.name)
        if is_dataclass(value):
            parts[member.name] = with_columns(value, change)  # type: ignore[arg-type]  # a node
        elif isinstance(value, tuple):
            parts[member.name] = tuple(with_columns(part, change) for part in value)
    return replace(node, **parts)


def _fields_on(schema: Schema, names: Sequence[str]) -> tuple[Field, ...]:
    """Return the fields that the path of a condition leads over."""
    return target_of(schema, path_text(names)).fields


def _zorder_columns(spec: TableSpec) -> list[Field]:
    names = column_list(str(spec.properties.get(_ZORDER, "")))
    return [spec.schema.field(name) for name in names]
