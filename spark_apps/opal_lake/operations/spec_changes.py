"""Set properties, add columns, and alter columns: the changes of a table's definition."""

from collections.abc import Mapping
from dataclasses import field
from typing import TYPE_CHECKING, Annotated, ClassVar

from opal_lake.arguments.declared import declaration
from opal_lake.arguments.values import ByName, ChangeList, Columns, Help, Kind, by_name
from opal_lake.errors import InvalidInputError
from opal_lake.operations.verb import Job
from opal_lake.result import JobResult

if TYPE_CHECKING:
    from opal_lake.definition.changes.toward import WantedColumns
    from opal_lake.engine.open_table import OpenTable


@declaration
class SetProperties(Job):
    """Change properties of the table; None resets one to its default."""

    name: ClassVar[str] = "set_properties"

    properties: ByName = field(kw_only=False)

    def run(self, table: "OpenTable") -> JobResult:
        """Commit the properties that change."""
        from opal_lake.write.spec_change import set_properties

        return set_properties(table.log, self.properties, self.token)


@declaration
class AddColumns(Job):
    """Add columns to the table, for example `{"discount": "double"}`.

    Existing rows have null in the new columns. A type is Spark's name, such as `long`,
    `decimal(10,2)` or `timestamp`, or a type of Arrow or Spark, which may be nested. A column that
    the table already has with the same type changes nothing.
    """

    name: ClassVar[str] = "add_columns"

    columns: ByName = field(kw_only=False)

    def run(self, table: "OpenTable") -> JobResult:
        """Commit the columns that the table lacks."""
        from opal_lake.write.spec_change import add_columns

        return add_columns(table.log, table.executor.column_types(self.columns), self.token)


@declaration
class Alter(Job):
    """Change columns and constraints: add, rename, drop and more, all in one commit.

    Each change is an object such as `{"rename": "a.b", "to": "c"}`. They apply in their order. Only
    metadata changes: no data file is written. A new constraint is checked against the visible and
    the pending rows first.

    Instead of changes, `schema` names the columns that the table should have, as in CREATE TABLE:
    missing ones are added and types widened. `renamed` has former names of columns, such as
    `{"amount": "total", "place.town": "city"}`, and `dropped` names columns that go. A repeat
    changes nothing. The order of columns stays as it is.
    """

    name: ClassVar[str] = "alter"

    changes: Annotated[ChangeList | None, Help("changes, which apply in their order")] = field(
        default=None, kw_only=False
    )
    schema: Annotated[str | None, Help("the columns that the table should have", "SQL")] = None
    renamed: Annotated[
        Mapping[str, str],
        Kind(by_name, "NAME=FORMER"),
        Help("former names of columns and members, by their new paths"),
    ] = field(default_factory=dict)
    dropped: Annotated[Columns, Help("columns and members that the table should not have")] = field(
        default_factory=list
    )

    def __post_init__(self) -> None:
        Job.__post_init__(self)
        if (self.changes is None) == (self.schema is None):
            raise InvalidInputError(
                "alter takes either changes=[{'rename': 'a', 'to': 'b'}] or "
                "schema='id BIGINT, b STRING'; give one of them"
            )
        if self.schema is None and (self.renamed or self.dropped):
            raise InvalidInputError(
                "alter got renamed or dropped without a schema; add schema='id BIGINT, ...', or "
                "write them as changes"
            )

    def run(self, table: "OpenTable") -> JobResult:
        """Commit the changes that have an effect."""
        from opal_lake.definition.changes.apply import changes_of
        from opal_lake.write.spec_change import alter, alter_toward

        if self.schema is None:
            return alter(table, changes_of(self.changes), self.token)
        return alter_toward(table, self._wanted(), self.token)

    def _wanted(self) -> "WantedColumns":
        from opal_lake.definition.changes.toward import WantedColumns
        from opal_lake.definition.sql_schema import arrow_of_sql

        return WantedColumns(
            columns=arrow_of_sql(self.schema or ""), renamed=self.renamed, dropped=self.dropped
        )
