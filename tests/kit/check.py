"""The check of a table, as most tests end with it."""

from typing import Any

from opal_lake.engine.open_table import OpenTable
from opal_lake.inspect.check.check import CheckedList
from opal_lake.operations.look import Check


def check_table(table: OpenTable, **asked: Any) -> CheckedList:
    """Return what is wrong with a table, by the arguments of `Table.check`."""
    return Check(**asked).run(table)
