"""The work of a check grows with the number of commits, not with its square."""

import cProfile
import pstats

import pyarrow as pa
import pytest

from opal_lake.definition.table_spec import TableLayout, plan_spec
from opal_lake.inspect.check.check import check
from opal_lake.operations.look import Check
from opal_lake.storage.memory import MemoryStorage
from opal_lake.table import Table, create_on

SCHEMA = pa.schema([("id", pa.int64()), ("updated", pa.int64())])
FEW, TIMES = 200, 4
ROWS, KEYS = 5, 400  # of a commit, of the table


def _table(commits: int) -> Table:
    spec = plan_spec(SCHEMA, TableLayout(keys=["id"], delta="updated"))
    table = create_on(MemoryStorage(), spec)
    for number in range(commits):
        ids = [(7 * number + position) % KEYS for position in range(ROWS)]
        rows = pa.table([pa.array(ids), pa.array([number] * ROWS)], schema=SCHEMA)
        table.ingest(rows, metadata="inline")
    return table


def _calls(table: Table) -> int:
    """Count the function calls of a check, which do not depend on the machine."""
    profile = cProfile.Profile()
    profile.enable()
    checked = check(table, Check())
    profile.disable()
    assert not checked.findings
    return int(pstats.Stats(profile).total_calls)  # type: ignore[attr-defined]


@pytest.mark.slow(25)
def test_the_calls_of_a_check_grow_as_the_commits_do() -> None:
    few_commits = _table(FEW)
    _calls(few_commits)  # the first check imports what all need
    few, many = _calls(few_commits), _calls(_table(FEW * TIMES))

    assert many < 1.2 * TIMES * few
