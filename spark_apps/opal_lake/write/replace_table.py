"""The replacement of a table: another definition and other rows, in one commit.

The table keeps its path, its versions and its tokens. All its rows end, as by an overwrite.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from opal_lake.definition.changes.replaced import replaced_spec
from opal_lake.definition.table_spec import TableSpec
from opal_lake.engine.open_table import OpenTable
from opal_lake.errors import InvalidInputError, count_text
from opal_lake.log.snapshot import Snapshot
from opal_lake.read.region import Region
from opal_lake.read.statement import Clause, StatementPlan, overwrite_clauses
from opal_lake.result import JobResult
from opal_lake.write.spec_change import check_properties_fit
from opal_lake.write.statement_job import StatementRun, run_statement

REPLACE = "replace"


@dataclass(frozen=True, slots=True, kw_only=True)
class NewContent:
    """The definition that a table should have, as of a new table, and its rows.

    Without `rows` the table becomes empty.
    """

    spec: TableSpec
    rows: Any = None


def replace_table(
    table: OpenTable,
    content_on: Callable[[Snapshot], NewContent],
    *,
    token: str | None = None,
    tries: int,
) -> JobResult:
    """Replace definition and rows of a table in one commit.

    `content_on` returns the new content for the state that is replaced; each try asks it again.
    """

    def plan(base: Snapshot) -> StatementPlan:
        _refuse_pending(base)
        content = content_on(base)
        spec = replaced_spec(base.spec, content.spec)
        check_properties_fit(base, spec)
        clauses = overwrite_clauses()
        if content.rows is None:
            clauses = [Clause(when="matched", action="delete")]
        return StatementPlan(
            snapshot=base.read_as(spec),
            cache=table.cache,
            clauses=clauses,
            source=content.rows,
            region=Region(),
        )

    statement = StatementRun(
        operation=REPLACE, plan=plan, token=token, tries=tries, replaces_definition=True
    )
    return run_statement(table, statement)


def _refuse_pending(base: Snapshot) -> None:
    """Raise InvalidInputError for rows that a later MetaGen would add to the new ones."""
    if base.pending:
        rows = sum(base.segments[number].rows for number in base.pending)
        raise InvalidInputError(
            f"{base.storage.uri} has {count_text(rows, 'pending row')}, which would come into the "
            "new table later; run a metagen or a discard first, then replace the table"
        )
