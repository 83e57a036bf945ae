"""Pipelines under a real Airflow: real scheduler, real spark-submit, real backfills; what the UI's buttons do goes through the same API.

The tests share one Airflow and go on from what those before left; each begins by looking at it.
"""

import json
import os
import shutil
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import psutil
import pytest

from airflow_provider_opal.demo.local_airflow import LocalAirflow, local_airflow
from opal_lake.check import check_table
from opal_lake.table import Table
from tests.airflow_provider_opal.readme import write_examples

pytestmark = [pytest.mark.slow, pytest.mark.chained]

ROOT = Path(__file__).parents[2]
FOLDERS = (Path(__file__).parent / "lake_dags", ROOT / "dags")
HEADS = ("orders", "orders.copy", "orders.follow", "tell_again", "ticks", "ticks.follow", "burst")
EXAMPLES = ("shop_users", "shop_report", "shop_upkeep", "readme_python", "readme_python.revenue", "readme_yaml", "readme_yaml.revenue")
DONE = ("success", "failed")


class Lake:
    """The folders that all tests share, and what is in them."""

    def __init__(self, folder: Path) -> None:
        self.source, self.root, self.out, self.dags = folder / "source", folder / "lake", folder / "out", folder / "dags"
        for made in (self.source, self.root, self.out, self.dags):
            made.mkdir()
        for path in (path for folder in FOLDERS for path in folder.iterdir() if path.is_file()):
            shutil.copy(path, self.dags)
        write_examples(
            self.dags, {"s3a://in/orders": str(self.source / "readme"), "shop_jobs:": "readme_jobs:", "/reports/": f"{self.out}/reports/"}
        )

    def put(self, key: str, *rows: tuple[int, int, str, str]) -> None:
        """The source of a partition key: rows of (id, at, name, op)."""
        folder = self.source / key
        folder.mkdir(exist_ok=True)
        lines = [json.dumps(dict(zip(("id", "at", "name", "op"), row, strict=True))) for row in rows]
        (folder / "rows.json").write_text("\n".join(lines) + "\n")

    def table(self, name: str = "orders", folder: str = "lake") -> Table:
        return Table.open(str(self.root / folder / name))

    def names(self) -> dict[int, str]:
        return {row["id"]: row["name"] for row in self.table().read().to_pylist()}

    def notes(self, consumer: str) -> list[dict[str, Any]]:
        """What a consumer's calls wrote down, oldest first."""
        found = sorted(self.out.glob(f"{consumer}-*.json"), key=lambda path: path.stat().st_mtime_ns)
        return [json.loads(path.read_text()) for path in found]

    def expect_no_gap(self, consumer: str, name: str, *, up_to: int | None = None) -> None:
        """The ranges of a consumer by version follow on from each other, and reach the newest version that changed anything."""
        ranges = sorted({(note["from"], note["to"]) for note in self.notes(consumer)})
        assert ranges[0][0] == 0
        assert [begin for begin, _ in ranges[1:]] == [end for _, end in ranges[:-1]], ranges
        changed = [commit.version for commit in self.table(name).history() if commit.changes_view]
        assert ranges[-1][1] == (up_to or changed[0])


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Lake:
    return Lake(tmp_path_factory.mktemp("shop"))


@pytest.fixture(scope="module")
def airflow(tmp_path_factory: pytest.TempPathFactory, lake: Lake) -> Iterator[LocalAirflow]:
    settings = {
        "AIRFLOW_CONN_OPAL_DEFAULT": json.dumps({"conn_type": "opal", "host": str(lake.root)}),
        "AIRFLOW_CONN_SPARK_DEFAULT": json.dumps({"conn_type": "spark", "host": "local[2]"}),
        "AIRFLOW_VAR_LAKE_SOURCE": str(lake.source),
        "AIRFLOW_VAR_LAKE_OUT": str(lake.out),
        "AIRFLOW_VAR_SHOP_SOURCE": str(lake.source / "users"),
        "AIRFLOW__DAG_PROCESSOR__REFRESH_INTERVAL": "5",
        "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "20",
        "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT_DETECTION_INTERVAL": "3",
    }
    with local_airflow(tmp_path_factory.mktemp("airflow"), lake.dags, settings) as airflow:
        airflow.wait_until(lambda: {*HEADS, *EXAMPLES} <= {dag["dag_id"] for dag in airflow.api("GET", "/dags?limit=100")["dags"]})
        assert airflow.api("GET", "/importErrors")["import_errors"] == []
        for dag_id in HEADS:
            pause(airflow, dag_id, paused=False)
        yield airflow


