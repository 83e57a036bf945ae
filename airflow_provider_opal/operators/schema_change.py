"""SchemaChangeOperator: columns and constraints of a table change."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import AirflowException, AirflowFailException

from airflow_provider_opal.operators.ingest import CreateTable, create_arguments
from airflow_provider_opal.operators.whole_table import WholeTableOperator
from airflow_provider_opal.secrets import mask
from opal_lake.exit_codes import FINAL, exit_code
from opal_lake.operations.spec_changes import Alter

if TYPE_CHECKING:
    from airflow.sdk import Context

    from opal_lake.table import Table


class SchemaChangeOperator(WholeTableOperator):
    """A task that changes the columns and constraints of a table, all in one commit.

    With `schema` the table gets the columns that it lacks, and wider types; `renamed` has former
    names (`{"amount": "total"}`), and `dropped` names columns that go. A repeat changes nothing, so
    the task may stand in front of each ingest. `create` makes the table, with these columns, if it
    does not exist.

    `changes` is a list such as `[{"rename": "total", "to": "amount"}]`. It applies once in a DAG
    run, and again in each other run: trigger such a DAG by hand.

    Only metadata changes, so the task needs no Spark. New constraints are an exception: a Spark job
    checks the rows of the table.
    """

    declared = Alter
    template_fields: Sequence[str] = ("create", *WholeTableOperator.template_fields)

    def __init__(
        self,
        *,
        table: str,
        create: CreateTable | Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(table=table, **kwargs)
        self.create = None if create is None else create_arguments(create)
        if self.create is not None and self.arguments.get("schema") is None:
            raise ValueError(
                "create= needs schema=, which names the columns of the new table: add it"
            )

    def execute(  # type: ignore[override]  # as the parent's
        self, context: "Context"
    ) -> dict[str, Any]:
        """Commit the changes in this process, unless rows have to be checked."""
        self.check_key(context)
        spec = self.job(context)
        mask(self.opal.lake.spark_conf().items())
        try:
            if _checks_rows(spec.job.changes):
                return super().execute(context)
            result = spec.job.run(self._table())
        except AirflowException:
            raise
        except Exception as error:
            if exit_code(error) in FINAL:
                raise AirflowFailException(str(error)) from error  # a retry would not help
            raise
        return self.finish(context, result)

    def _table(self) -> "Table":
        """Open the table, which `create` makes first if it does not exist."""
        from opal_lake.definition.sql_schema import arrow_of_sql
        from opal_lake.errors import NotFoundError, TableExistsError
        from opal_lake.table import Table

        try:
            return self.opal.table(self.table)
        except NotFoundError as error:
            if self.create is None:
                raise AirflowFailException(
                    f"the table {self.table!r} does not exist; add "
                    "create=CreateTable(keys=['id'], delta='updated_at'), or ingest first"
                ) from error
        lake = self.opal.lake
        uri = lake.uri(self.table)
        columns = arrow_of_sql(self.arguments["schema"])
        try:
            return Table.create(uri, columns, options=lake.options_for(uri), **self.create)
        except TableExistsError:
            # Another job created the table meanwhile
            return self.opal.table(self.table)


def _checks_rows(changes: Sequence[Mapping[str, Any]] | None) -> bool:
    """Return whether rows of the table have to meet new conditions."""
    from opal_lake.definition.changes.apply import changes_of

    return changes is not None and any(change.checks_rows for change in changes_of(changes))
