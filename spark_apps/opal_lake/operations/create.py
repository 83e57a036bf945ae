"""Create: a new, empty table."""

from collections.abc import Mapping
from dataclasses import field
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from opal_lake.arguments.declared import Declared, declaration
from opal_lake.arguments.values import (
    Columns,
    FileFormat,
    Help,
    Kind,
    Properties,
    by_name,
)
from opal_lake.errors import InvalidInputError, NotFoundError, TableExistsError
from opal_lake.operations.verb import Job
from opal_lake.result import JobResult
from opal_lake.source import source_from_json

if TYPE_CHECKING:
    import pyarrow as pa

    from opal_lake.definition.table_spec import TableLayout, TableSpec
    from opal_lake.engine.place import Place

# The built-in delta column, as in `opal_lake.definition.schema`, whose import is slow
BUILT_IN_DELTA = "_commit"
# Arguments that name columns
COLUMN_ROLES = ("keys", "delta", "tie_break", "partition_by", "not_null")


@declaration
class NewTable(Declared):
    """The definition of a new table.

    A row that meets the condition `deletes` deletes its key. `schema` is written as in CREATE
    TABLE. With `delta="_commit"` the table has a built-in delta column, which each job fills with
    its time: the last job to commit wins. `constraints` are conditions by their names, such as
    `{"positive": "amount > 0"}`. `generated` are expressions by the names of their columns, such as
    `{"day": "date(at)"}`.
    """

    name: ClassVar[str] = "create"

    keys: Annotated[Columns, Help("the columns of the primary key")]
    delta: Annotated[
        str,
        Help(
            "the column with the time of a change at the source; the latest wins; _commit: the "
            "table orders rows by the time of their jobs",
            "COLUMN",
        ),
    ]
    deletes: Annotated[
        str | None, Help("a condition; a row that meets it deletes its key", "CONDITION")
    ] = None
    tie_break: Annotated[
        Columns, Help("a column that decides among equal deltas; repeat for more")
    ] = field(default_factory=list)
    partition_by: Annotated[Columns, Help("a column to partition by; repeat for more")] = field(
        default_factory=list
    )
    file_format: Annotated[FileFormat, Help("the format of the data files")] = "parquet"
    schema: Annotated[str | None, Help("the columns as in CREATE TABLE", "SQL")] = None
    properties: Annotated[Properties, Help("properties of the table, such as segment_rows")] = (
        field(default_factory=dict)
    )
    not_null: Annotated[
        Columns, Help("a column in which no row has a null, but for deletes; repeat for more")
    ] = field(default_factory=list)
    constraints: Annotated[
        Mapping[str, str],
        Kind(by_name, "NAME=CONDITION"),
        Help("a CHECK: no row may make the condition false; repeat for more", flag="constraint"),
    ] = field(default_factory=dict)
    generated: Annotated[
        Mapping[str, str],
        Kind(by_name, "COLUMN=EXPRESSION"),
        Help("a column whose value is an expression over other columns; repeat for more"),
    ] = field(default_factory=dict)


@declaration
class Create(NewTable, Job):
    """Create a table with the columns of an SQL schema, or with those of a file.

    `if_absent` accepts an existing table with the same definition.
    """

    needs_table: ClassVar[bool] = False

    like: Mapping[str, Any] | None = None
    if_absent: Annotated[bool, Help("accept an existing table with the same definition")] = False

    def run(self, target: "Place") -> JobResult:  # type: ignore[override]  # no table exists yet
        """Create the table, or accept the existing one."""
        layout = self._layout
        existing = self._existing(target, layout)
        if existing is not None:
            return existing
        columns = self._columns(target)
        try:
            table = target.create(columns, layout)
        except TableExistsError:
            # Another job created the table meanwhile
            existing = self._existing(target, layout)
            if existing is None:
                raise
            return existing
        return JobResult(operation=self.name, table=table.uri, version=0, token=self.token)

    def _existing(self, target: "Place", layout: "TableLayout") -> JobResult | None:
        """Return the result for an existing table; None if the table has to be created.

        Only `if_absent` accepts an existing table. Its columns are compared if a schema is given.
        """
        from opal_lake.definition.requested_spec import refuse_another_spec

        if not self.if_absent:
            return None
        try:
            table = target.open()
        except NotFoundError:
            return None
        columns = None if self.schema is None else target.sql_columns(self.schema)
        refuse_another_spec(target.uri, table.snapshot_at().spec, columns, layout)
        return JobResult(operation=self.name, table=table.uri, version=0, repeated=True)

    @property
    def _layout(self) -> "TableLayout":
        from opal_lake.arguments.declared import given_fields
        from opal_lake.definition.table_spec import TableLayout

        return TableLayout(**given_fields(TableLayout, vars(self)))

    def check_existing(self, uri: str, spec: "TableSpec") -> None:
        """Raise InvalidInputError if an existing table has another definition.

        With a schema nothing is checked here: only the job can parse all of SQL's types.
        """
        from opal_lake.definition.requested_spec import refuse_another_spec

        if self.schema is None:
            refuse_another_spec(uri, spec, None, self._layout)

    def check_conditions(self) -> None:
        """Raise InvalidInputError if a condition of the table cannot be parsed."""
        from opal_lake.definition.conditions.faults import DELETES
        from opal_lake.definition.conditions.parser import parse
        from opal_lake.definition.constraints import plan_constraints, use_of_generated

        if self.deletes is not None:
            parse(self.deletes, DELETES)
        plan_constraints(self.constraints)
        for name, text in self.generated.items():
            parse(text, use_of_generated(name))

    def _columns(self, target: "Place") -> "pa.Schema":
        if self.schema is not None and self.like is not None:
            raise InvalidInputError(
                "create got columns both from schema= and from like=; leave out one of them"
            )
        if self.like is not None:
            return target.source_columns(source_from_json(self.like), self.delta)
        if self.schema is None:
            raise InvalidInputError(
                "create got no columns; give schema='id BIGINT, at TIMESTAMP', "
                "or like={'files': ...}"
            )
        return target.sql_columns(self.schema)
