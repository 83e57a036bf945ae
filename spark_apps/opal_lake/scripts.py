"""Scripts and tables: the tables that statements change, and the results in them.

A statement leaves its result in the table that it changes, under its own token. So the result of a
script is found without Spark.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from opal_lake.engine.open_table import OpenTable
from opal_lake.engine.results import result_of_token
from opal_lake.errors import InvalidInputError, NotFoundError
from opal_lake.log.commit_log import CommitLog
from opal_lake.log.snapshot import Snapshot
from opal_lake.operations.sql import Sql
from opal_lake.operations.verb import operations_of
from opal_lake.result import JobResult
from opal_lake.sql.names import Catalog
from opal_lake.sql.script import ScriptStep, changed_uri, read_script
from opal_lake.sql.statements import (
    AlterTable,
    Call,
    CreateTable,
    Delete,
    InsertInto,
    InsertOverwrite,
    InsertReplaceWhere,
    Merge,
    Restore,
    Statement,
    Update,
)
from opal_lake.table import Table

# What the rows of statements are counted as
_ROWS = ("inserted", "updated", "deleted", "rows")
# The first class that matches counts: an InsertOverwrite is an InsertInto
_OPERATIONS: Mapping[type[Statement], tuple[str, ...]] = {
    AlterTable: ("alter", "set_properties"),
    CreateTable: ("create", "insert"),
    Delete: ("delete",),
    InsertOverwrite: ("overwrite",),
    InsertReplaceWhere: ("overwrite",),
    InsertInto: ("ingest",),
    Merge: ("merge",),
    Restore: ("restore",),
    Update: ("update",),
}
OpenByUri = Callable[[str], OpenTable]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepOnTable:
    """A statement of a script, and the Opal table that it changes, or None."""

    step: ScriptStep
    uri: str | None

    @property
    def leaves_result(self) -> bool:
        """Return whether its result is in the table, under the token of the statement."""
        return self.uri is not None and bool(operations_of_step(self.step))

    def example(self, result: JobResult | None) -> dict[str, Any]:
        """Return the statement and its result as an example of the script's result."""
        described: dict[str, Any] = {
            "number": self.step.number,
            "line": self.step.line,
            "statement": self.step.first_line,
        }
        if self.uri is None:
            return described
        described["table"] = self.uri
        if result is not None:
            described |= {
                "operation": result.operation,
                "version": result.version,
                "counts": dict(result.counts),
            }
        return described


def steps_of(job: Sql) -> tuple[StepOnTable, ...]:
    """Return the statements of a script with the tables that they change.

    Raises InvalidInputError if a statement cannot be read, or changes a table that only Spark
    knows.
    """
    catalogs = {name: Catalog(name=name, root=root) for name, root in job.catalogs.items()}
    steps = []
    for step in read_script(job.script):
        try:
            uri = changed_uri(step.statement, job.args, lambda name: catalogs.get(name.lower()))
        except InvalidInputError as error:
            error.add_note(f"It is statement {step.number}, at line {step.line}.")
            raise
        steps.append(StepOnTable(step=step, uri=uri))
    return tuple(steps)


def operations_of_step(step: ScriptStep) -> tuple[str, ...]:
    """Return the operations that a statement may run as.

    Empty for a statement that takes no token.
    """
    statement = step.statement
    if not isinstance(statement, Call):
        kinds = (kind for kind in _OPERATIONS if isinstance(statement, kind))
        return _OPERATIONS.get(next(kinds, Statement), ())
    parts = statement.procedure.parts
    operation = operations_of(Table).get(parts[-1].lower()) if len(parts) == 3 else None
    if operation is None or not operation.token_argument:
        return ()
    return (operation.title,)


def stored_results(
    steps: Sequence[StepOnTable], token: str, open_table: OpenByUri
) -> list[JobResult | None]:
    """Return the results that statements left in their tables, None if it is missing.

    Raises InvalidInputError if another statement had the token.
    """
    heads: dict[str, tuple[CommitLog, Snapshot] | None] = {}
    results: list[JobResult | None] = []
    for on_table in steps:
        uri = on_table.uri
        if uri is None or not on_table.leaves_result:
            results.append(None)
            continue
        if uri not in heads:
            heads[uri] = _head_of(uri, open_table)
        log_and_head = heads[uri]
        if log_and_head is None:
            results.append(None)
            continue
        log, head = log_and_head
        expected = operations_of_step(on_table.step)[0]
        own_token = on_table.step.token_in(token)
        result = result_of_token(log, head, own_token, expected=expected)
        _check_operation(on_table.step, result)
        results.append(result)
    return results


def _check_operation(step: ScriptStep, result: JobResult | None) -> None:
    """Raise InvalidInputError for a result that another statement has left."""
    operations = operations_of_step(step)
    if result is None or result.operation in operations:
        return
    raise InvalidInputError(
        f"statement {step.number} ({step.first_line}) has the token {result.token!r}, which a "
        f"{result.operation} of another script has used; give this script another token"
    )


def _head_of(uri: str, open_table: OpenByUri) -> tuple[CommitLog, Snapshot] | None:
    """Return the log and newest version of a table; None if it does not exist."""
    try:
        table = open_table(uri)
        return table.log, table.log.head()
    except NotFoundError:
        return None


def script_result(
    steps: Sequence[StepOnTable],
    results: Sequence[JobResult | None],
    *,
    uri: str,
    token: str | None,
) -> JobResult:
    """Return the result of a script, with each statement as an example.

    The counts of rows are those of all statements.
    """
    counts = {"statements": len(steps)}
    examples = []
    notes: list[str] = []
    for on_table, result in zip(steps, results, strict=True):
        examples.append(on_table.example(result))
        if result is None:
            continue
        notes += [f"statement {on_table.step.number}: {note}" for note in result.notes]
        if isinstance(on_table.step.statement, Call):
            # Its counts are of files, or of something else
            continue
        for name in _ROWS:
            if name in result.counts:
                counts[name] = counts.get(name, 0) + result.counts[name]
    return JobResult(
        operation=Sql.name,
        table=uri,
        token=token,
        counts=counts,
        notes=notes,
        examples=examples,
    )
