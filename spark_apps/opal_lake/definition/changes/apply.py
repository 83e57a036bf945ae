"""Lists of changes: read from JSON, and applied to a table's definition in their order."""

from collections import Counter
from collections.abc import Mapping, Sequence

from opal_lake.definition.changes.change import Change
from opal_lake.definition.changes.columns import (
    AddColumn,
    DropColumn,
    MoveColumn,
    RenameColumn,
    WidenColumn,
)
from opal_lake.definition.changes.constraints import (
    AddConstraint,
    DropConstraint,
    DropNotNull,
    SetNotNull,
)
from opal_lake.definition.changes.defaults import DropDefault, SetDefault
from opal_lake.definition.properties import check_properties
from opal_lake.definition.schema import Field, arrow_schema, check_levels
from opal_lake.definition.table_spec import TableSpec, check_role, delete_condition
from opal_lake.errors import InvalidInputError

# All kinds of changes, in the order in which messages list them
KINDS: tuple[type[Change], ...] = (
    AddColumn,
    RenameColumn,
    DropColumn,
    MoveColumn,
    WidenColumn,
    SetNotNull,
    DropNotNull,
    AddConstraint,
    DropConstraint,
    SetDefault,
    DropDefault,
)
MAX_CHANGES = 1_000  # of one list, which one commit makes


def changes_of(values: object) -> list[Change]:
    """Return changes that are given as changes or as JSON objects.

    Raises InvalidInputError for a list that is empty or has something else.
    """
    if not isinstance(values, Sequence) or isinstance(values, str | bytes):
        raise InvalidInputError(
            f"changes={values!r} is not a list of changes; write [{RenameColumn.example}]"
        )
    if not 1 <= len(values) <= MAX_CHANGES:
        raise InvalidInputError(
            f"changes has {len(values):,} changes; give 1 to {MAX_CHANGES:,}, "
            f"for example [{RenameColumn.example}]"
        )
    return [_change_of(value) for value in values]


def _change_of(value: object) -> Change:
    if isinstance(value, Change):
        return value
    if not isinstance(value, Mapping):
        raise InvalidInputError(f"{value!r} is not a change; write {RenameColumn.example}")
    kinds = [kind for kind in KINDS if kind.verb in value]
    if len(kinds) != 1:
        verbs = ", ".join(kind.verb for kind in KINDS)
        raise InvalidInputError(
            f"{dict(value)!r} has {len(kinds)} of the keys {verbs}, and a change has one; "
            f"write for example {RenameColumn.example}"
        )
    return kinds[0].from_json(value)


def changed(spec: TableSpec, changes: Sequence[Change]) -> tuple[TableSpec, list[Change]]:
    """Apply changes in their order; return the spec, and the changes with an effect.

    Raises InvalidInputError for a change that does not fit, and for a result that is not valid.
    """
    effective: list[Change] = []
    fault: InvalidInputError | None = None
    for position, change in enumerate(changes, start=1):
        prefix = f"change {position} of {len(changes)}: " if len(changes) > 1 else ""
        try:
            after = change.applied(spec)
        except InvalidInputError as error:
            raise fault or InvalidInputError(f"{prefix}{error}") from error
        if after == spec:
            continue
        effective.append(change)
        spec = after
        # A later change may mend a fault, such as that of two columns which become wider together
        now = _fault_of(spec)
        if now is None:
            fault = None
        elif fault is None:
            fault = InvalidInputError(f"{prefix}{now}")
    if fault is not None:
        raise fault
    return spec, effective


def _fault_of(spec: TableSpec) -> InvalidInputError | None:
    try:
        check_spec(spec)
    except InvalidInputError as error:
        return error
    return None


def check_spec(spec: TableSpec) -> None:
    """Raise InvalidInputError for a spec whose parts do not fit each other."""
    check_levels(arrow_schema(spec.schema))
    for argument, columns in _columns_of_roles(spec).items():
        check_role(spec.schema, argument, [column.name for column in columns])
    check_properties(spec.properties, spec.schema)
    # Raise if a condition does not fit the columns
    delete_condition(spec)
    _ = spec.checks, spec.generated


def _columns_of_roles(spec: TableSpec) -> dict[str, list[Field]]:
    return {
        "keys": spec.keys,
        "delta": [spec.delta] if spec.has_keys else [],
        "tie_break": spec.tie_break,
        "partition_by": spec.partition_by,
    }


def counts_of(changes: Sequence[Change]) -> dict[str, int]:
    """Return how many changes of each kind there are, as a job's result counts them."""
    return dict(Counter(change.done for change in changes))
