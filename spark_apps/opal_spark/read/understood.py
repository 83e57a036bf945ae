"""Conditions in Spark's language that mean the same in the language of conditions.

They prune files: bounds of files answer them before Spark reads a row.
"""

from typing import Any

from opal_lake.definition.conditions.condition import Condition
from opal_lake.definition.conditions.faults import WHERE
from opal_lake.definition.conditions.nodes import (
    Apply,
    Compute,
    Constant,
    Matches,
    Read,
    Widen,
    all_of,
)
from opal_lake.definition.table_spec import TableSpec
from opal_lake.errors import InvalidInputError
from opal_lake.read.statement import SidedColumns, condition_of

# Types whose literals and comparisons mean the same in both languages. Times are not among them:
# Spark reads a time without a zone in the session's zone
_ALIKE = ("boolean", "byte", "short", "integer", "long", "decimal", "string", "date")
# Spark has escapes in texts, texts in double quotes, and replaces ${name} by a setting
_OF_SPARK = ("\\", '"', "${")


def understood(where: Any, spec: TableSpec, target: str) -> Condition | None:
    """Return a condition on a table's rows; None if it may mean something else here.

    `target` is the name by which the text calls the table.
    """
    condition = compared(where, spec, target)
    for node in all_of(condition.typed) if condition is not None else ():
        if isinstance(node, Read | Constant | Widen) and node.kind.name not in _ALIKE:
            return None
    return condition


def compared(where: Any, spec: TableSpec, target: str) -> Condition | None:
    """Return a condition that only compares columns and literals, otherwise None.

    In Spark it raises for no row, unless it raises for each.
    """
    if not isinstance(where, str) or any(part in where for part in _OF_SPARK):
        return None
    sides = {target: spec.schema.fields}
    try:
        condition = condition_of(where, SidedColumns.of(sides, WHERE))
    except InvalidInputError:
        # A text of Spark's language, which is wider, or one that Spark refuses
        return None
    if any(isinstance(node, Apply | Compute | Matches) for node in all_of(condition.typed)):
        return None
    return condition