def pause(airflow: LocalAirflow, dag_id: str, *, paused: bool) -> None:
    airflow.api("PATCH", f"/dags/{dag_id}", {"is_paused": paused})


def backfill(airflow: LocalAirflow, first: str, last: str, dag_id: str = "orders") -> None:
    """As README says it."""
    airflow.cli("backfill", "create", "--dag-id", dag_id, "--from-date", first, "--to-date", last)


def trigger(airflow: LocalAirflow, dag_id: str, **body: Any) -> str:
    return str(airflow.api("POST", f"/dags/{dag_id}/dagRuns", {"logical_date": None, **body})["dag_run_id"])


def keyed(airflow: LocalAirflow, dag_id: str) -> list[tuple[str, str]]:
    """Key and state of a DAG's runs, oldest first."""
    return [(run["partition_key"], run["state"]) for run in airflow.runs(dag_id) if run["partition_key"]]


def ended(airflow: LocalAirflow, dag_id: str, run_id: str) -> str:
    """The state that a run ends in. Why it failed is printed, for a test that fails of it."""
    state: list[str] = []

    def is_over() -> bool:
        state[:] = [run["state"] for run in airflow.runs(dag_id) if run["dag_run_id"] == run_id]
        return bool(state) and state[0] in DONE

    airflow.wait_until(is_over)
    for task in airflow.tasks(dag_id, run_id) if state[0] == "failed" else []:
        print(dag_id, run_id, task["task_id"], task["state"])
        if task["state"] == "failed":
            print(log_of(airflow, dag_id, task["task_id"], run_id)[-4000:])
    return state[0]


def settle(airflow: LocalAirflow, *dag_ids: str) -> None:
    """Until nothing of these DAGs runs or waits any more; a cascade needs a moment to begin."""
    quiet: list[float] = []

    def is_quiet() -> bool:
        states = [run["state"] for dag_id in dag_ids for run in airflow.runs(dag_id)]
        quiet[:] = [*quiet, time.monotonic()] if all(state in DONE for state in states) else []
        return bool(quiet) and quiet[-1] - quiet[0] > 8

    airflow.wait_until(is_quiet)


def log_of(airflow: LocalAirflow, dag_id: str, task_id: str, run_id: str = "*") -> str:
    files = (airflow.home / "logs" / f"dag_id={dag_id}").glob(f"run_id={run_id}/task_id={task_id}/**/*.log")
    return "\n".join(path.read_text(errors="replace") for path in files)


def clear(airflow: LocalAirflow, key: str) -> None:
    """As README says it."""
    before = [task["try_number"] for task in of_key(airflow, key)]
    airflow.cli("dags", "clear", "orders", "--partition-key", key, "--yes")
    airflow.wait_until(lambda: sum(task["try_number"] for task in of_key(airflow, key)) >= sum(before) + 2)
    airflow.wait_until(lambda: dict(keyed(airflow, "orders"))[key] == "success")


def of_key(airflow: LocalAirflow, key: str) -> list[dict[str, Any]]:
    run = next(run for run in airflow.runs("orders") if run["partition_key"] == key)
    return airflow.tasks("orders", run["dag_run_id"])


def days(first: int, last: int) -> list[str]:
    return [str(date(2026, 11, 1) + timedelta(days=day - 1)) for day in range(first, last + 1)]


