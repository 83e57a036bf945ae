"""Create: a new, empty table."""

from collections.abc import Mapping
from dataclasses import field
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from opal_lake.arguments.declared import Declared, declaration
from opal_lake.arguments.values import (
    Columns,
    FileFormat,
    Help,
    Properties,
)
from opal_lake.errors import InvalidInputError, NotFoundError, TableExistsError
from opal_lake.operations.verb import Job
from opal_lake.result import JobResult
from opal_lake.source import source_from_json

if TYPE_CHECKING:
    import pyarrow as pa

    from opal_lake.definition.table_spec import TableLayout, TableSpec
    from opal_lake.engine.place import Place

COLUMN_ROLES = ("keys", "delta", "tie_break", "partition_by")  # what a column may be for a table


@declaration
class NewTable(Declared):
    """What a table is made with.

    A row that meets the condition `deletes` deletes its key. `schema` is as in CREATE TABLE.
    """

    name: ClassVar[str] = "create"

    keys: Annotated[Columns, Help("the columns of the primary key")]
    delta: Annotated[
        str, Help("when the change happened at the source; the latest one wins", "COLUMN")
    ]
    deletes: Annotated[str | None, Help("rows that fulfil it delete their key", "CONDITION")] = None
    tie_break: Annotated[Columns, Help("decides among equal deltas; repeat for more")] = field(
        default_factory=list
    )
    partition_by: Annotated[Columns, Help("repeat for more")] = field(default_factory=list)
    file_format: Annotated[FileFormat, Help("of the data files")] = "parquet"
    schema: Annotated[str | None, Help("the columns as in CREATE TABLE", "SQL")] = None
    properties: Annotated[Properties, Help("properties of the table, as segment_rows")] = field(
        default_factory=dict
    )


@declaration
class Create(NewTable, Job):
    """Create a table with the columns of an SQL schema, or with those of a file.

    `if_absent` accepts an equal table that exists.
    """

    needs_table: ClassVar[bool] = False

    like: Mapping[str, Any] | None = None
    if_absent: Annotated[bool, Help("no error if the same table is there already")] = False

    def run(self, place: "Place") -> JobResult:  # type: ignore[override]  # there is no table yet
        """Create the table, or find that it is there as it should be."""
        layout = self._layout
        existing = self._existing(place, layout)
        if existing is not None:
            return existing
        columns = self._columns(place)
        try:
            table = place.create(columns, layout)
        except TableExistsError:
            existing = self._existing(place, layout)  # another job made it meanwhile
            if existing is None:
                raise
            return existing
        return JobResult(operation=self.name, table=table.uri, version=0, token=self.token)

    def _existing(self, place: "Place", layout: "TableLayout") -> JobResult | None:
        """Return the result for a table that is there already and may be.

        Without a schema its own columns are as good as any.
        """
        from opal_lake.definition.table_spec import refuse_another_spec

        if not self.if_absent:
            return None
        try:
            table = place.open()
        except NotFoundError:
            return None
        columns = None if self.schema is None else place.sql_columns(self.schema)
        refuse_another_spec(place.uri, table.snapshot_at().spec, columns, layout)
        return JobResult(operation=self.name, table=table.uri, version=0, repeated=True)

    @property
    def _layout(self) -> "TableLayout":
        from opal_lake.arguments.declared import given_fields
        from opal_lake.definition.table_spec import TableLayout

        return TableLayout(**given_fields(TableLayout, vars(self)))

    def check_existing(self, uri: str, spec: "TableSpec") -> None:
        """Raise InvalidInputError if an existing table was made otherwise.

        With a schema only the job can compare them.
        """
        from opal_lake.definition.table_spec import refuse_another_spec

        if self.schema is None:
            refuse_another_spec(uri, spec, None, self._layout)

    def check_conditions(self) -> None:
        """Raise InvalidInputError if the delete condition is not one of the language."""
        from opal_lake.definition.conditions.faults import DELETES
        from opal_lake.definition.conditions.parser import parse

        if self.deletes is not None:
            parse(self.deletes, DELETES)

    def _columns(self, place: "Place") -> "pa.Schema":
        if self.schema is not None and self.like is not None:
            raise InvalidInputError(
                "create is given its columns twice, as schema= and as like=; leave out one of them"
            )
        if self.like is not None:
            return place.source_columns(source_from_json(self.like), self.delta)
        if self.schema is None:
            raise InvalidInputError(
                "create is given no columns; give schema='id BIGINT, at TIMESTAMP', or like={'files': ...}"
            )
        return place.sql_columns(self.schema)
