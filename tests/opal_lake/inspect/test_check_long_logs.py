"""How the work of a check grows with the number of commits: as the number, not as its square."""

import cProfile
import pstats

import pyarrow as pa

from opal_lake.inspect.check import check
from opal_lake.spec.table_spec import TableLayout, plan_spec
from opal_lake.storage.memory import MemoryStorage
from opal_lake.table import Table, create_on

SCHEMA = pa.schema([("id", pa.int64()), ("updated", pa.int64())])
FEW, TIMES = 50, 4


def _table(commits: int) -> Table:
    spec = plan_spec(SCHEMA, TableLayout(keys=["id"], delta="updated"))
    table = create_on(MemoryStorage(), spec)
    for number in range(commits):
        row = pa.table([pa.array([number % 20]), pa.array([number])], schema=SCHEMA)
        table.ingest(row, metadata="inline")
    return table


def _calls(table: Table) -> int:
    """Count the function calls of a check, which do not depend on the machine."""
    profile = cProfile.Profile()
    profile.enable()
    checked = check(table)
    profile.disable()
    assert not checked.findings
    return int(pstats.Stats(profile).total_calls)  # type: ignore[attr-defined]


def test_check_of_four_times_the_commits_takes_less_than_eight_times_the_calls() -> None:
    few, many = _calls(_table(FEW)), _calls(_table(FEW * TIMES))

    assert many < 2 * TIMES * few
