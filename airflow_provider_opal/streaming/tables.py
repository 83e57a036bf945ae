"""The creation of a stream's table, without Spark."""

from typing import TYPE_CHECKING

from airflow_provider_opal.hooks.opal import OpalHook

if TYPE_CHECKING:
    from opal_lake.operations.create import NewTable


def make_table(opal: OpalHook, name: str, new: "NewTable") -> bool:
    """Create a table if it is missing; return whether this call created it.

    Raises InvalidInputError, with the differences, for an existing table of another spec.
    """
    from opal_lake.arguments.declared import given_fields
    from opal_lake.definition.requested_spec import refuse_another_spec
    from opal_lake.definition.sql_schema import arrow_of_sql
    from opal_lake.definition.table_spec import TableLayout, plan_spec
    from opal_lake.errors import NotFoundError, TableExistsError
    from opal_lake.storage import open_storage
    from opal_lake.table import create_on

    uri = opal.lake.uri(name)
    columns = arrow_of_sql(new.schema or "")
    layout = TableLayout(**given_fields(TableLayout, vars(new)))
    try:
        table = opal.table(name)
    except NotFoundError:
        try:
            create_on(open_storage(uri, opal.lake.options_for(uri)), plan_spec(columns, layout))
        except TableExistsError:  # another process created it at this moment
            table = opal.table(name)
        else:
            return True
    refuse_another_spec(uri, table.snapshot_at().spec, columns, layout)
    return False
