"""Each operation on a table, declared once: its arguments with their types, defaults and checks. Airflow imports it to parse a DAG file.

The command line, the apps and the YAML models follow from a declaration. The methods of `Table` and `OpalTable`, and the operators, repeat
its arguments in their signatures; the tests compare them.

`table` has create, ingest, bootstrap, restore, set_properties and add_columns, `rows` what reads rows or rules on them, `folder` what needs
no table, `upkeep` the rest.
"""

from typing import TYPE_CHECKING

from opal_lake.errors import InvalidInputError

if TYPE_CHECKING:
    from opal_lake.job.operations.declared import Operation

NAMES = (
    "create", "ingest", "metagen", "discard",
    "read", "changes", "consume", "check", "rebuild_key_store", "bootstrap", "compact", "zorder", "retain",
    "maintain", "set_properties", "add_columns", "restore", "mutate",
)  # fmt: skip


def operation_named(name: object) -> "type[Operation]":
    """The declaration of an operation."""
    from opal_lake.job.operations import folder, rows, table, upkeep

    known: tuple[type[Operation], ...] = (
        *table.OPERATIONS,
        *rows.OPERATIONS,
        *upkeep.OPERATIONS,
        *folder.OPERATIONS,
    )
    operation = next((declared for declared in known if declared.name == name), None)
    if operation is None:
        raise InvalidInputError(f"operation {name!r} is unknown; use one of {', '.join(NAMES)}")
    return operation