def test_a_backfill_cascades_to_the_consumers_one_run_a_key(airflow: LocalAirflow, lake: Lake) -> None:
    lake.put("2026-11-01", (1, 1, "Ann", "I"), (2, 1, "Bob", "I"))
    lake.put("2026-11-02", (1, 2, "Anna", "U"), (3, 2, "Cid", "I"))
    lake.put("2026-11-03", (2, 3, "Bob", "D"))
    backfill(airflow, "2026-11-01", "2026-11-03")
    airflow.wait_until(lambda: keyed(airflow, "orders") == [(key, "success") for key in days(1, 3)])
    airflow.wait_until(lambda: sorted(keyed(airflow, "orders.copy")) == [(key, "success") for key in days(1, 3)])
    settle(airflow, *HEADS)
    assert lake.names() == {1: "Anna", 3: "Cid"}
    assert {note["key"]: note["rows"] for note in lake.notes("copy")}["2026-11-02"] == [[1, "Anna"], [3, "Cid"]]
    lake.expect_no_gap("follow-orders", "orders")


def test_a_keyless_run_of_a_keyed_dag_fails_with_a_hint(airflow: LocalAirflow, lake: Lake) -> None:
    head = lake.table().snapshot_at().version
    run_id = trigger(airflow, "orders")
    assert ended(airflow, "orders", run_id) == "failed"
    assert "airflow dags clear DAG_ID --partition-key KEY" in log_of(airflow, "orders", "ingest")
    assert lake.table().snapshot_at().version == head


def test_a_clear_really_runs_again_and_takes_up_what_was_corrected(airflow: LocalAirflow, lake: Lake) -> None:
    names, head = lake.names(), lake.table().snapshot_at().version
    clear(airflow, "2026-11-02")
    assert lake.names() == names
    assert lake.table().snapshot_at().version == head + 2
    lake.put("2026-11-02", (1, 2, "Hannah", "U"), (3, 2, "Cid", "I"))
    clear(airflow, "2026-11-02")
    assert lake.names() == {1: "Hannah", 3: "Cid"}
    settle(airflow, *HEADS)
    last = [note for note in lake.notes("copy") if note["key"] == "2026-11-02"][-1]
    assert last["rows"] == [[1, "Hannah"], [3, "Cid"]]


def test_a_reprocess_and_a_run_by_hand_with_a_key_are_runs_like_any_other(airflow: LocalAirflow, lake: Lake) -> None:
    names, head = lake.names(), lake.table().snapshot_at().version
    again = ("--from-date", "2026-11-03", "--to-date", "2026-11-03", "--reprocess-behavior", "completed")
    airflow.cli("backfill", "create", "--dag-id", "orders", *again)
    airflow.wait_until(lambda: lake.table().snapshot_at().version == head + 2)
    airflow.wait_until(lambda: dict(keyed(airflow, "orders"))["2026-11-03"] == "success")
    assert lake.names() == names
    lake.put("2026-11-08", (8, 8, "Hal", "I"))
    assert ended(airflow, "orders", trigger(airflow, "orders", partition_key="2026-11-08")) == "success"
    airflow.wait_until(lambda: dict(keyed(airflow, "orders.copy")).get("2026-11-08") == "success")
    assert lake.names() == {**names, 8: "Hal"}


