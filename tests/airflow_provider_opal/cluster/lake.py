"""A lake, and what a user does with it in Airflow: the UI's buttons go through the same API."""

import json
import shutil
import time
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import psutil

from opal_lake.table import Table
from tests.airflow_provider_opal.guide import write_examples
from tests.demo.shop.local_airflow import LocalAirflow

ROOT = Path(__file__).parents[3]
FOLDERS = (Path(__file__).parent / "lake_dags", ROOT / "dags")
HEADS = ("orders", "orders.copy", "orders.follow", "tell_again", "ticks", "ticks.follow", "burst")
EXAMPLES = (
    "shop_users",
    "shop_report",
    "shop_maintenance",
    "guide_python",
    "guide_python.revenue",
    "guide_yaml",
    "guide_yaml.revenue",
)
DONE = ("success", "failed")


class Lake:
    """The folders that all tests share, and what is in them."""

    def __init__(self, folder: Path) -> None:
        self.source, self.root, self.out, self.dags = (
            folder / "source",
            folder / "lake",
            folder / "out",
            folder / "dags",
        )
        for made in (self.source, self.root, self.out, self.dags):
            made.mkdir()
        for path in (path for folder in FOLDERS for path in folder.iterdir() if path.is_file()):
            shutil.copy(path, self.dags)
        write_examples(
            self.dags,
            {
                "/data/in/orders": str(self.source / "guide"),
                "shop_jobs:": "guide_jobs:",
                "/reports/": f"{self.out}/reports/",
            },
        )

    def put(self, key: str, *rows: tuple[int, int, str, str]) -> None:
        """Write the source of a partition key: rows of (id, at, name, op)."""
        folder = self.source / key
        folder.mkdir(exist_ok=True)
        lines = [
            json.dumps(dict(zip(("id", "at", "name", "op"), row, strict=True))) for row in rows
        ]
        (folder / "rows.json").write_text("\n".join(lines) + "\n")

    def table(self, name: str = "orders", folder: str = "lake") -> Table:
        return Table.open(str(self.root / folder / name))

    def names(self) -> dict[int, str]:
        return {row["id"]: row["name"] for row in self.table().read().to_pylist()}

    def notes(self, consumer: str) -> list[dict[str, Any]]:
        """Return the notes of a consumer's calls, oldest first."""
        rejected = sorted(
            self.out.glob(f"{consumer}-*.json"), key=lambda path: path.stat().st_mtime_ns
        )
        return [json.loads(path.read_text()) for path in rejected]

    def report(self, key: str) -> dict[str, int]:
        """Return the guide's revenue of a day by country; empty until it is written."""
        folder = self.out / "reports" / key
        rows = [
            json.loads(line)
            for path in folder.glob("*.json")
            for line in path.read_text().splitlines()
        ]
        return (
            {row["country"]: row["sum(total)"] for row in rows}
            if (folder / "_SUCCESS").exists()
            else {}
        )

    def expect_no_gap(self, consumer: str, name: str, *, up_to: int | None = None) -> None:
        """Expect the ranges of a consumer by version to follow on from each other.

        They reach the newest version that changed anything.
        """
        ranges = sorted({(note["from"], note["to"]) for note in self.notes(consumer)})
        assert ranges[0][0] == 0
        assert [begin for begin, _ in ranges[1:]] == [end for _, end in ranges[:-1]], ranges
        changed = [commit.version for commit in self.table(name).commits() if commit.changes_view]
        assert ranges[-1][1] == (up_to or changed[0])


def pause(airflow: LocalAirflow, dag_id: str, *, paused: bool) -> None:
    airflow.api("PATCH", f"/dags/{dag_id}", {"is_paused": paused})


def backfill(
    airflow: LocalAirflow, first: str, last: str, dag_id: str = "orders", *more: str
) -> None:
    """Backfill as the guide does, once the scheduler has seen the end of the last one."""

    def is_created() -> bool:
        try:
            airflow.cli(
                "backfill",
                "create",
                "--dag-id",
                dag_id,
                "--from-date",
                first,
                "--to-date",
                last,
                *more,
            )
        except RuntimeError as error:
            if "Another backfill is running" in str(error):
                return False
            raise
        return True

    airflow.wait_until(is_created, 180)


def trigger(airflow: LocalAirflow, dag_id: str, **body: Any) -> str:
    return str(
        airflow.api("POST", f"/dags/{dag_id}/dagRuns", {"logical_date": None, **body})["dag_run_id"]
    )


def keyed(airflow: LocalAirflow, dag_id: str) -> list[tuple[str, str]]:
    """Key and state of a DAG's runs, oldest first."""
    return [
        (run["partition_key"], run["state"]) for run in airflow.runs(dag_id) if run["partition_key"]
    ]


def ended(airflow: LocalAirflow, dag_id: str, run_id: str) -> str:
    """Wait for the end of a run; return its state.

    The logs of failed tasks are printed, for a test that fails because of them.
    """
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
    """Wait until no run of these DAGs is running or queued.

    A cascade needs a moment to start, so nothing may run for 8 seconds.
    """
    quiet: list[float] = []

    def is_quiet() -> bool:
        states = [run["state"] for dag_id in dag_ids for run in airflow.runs(dag_id)]
        quiet[:] = [*quiet, time.monotonic()] if all(state in DONE for state in states) else []
        return bool(quiet) and quiet[-1] - quiet[0] > 8

    airflow.wait_until(is_quiet)


def log_of(airflow: LocalAirflow, dag_id: str, task_id: str, run_id: str = "*") -> str:
    files = (airflow.home / "logs" / f"dag_id={dag_id}").glob(
        f"run_id={run_id}/task_id={task_id}/**/*.log"
    )
    return "\n".join(path.read_text(errors="replace") for path in files)


def drivers_of(operation: str, root: Path) -> list[psutil.Process]:
    """Return the spark-submits of an operation that run now for this lake.

    Other tests may have their own.
    """
    drivers = []
    for process in psutil.process_iter(["cmdline", "environ"]):
        words = process.info["cmdline"] or []
        connection = (process.info["environ"] or {}).get("AIRFLOW_CONN_OPAL_DEFAULT", "")
        is_driver = any("SparkSubmit" in word for word in words)
        if is_driver and _operation_of(words) == operation and str(root) in connection:
            drivers.append(process)
    return drivers


def _operation_of(words: list[str]) -> str | None:
    """Return the operation of the spec that a command line hands over."""
    if "--spec" not in words:
        return None
    return str(json.loads(words[words.index("--spec") + 1])["operation"])


def days(first: int, last: int) -> list[str]:
    return [str(date(2026, 11, 1) + timedelta(days=day - 1)) for day in range(first, last + 1)]


def succeeded(airflow: LocalAirflow, dag_id: str) -> set[str]:
    return {key for key, state in keyed(airflow, dag_id) if state == "success"}
