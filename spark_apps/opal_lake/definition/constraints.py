"""Constraints: NOT NULL columns, CHECK conditions, and the uses of expressions in a definition.

They hold for rows that do not delete their key: of a delete, often only key and delta are known.
Parsing of DAG files loads this module, so it does not load Arrow.
"""

import re
from collections.abc import Mapping

from opal_lake.definition.conditions.faults import Use, quote
from opal_lake.definition.conditions.parser import parse
from opal_lake.definition.conditions.tree import MAX_CHARACTERS
from opal_lake.errors import InvalidInputError

MAX_CONSTRAINTS = 100  # of a table: each one is evaluated for every row
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,99}\Z")


def use_of(name: str) -> Use:
    """Return the use of a constraint's condition, with its name for messages."""
    return Use(
        name=f"constraint {name!r}",
        instead="compute it as a column of the source before the ingest, and name the column",
        max_characters=MAX_CHARACTERS,
    )


def use_of_generated(name: str) -> Use:
    """Return the use of a generated column's expression, with its name for messages."""
    return Use(
        name=f"generated column {name!r}",
        instead="compute it as a column of the source before the ingest",
        max_characters=MAX_CHARACTERS,
    )


def plan_constraints(constraints: Mapping[str, str]) -> dict[str, str]:
    """Return constraints in the order of their names.

    Raises InvalidInputError for a name or a text that no table can hold. Texts are not bound to
    columns yet.
    """
    if len(constraints) > MAX_CONSTRAINTS:
        raise InvalidInputError(
            f"a table has at most {MAX_CONSTRAINTS} constraints, got {len(constraints)}; join some "
            "of them by AND"
        )
    seen: dict[str, str] = {}
    for name, text in constraints.items():
        check_constraint(name, text)
        other = seen.setdefault(name.casefold(), name)
        if other != name:
            raise InvalidInputError(
                f"constraints {other!r} and {name!r} differ in case only; rename one"
            )
    return dict(sorted(constraints.items()))


def check_constraint(name: object, text: object) -> None:
    """Raise InvalidInputError for a name or a text that no constraint can have."""
    if not isinstance(name, str) or not _NAME.match(name):
        raise InvalidInputError(
            f"{name!r} cannot name a constraint; write a letter or `_`, then at most 99 letters, "
            "digits and `_`"
        )
    if not isinstance(text, str):
        raise InvalidInputError(
            f"constraint {name!r} is {text!r}; write a condition such as 'amount > 0'"
        )
    parse(text, use_of(name))


def null_reason(column: str) -> str:
    """Return why a row with a null in a NOT NULL column is bad."""
    return f"column {column!r} is null, but it is declared NOT NULL"


def false_reason(name: str, text: str) -> str:
    """Return why a row that makes a constraint false is bad."""
    return f"constraint {name!r} is violated: {quote(text)[1:-1]}"