def test_a_worker_killed_in_a_metagen_is_followed_by_a_retry_that_applies_once(airflow: LocalAirflow, lake: Lake) -> None:
    lake.put("2026-11-04", (4, 4, "Dora", "I"))
    versions = lake.table().snapshot_at().version
    backfill(airflow, "2026-11-04", "2026-11-04")
    drivers: list[psutil.Process] = []

    def is_submitted() -> bool:
        drivers[:] = drivers_of("metagen", lake)
        return bool(drivers)

    airflow.wait_until(is_submitted, pause_s=0.1)
    driver = drivers[0]
    time.sleep(1)  # well within its start
    for worker in driver.parents()[:2]:  # the process of the task, and the executor's worker that watches it
        os.kill(worker.pid, signal.SIGKILL)
    assert driver.is_running(), "the kill of a worker reached its Spark driver; the test shows nothing"
    airflow.wait_until(lambda: dict(keyed(airflow, "orders")).get("2026-11-04") == "success")
    metagen = next(task for task in of_key(airflow, "2026-11-04") if task["task_id"] == "metagen")
    assert metagen["try_number"] == 2
    told = airflow.result("orders", metagen["dag_run_id"], "metagen")
    settle(airflow, *HEADS)
    assert not drivers_of("metagen", lake)
    assert lake.table().snapshot_at().version == versions + 2, "the MetaGen was applied more than once"
    assert told["version"] == versions + 2
    assert lake.names() == {1: "Hannah", 3: "Cid", 4: "Dora", 8: "Hal"}


def drivers_of(operation: str, lake: Lake) -> list[psutil.Process]:
    """The spark-submits of an operation that run now for this lake; other tests may have their own."""
    found = []
    for process in psutil.process_iter(["cmdline", "environ"]):
        words, connection = process.info["cmdline"] or [], (process.info["environ"] or {}).get("AIRFLOW_CONN_OPAL_DEFAULT", "")
        is_driver = any(word.endswith(f"apps/{operation}.py") for word in words) and any("SparkSubmit" in word for word in words)
        if is_driver and str(lake.root) in connection:
            found.append(process)
    return found


def test_a_consumer_that_was_paused_gets_every_version_and_every_key_later(airflow: LocalAirflow, lake: Lake) -> None:
    seen = len(lake.notes("copy"))
    for dag_id in ("orders.copy", "orders.follow"):
        pause(airflow, dag_id, paused=True)
    lake.put("2026-11-05", (5, 5, "Eve", "I"))
    lake.put("2026-11-06", (6, 6, "Fay", "I"))
    backfill(airflow, "2026-11-05", "2026-11-06")
    airflow.wait_until(lambda: [dict(keyed(airflow, "orders")).get(key) for key in days(5, 6)] == ["success"] * 2)
    for dag_id in ("orders.copy", "orders.follow"):
        pause(airflow, dag_id, paused=False)
    settle(airflow, "orders.copy", "orders.follow")
    assert len(lake.notes("copy")) == seen, "Airflow kept the events of a paused DAG: README and the reconcile DAG say that it drops them"
    run_id = trigger(airflow, "tell_again")
    assert ended(airflow, "tell_again", run_id) == "success"
    airflow.wait_until(lambda: {"2026-11-05", "2026-11-06"} <= {note["key"] for note in lake.notes("copy")})
    settle(airflow, *HEADS)
    assert len(lake.notes("copy")) == seen + 2
    lake.expect_no_gap("follow-orders", "orders")
    run_id = trigger(airflow, "tell_again")
    assert ended(airflow, "tell_again", run_id) == "success"
    assert {task["state"] for task in airflow.tasks("tell_again", run_id)} == {"skipped"}


def test_a_scheduler_that_dies_in_the_middle_of_a_cascade_is_no_loss(airflow: LocalAirflow, lake: Lake) -> None:
    lake.put("2026-11-07", (7, 7, "Gus", "I"))
    backfill(airflow, "2026-11-07", "2026-11-07")
    airflow.wait_until(lambda: [task["state"] for task in of_key(airflow, "2026-11-07") if task["task_id"] == "ingest"] == ["success"])
    scheduler = airflow.processes.pop("scheduler")
    orphans = psutil.Process(scheduler.pid).children(recursive=True)
    os.kill(scheduler.pid, signal.SIGKILL)
    scheduler.wait()
    airflow.start("scheduler")
    airflow.wait_until(lambda: dict(keyed(airflow, "orders.copy")).get("2026-11-07") == "success")
    settle(airflow, *HEADS)
    for orphan in orphans:
        with suppress(psutil.NoSuchProcess):
            orphan.kill()
    assert lake.names()[7] == "Gus"
    lake.expect_no_gap("follow-orders", "orders")


