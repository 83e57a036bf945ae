"""Set properties, add columns, and alter columns: the changes of a table's definition."""

from dataclasses import field
from typing import TYPE_CHECKING, ClassVar

from opal_lake.arguments.declared import declaration
from opal_lake.arguments.values import ByName, ChangeList
from opal_lake.operations.verb import Job
from opal_lake.result import JobResult

if TYPE_CHECKING:
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
    """

    name: ClassVar[str] = "alter"

    changes: ChangeList = field(kw_only=False)

    def run(self, table: "OpenTable") -> JobResult:
        """Commit the changes that have an effect."""
        from opal_lake.definition.changes.apply import changes_of
        from opal_lake.write.spec_change import alter

        return alter(table, changes_of(self.changes), self.token)
