"""SqlOperator in a real Airflow on a real Spark: a killed worker, a failure and a clear."""

import json
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pyarrow as pa
import pytest

from opal_lake.table import Table
from tests.airflow_provider_opal.cluster.lake import drivers_of, ended, log_of, pause, trigger
from tests.demo.shop.local_airflow import LocalAirflow, local_airflow
from tests.kit.check import check_table

pytestmark = pytest.mark.slow

SCHEMA = pa.schema([("id", pa.int64()), ("at", pa.int64()), ("amount", pa.int32())])


class Lake:
    """The tables of the scripts."""

    def __init__(self, root: Path) -> None:
        self.root = root
        ids = [1, 2, 3]
        rows = {"id": ids, "at": ids, "amount": [3, 6, 9]}
        for name in ("stock", "moves", "other"):
            table = Table.create(str(root / "shop" / name), SCHEMA, keys=["id"], delta="at")
            if name != "moves":
                table.ingest(pa.table(rows, schema=SCHEMA), metadata="inline")

    def table(self, name: str) -> Table:
        return Table.open(str(self.root / "shop" / name))

    def amounts(self, name: str) -> dict[int, int]:
        return {row["id"]: row["amount"] for row in self.table(name).read().to_pylist()}

    def commits(self, name: str) -> list[str]:
        """Return the operations of the commits by scripts, oldest first."""
        commits = [commit for commit in self.table(name).commits() if commit.token is not None]
        return [commit.operation for commit in reversed(commits)]


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Lake:
    return Lake(tmp_path_factory.mktemp("lake"))


@pytest.fixture(scope="module")
def airflow(tmp_path_factory: pytest.TempPathFactory, lake: Lake) -> Iterator[LocalAirflow]:
    dags = tmp_path_factory.mktemp("dags")
    shutil.copytree(Path(__file__).parent / "sql_dags", dags, dirs_exist_ok=True)
    settings = {
        "AIRFLOW_CONN_OPAL_DEFAULT": json.dumps({"conn_type": "opal", "host": str(lake.root)}),
        "AIRFLOW_CONN_SPARK_DEFAULT": json.dumps({"conn_type": "spark", "host": "local[2]"}),
        "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "15",
        "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT_DETECTION_INTERVAL": "3",
    }
    names = {"correct", "broken", "hears"}
    with local_airflow(tmp_path_factory.mktemp("airflow"), dags, settings) as airflow:
        airflow.wait_until(
            lambda: names <= {dag["dag_id"] for dag in airflow.api("GET", "/dags")["dags"]}
        )
        assert airflow.api("GET", "/importErrors")["import_errors"] == []
        for name in names:
            pause(airflow, name, paused=False)
        yield airflow


def test_a_script_whose_worker_is_killed_goes_on_with_the_next_statement(
    airflow: LocalAirflow, lake: Lake
) -> None:
    run_id = trigger(airflow, "correct")
    airflow.wait_until(lambda: lake.commits("moves") == ["ingest"], pause_s=0.3)
    drivers: list[psutil.Process] = drivers_of("sql", lake.root)
    # The process of the task, and the executor's worker that watches it
    for worker in drivers[0].parents()[:2]:
        os.kill(worker.pid, signal.SIGKILL)
    assert drivers[0].is_running()
    assert ended(airflow, "correct", run_id) == "success"
    assert not drivers_of("sql", lake.root)
    [task] = airflow.tasks("correct", run_id)
    assert task["try_number"] == 2
    assert lake.commits("stock") == ["update", "update", "delete"]
    assert lake.commits("moves") == ["ingest"]
    assert lake.amounts("moves") == {1: 8, 2: 11}
    assert lake.amounts("stock") == {1: 16, 2: 22}
    result = airflow.result("correct", run_id, "correct")
    assert result["counts"] == {
        "statements": 5,
        "updated": 6,
        "inserted": 0,
        "deleted": 1,
        "rows": 2,
    }
    shown = [statement.get("operation") for statement in result["statements"]]
    assert shown == ["update", "ingest", None, "update", "delete"]
    for name in ("stock", "moves"):
        assert [*check_table(lake.table(name))] == []
    airflow.wait_until(lambda: airflow.runs("hears") != [])
    log = log_of(airflow, "correct", "correct", run_id)
    assert "awake" in log
    assert "statement 5 of 5, line 10: DELETE FROM lake.shop.stock WHERE amount > 5 * 5" in log


def test_a_statement_that_fails_is_named_and_a_clear_runs_all_statements_again(
    airflow: LocalAirflow, lake: Lake
) -> None:
    run_id = trigger(airflow, "broken")
    for tries in (1, 2):
        # A failure that a retry cannot mend uses one try
        assert ended(airflow, "broken", run_id) == "failed"
        [task] = airflow.tasks("broken", run_id)
        assert task["try_number"] == tries
        assert lake.commits("other") == ["update"] * tries
        body = {"dag_run_id": run_id, "dry_run": False, "only_failed": False}
        if tries == 1:
            airflow.api("POST", "/dags/broken/clearTaskInstances", body)
            airflow.wait_until(lambda: len(lake.commits("other")) == 2)
    assert lake.amounts("other") == {1: 5, 2: 8, 3: 11}
    log = log_of(airflow, "broken", "broken", run_id)
    assert "It is statement 2 of 2, at line 3: DELETE FROM lake.shop.none" in log
    assert "The one before it ran, and what it changed stays." in log
