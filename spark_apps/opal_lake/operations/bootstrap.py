"""Bootstrap: create a table with the rows of an existing one of another format."""

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, ClassVar

from opal_lake.arguments.declared import declaration, given_fields
from opal_lake.arguments.values import Help, MegaBytes, OnBadRows, one_of
from opal_lake.errors import InvalidInputError, NotFoundError, TableExistsError
from opal_lake.operations.create import BUILT_IN_DELTA, NewTable
from opal_lake.operations.ingest import Ingest
from opal_lake.operations.verb import Job
from opal_lake.result import JobResult
from opal_lake.source import BATCH_MB, SOURCE_TABLE_FORMATS

if TYPE_CHECKING:
    import pyarrow as pa

    from opal_lake.definition.table_spec import TableLayout
    from opal_lake.engine.open_table import OpenTable
    from opal_lake.engine.place import Place


@declaration
class Bootstrap(NewTable, Job):
    """Copy a folder of files, a Delta table or an Iceberg table into a new table.

    After a failure the same call continues where the last one ended.
    """

    name: ClassVar[str] = "bootstrap"
    needs_table: ClassVar[bool] = False

    schema: Annotated[
        str | None, Help("the columns as in CREATE TABLE (default: those of the source)", "SQL")
    ] = None
    source: str
    format: Annotated[str, one_of(*SOURCE_TABLE_FORMATS), Help("the format of the source")]
    source_version: Annotated[
        int | None, Help("a version of Delta, or an Iceberg snapshot id (default: the newest)")
    ] = None
    batch_mb: Annotated[MegaBytes, Help("megabytes that each commit ingests")] = BATCH_MB
    on_bad_rows: OnBadRows = "fail"

    def run(self, target: "Place") -> JobResult:  # type: ignore[override]  # it may have no table
        """Create the table if it does not exist, and ingest the rows that it lacks."""
        columns = None if self.schema is None else target.sql_columns(self.schema)
        return self.with_columns(columns, target)

    def with_columns(self, columns: "pa.Schema | None", target: "Place") -> JobResult:
        """Run with columns of Arrow instead of SQL; None stands for the source's columns."""
        from opal_lake.definition.requested_spec import refuse_another_spec
        from opal_lake.definition.table_spec import TableLayout
        from opal_lake.write.bootstrap import refuse_overlap, source_table
        from opal_lake.write.bootstrap_job import bootstrap

        if self.delta == BUILT_IN_DELTA:
            raise InvalidInputError(
                f"a bootstrap needs a delta column of the source, and {BUILT_IN_DELTA!r} is built "
                "in; name a column, or create the table and upsert the rows"
            )
        source = source_table(self.source, self.format, self.source_version)
        refuse_overlap(source, target.uri)
        layout = TableLayout(**given_fields(TableLayout, vars(self)))
        reader = target.source_reader(source, columns, self.batch_mb << 20)
        plan = None
        try:
            table = target.open()
        except NotFoundError:
            plan = reader.plan()
            new_columns = reader.columns(plan) if columns is None else columns
            table = _created(target, new_columns, layout)
        refuse_another_spec(table.uri, table.snapshot_at().spec, columns, layout)
        ingest = Ingest(source, on_bad_rows=self.on_bad_rows)
        result = bootstrap(table, reader, ingest, plan)
        # Its ingests have no token: the table's record of the source makes repeats harmless
        return replace(result, token=self.token)


def _created(target: "Place", columns: "pa.Schema", layout: "TableLayout") -> "OpenTable":
    """Return a new table, or the one that another job created at the same time."""
    try:
        return target.create(columns, layout)
    except TableExistsError:
        return target.open()
