"""Each operation on a table, declared once: its arguments and its steps.

The declaration makes the method of `Table`, the flags of the command line, the fields of a JobSpec,
the operator and the YAML model. Airflow imports these modules to parse a DAG file. So they import
the code that does the work only when an operation runs.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from opal_lake.errors import InvalidInputError

if TYPE_CHECKING:
    from opal_lake.operations.verb import Job

# Operations that a JobSpec can name: the module of each, and its declaration
_DECLARED = {
    "create": ("create", "Create"),
    "ingest": ("ingest", "IngestSource"),
    "metagen": ("metagen", "MetaGen"),
    "discard": ("discard", "Discard"),
    "read": ("read", "ShowRows"),
    "changes": ("read", "ShowChanges"),
    "consume": ("consume", "Consume"),
    "check": ("look", "Check"),
    "rebuild_key_store": ("rebuild_key_store", "RebuildKeyStore"),
    "bootstrap": ("bootstrap", "Bootstrap"),
    "compact": ("compact", "Compact"),
    "zorder": ("zorder", "ZOrder"),
    "retain": ("retain", "Retain"),
    "erase": ("erase", "Erase"),
    "maintain": ("maintain", "Maintain"),
    "set_properties": ("spec_changes", "SetProperties"),
    "add_columns": ("spec_changes", "AddColumns"),
    "alter": ("spec_changes", "Alter"),
    "restore": ("restore", "Restore"),
    "mutate": ("mutate", "Mutate"),
    "sql": ("sql", "Sql"),
}
NAMES = tuple(_DECLARED)


def operation_named(name: object) -> "type[Job]":
    """Return the declaration of an operation; raise InvalidInputError if unknown."""
    known = _DECLARED.get(name) if isinstance(name, str) else None
    if known is None:
        raise InvalidInputError(f"operation {name!r} is unknown; use one of {', '.join(NAMES)}")
    module, declared = known
    operation: Any = getattr(import_module(f"opal_lake.operations.{module}"), declared)
    return operation  # type: ignore[no-any-return]  # each of them is a Job