def test_a_burst_of_commits_reaches_a_consumer_that_runs_one_at_a_time_without_a_gap(airflow: LocalAirflow, lake: Lake) -> None:
    (lake.source / "ticks").mkdir()
    (lake.source / "ticks" / "first.json").write_text('{"id": 1, "at": 1}\n')
    assert ended(airflow, "ticks", trigger(airflow, "ticks")) == "success"
    assert ended(airflow, "burst", trigger(airflow, "burst")) == "success"
    settle(airflow, "ticks.follow")
    lake.expect_no_gap("follow-ticks", "ticks")
    ids = [number for note in lake.notes("follow-ticks") for number in note["ids"]]
    assert sorted(ids) == [1, *range(100, 120)]


def test_a_broken_yaml_file_is_an_import_error_of_its_own_until_it_is_mended(airflow: LocalAirflow, lake: Lake) -> None:
    good = (lake.dags / "readme.opal.yaml").read_text()
    broken = lake.dags / "broken.opal.yaml"
    broken.write_text(good.replace("readme_yaml", "broken_one").replace("keys:", "key:"))

    def errors() -> list[tuple[str, str]]:
        return [(error["filename"], error["stack_trace"]) for error in airflow.api("GET", "/importErrors")["import_errors"]]

    airflow.wait_until(lambda: [name for name, _ in errors()] == ["broken.opal.yaml"])
    [(_, said)] = errors()
    assert "broken.opal.yaml:7:" in said
    assert "did you mean 'keys'?" in said
    assert not [dag["dag_id"] for dag in airflow.api("GET", "/dags?limit=100&exclude_stale=false")["dags"] if dag["is_stale"]]
    broken.write_text(good.replace("readme_yaml", "broken_one").replace("readme.yaml", "readme.other"))
    airflow.wait_until(lambda: errors() == [] and airflow.api("GET", "/dags/broken_one")["is_paused"])


def test_the_examples_run(airflow: LocalAirflow, lake: Lake) -> None:
    """dags/shop.py, and README's pipeline in Python and in YAML; `make demo` runs dags/shop.opal.yaml."""
    users, orders = lake.source / "users", lake.source / "readme" / "2026-11-02"
    users.mkdir()
    orders.mkdir(parents=True)
    (users / "a.json").write_text('{"id": 1, "at": 1, "name": "Ann", "op": "I"}\n')
    (orders / "a.json").write_text('{"order_id": 1, "updated_at": 1, "country": "NL", "total": 5, "op": "I"}\n')
    for dag_id in ("shop_users", "shop_report", "readme_python.revenue", "readme_yaml.revenue"):
        pause(airflow, dag_id, paused=False)
    assert ended(airflow, "shop_users", trigger(airflow, "shop_users")) == "success"
    for name in ("readme_python", "readme_yaml"):
        backfill(airflow, "2026-11-02", "2026-11-02", name)
        pause(airflow, name, paused=False)
    airflow.wait_until(lambda: [run["state"] for run in airflow.runs("shop_report")] == ["success"])
    for dag_id in ("shop_upkeep", "readme_python.maintenance"):
        pause(airflow, dag_id, paused=False)
        airflow.wait_until(lambda dag_id=dag_id: [run["state"] for run in airflow.runs(dag_id)] == ["success"])
    for name in ("readme_python", "readme_yaml"):
        airflow.wait_until(lambda name=name: keyed(airflow, f"{name}.revenue") == [("2026-11-02", "success")])
        assert [row["country"] for row in lake.table(name.removeprefix("readme_"), "readme").read().to_pylist()] == ["NL"]
    reports = [json.loads(path.read_text()) for path in (lake.out / "reports" / "2026-11-02").glob("*.json")]
    assert {"country": "NL", "sum(total)": 5} in reports


def test_what_all_this_left_is_sound(lake: Lake) -> None:
    for place in lake.root.glob("*/*"):
        assert check_table(Table.open(str(place))) == []
