"""Whatever a table is due for, on Spark."""

from collections.abc import Mapping
from typing import Any

from opal_lake.job import JobResult
from opal_lake.maintenance import Runner, policy_of, run_maintenance
from opal_lake.results import run_once
from opal_lake.table import Table


def maintain(table: Table, given: Mapping[str, Any], runner: Runner, token: str | None, **choice: bool) -> JobResult:
    """Do what is due by the table's properties, or by what is given instead of them; `choice`: dry_run, delete."""
    policy = policy_of(table.snapshot_at().spec, given)
    return run_once(
        table.log, "maintain", None if choice.get("dry_run") else token, lambda: run_maintenance(table, policy, runner, **choice)
    )
