"""The same table with this process as its engine, to compare with Spark."""

from typing import Any

from opal_lake.table import Table


def arrow_of(table: Table[Any]) -> Table:
    """Return a table whose rows come as Arrow."""
    return Table(log=table.log, cache=table.cache)
