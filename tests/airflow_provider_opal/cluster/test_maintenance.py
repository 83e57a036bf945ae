"""Maintenance under a real Airflow, next to a pipeline that runs on.

What is due is done, and what is deleted has been approved through the API.

The tests share one Airflow and go on from what those before left.
"""

import json
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from opal_lake.clock import ManualClock
from opal_lake.definition.table_spec import TableLayout, plan_spec
from opal_lake.table import Table, create_on
from tests.airflow_provider_opal.cluster.lake import backfill, ended, keyed, pause, trigger
from tests.demo.shop.local_airflow import LocalAirflow, local_airflow
from tests.kit.check import check_table
from tests.kit.clocks import past_store
from tests.opal_lake.compacting import compact

pytestmark = [pytest.mark.slow, pytest.mark.chained]

HERE = Path(__file__).parent
DAGS = ("orders", "orders.maintenance", "grouped", "grouped.orders.maintenance")
OVER = ("success", "failed", "upstream_failed", "skipped")
DAY_US = 86_400_000_000
COLUMNS = pa.schema(
    [("id", pa.int64()), ("at", pa.int64()), ("name", pa.string()), ("op", pa.string())]
)


class Lake:
    """The folders that all tests share."""

    def __init__(self, folder: Path) -> None:
        self.source, self.root, self.out, self.dags = (
            folder / "source",
            folder / "lake",
            folder / "out",
            folder / "dags",
        )
        for made in (self.source, self.root, self.out):
            made.mkdir()
        shutil.copytree(HERE / "tended_dags", self.dags)
        shutil.copy(HERE / "lake_dags" / "lake_jobs.py", self.dags)

    def put(self, folder: str, *rows: tuple[int, int, str, str]) -> None:
        (self.source / folder).mkdir(exist_ok=True)
        lines = [json.dumps(dict(zip(COLUMNS.names, row, strict=True))) for row in rows]
        (self.source / folder / f"{rows[0][1]}.json").write_text("\n".join(lines) + "\n")

    def table(self, name: str = "orders") -> Table:
        return Table.open(str(self.root / "lake" / name))

    def names(self, name: str = "orders") -> dict[int, str]:
        return {row["id"]: row["name"] for row in self.table(name).read().to_pylist()}

    def data_files(self, name: str = "orders") -> set[str]:
        return {str(path) for path in (self.root / "lake" / name / "data").rglob("*.parquet")}

    def write_of_old(self) -> None:
        """Write a table that is ten days old, whose small files were merged nine days ago."""
        clock = ManualClock(at_us=time.time_ns() // 1000 - 10 * DAY_US)
        layout = TableLayout(keys=["id"], delta="at", deletes="op = 'D'")
        table = create_on(
            past_store(str(self.root / "lake" / "orders"), clock), plan_spec(COLUMNS, layout), clock
        )
        for number in range(4):
            rows = {
                "id": [number, 10],
                "at": [number, number],
                "name": [f"old {number}", "often"],
                "op": ["I", "U"],
            }
            table.ingest(pa.table(rows, schema=COLUMNS), [False, False])
            table.metagen()
        clock.at_us += DAY_US
        compact(table)


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Lake:
    made = Lake(tmp_path_factory.mktemp("shop"))
    made.write_of_old()
    return made


@pytest.fixture(scope="module")
def airflow(tmp_path_factory: pytest.TempPathFactory, lake: Lake) -> Iterator[LocalAirflow]:
    settings = {
        "AIRFLOW_CONN_OPAL_DEFAULT": json.dumps({"conn_type": "opal", "host": str(lake.root)}),
        "AIRFLOW_CONN_SPARK_DEFAULT": json.dumps({"conn_type": "spark", "host": "local[2]"}),
        "AIRFLOW_VAR_LAKE_SOURCE": str(lake.source),
        "AIRFLOW_VAR_LAKE_OUT": str(lake.out),
    }
    with local_airflow(tmp_path_factory.mktemp("airflow"), lake.dags, settings) as airflow:
        airflow.wait_until(
            lambda: (
                set(DAGS)
                <= {dag["dag_id"] for dag in airflow.api("GET", "/dags?limit=100")["dags"]}
            )
        )
        assert airflow.api("GET", "/importErrors")["import_errors"] == []
        for dag_id in DAGS:
            pause(airflow, dag_id, paused=False)
        yield airflow


def states(airflow: LocalAirflow, dag_id: str, run_id: str) -> dict[str, str]:
    return {task["task_id"]: task["state"] for task in airflow.tasks(dag_id, run_id)}


def question(run_id: str) -> str:
    return f"/dags/orders.maintenance/dagRuns/{run_id}/taskInstances/approve/-1/hitlDetails"


def asked(airflow: LocalAirflow) -> str:
    """Trigger a run; return its id once it waits for a human.

    It may be answered once the scheduler has seen the end of the process that asked. Were the task
    queued again before that, Airflow would take it for one that was killed; the LocalExecutor knows
    both by the same key.
    """
    run_id = trigger(airflow, "orders.maintenance")
    airflow.wait_until(
        lambda: (
            states(airflow, "orders.maintenance", run_id)["approve"] in ("awaiting_input", *OVER)
        )
    )
    assert states(airflow, "orders.maintenance", run_id)["approve"] == "awaiting_input"
    seen = re.compile(rf"Received executor event .*task_id='approve', run_id='{re.escape(run_id)}'")
    airflow.wait_until(lambda: bool(seen.search((airflow.home / "scheduler.log").read_text())))
    return run_id


def answer(airflow: LocalAirflow, run_id: str, option: str) -> str:
    airflow.api("PATCH", question(run_id), {"chosen_options": [option]})
    return ended(airflow, "orders.maintenance", run_id)


def test_an_approval_lists_what_would_be_deleted_blocks_no_pipeline_and_reject_deletes_nothing(
    airflow: LocalAirflow, lake: Lake
) -> None:
    lake.put("2026-11-01", (1, 101, "Ann", "I"), (20, 101, "Bob", "I"))
    backfill(airflow, "2026-11-01", "2026-11-01")
    airflow.wait_until(lambda: keyed(airflow, "orders") == [("2026-11-01", "success")])
    names = lake.names()
    assert names == {0: "old 0", 1: "Ann", 2: "old 2", 3: "old 3", 10: "often", 20: "Bob"}
    run_id = asked(airflow)
    maintained = airflow.result("orders.maintenance", run_id, "maintain")
    assert maintained["counts"]["due"] == 2, maintained
    assert [note.partition(" is due")[0] for note in maintained["notes"][:2]] == [
        "compact",
        "zorder",
    ]
    files = lake.data_files()
    would_go = airflow.result("orders.maintenance", run_id, "would_go")
    body = airflow.api("GET", question(run_id))["body"]
    assert f"- versions: {would_go['counts']['versions']}" in body
    assert f"| `{would_go['examples'][0]['path']}` |" in body
    assert [
        path
        for path in files
        if any(path.endswith(example["path"]) for example in would_go["examples"])
    ]
    lake.put("2026-11-02", (20, 102, "Bobby", "U"))
    backfill(airflow, "2026-11-02", "2026-11-02")
    airflow.wait_until(lambda: dict(keyed(airflow, "orders")).get("2026-11-02") == "success")
    assert len(list(lake.out.glob("copy-*.json"))) == 2
    assert lake.data_files() > files
    assert answer(airflow, run_id, "Reject") == "success"
    assert states(airflow, "orders.maintenance", run_id)["retain"] == "skipped"
    assert lake.data_files() > files
    assert lake.names() == {**names, 20: "Bobby"}


def test_approved_files_are_deleted_and_the_rows_stay_the_same(
    airflow: LocalAirflow, lake: Lake
) -> None:
    names, oldest, files = (
        lake.names(),
        lake.table().snapshot_at().root.oldest_version,
        lake.data_files(),
    )
    run_id = asked(airflow)
    assert answer(airflow, run_id, "Approve") == "success"
    assert states(airflow, "orders.maintenance", run_id)["retain"] == "success"
    retained = airflow.result("orders.maintenance", run_id, "retain")
    assert (
        retained["counts"]["versions"]
        == airflow.result("orders.maintenance", run_id, "would_go")["counts"]["versions"]
    )
    assert lake.table().snapshot_at().root.oldest_version > oldest
    assert files - lake.data_files()
    assert lake.names() == names


def test_with_nothing_to_delete_nobody_is_asked(airflow: LocalAirflow) -> None:
    run_id = trigger(airflow, "orders.maintenance")
    assert ended(airflow, "orders.maintenance", run_id) == "success"
    assert states(airflow, "orders.maintenance", run_id) | {
        "maintain": "success",
        "would_go": "success",
    } == {
        "maintain": "success",
        "would_go": "success",
        "approve": "skipped",
        "retain": "skipped",
    }


def test_the_table_of_a_task_group_is_maintained_by_a_dag_of_its_own_once_it_exists(
    airflow: LocalAirflow, lake: Lake
) -> None:
    dag_id = "grouped.orders.maintenance"
    run_id = trigger(airflow, dag_id)
    assert ended(airflow, dag_id, run_id) == "success"
    assert states(airflow, dag_id, run_id) == {"maintain": "skipped"}
    for at in (1, 2):
        lake.put("others", *((number, at, f"name {number % 3}", "I") for number in range(6)))
        assert ended(airflow, "grouped", trigger(airflow, "grouped")) == "success"
    run_id = trigger(airflow, dag_id)
    assert ended(airflow, dag_id, run_id) == "success"
    assert airflow.result(dag_id, run_id, "maintain")["counts"]["due"] >= 1
    assert lake.names("others") == {number: f"name {number % 3}" for number in range(6)}


def test_opal_check_finds_nothing_after_all_runs(lake: Lake) -> None:
    for path in lake.root.glob("*/*"):
        assert check_table(Table.open(str(path))) == []
