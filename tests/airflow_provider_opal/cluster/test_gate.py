"""A check between ingest and MetaGen under a real scheduler.

No version shows, and no event reports, a key whose check has not passed.

Three pipelines share one Airflow: days in order, in reverse, and eight at once. Spark does the
jobs of the first one.
"""

import json
import os
import shutil
import sys
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from lakechime import LakeChime
from lakechime.producers.opal import sync_opal
from opal_lake.table import Table
from tests.airflow_provider_opal.cluster.lake import (
    DONE,
    ROOT,
    backfill,
    days,
    ended,
    keyed,
    log_of,
    pause,
    settle,
    succeeded,
    trigger,
)
from tests.airflow_provider_opal.jobs import BAD, create_table
from tests.demo.shop.local_airflow import LocalAirflow, local_airflow
from tests.kit.check import check_table

pytestmark = pytest.mark.slow

STORIES = {
    "in_order": ("--max-active-runs", "1"),
    "in_reverse": ("--max-active-runs", "1", "--run-backwards"),
    "at_once": ("--max-active-runs", "8"),
}
DAGS = [f"{name}{part}" for name in STORIES for part in ("", ".report", ".follow", ".reconcile")]
NEWEST = 99
SUBMIT = f"""#!/bin/sh
cd '{ROOT}' && exec '{sys.executable}' -m tests.airflow_provider_opal.jobs "$@"
"""


class Story:
    """One pipeline: its source, and what became of it."""

    def __init__(self, folder: Path, airflow: LocalAirflow, name: str) -> None:
        self.folder, self.airflow, self.name = folder, airflow, name
        self.table = Table.open(str(folder / "lake" / "shop" / name))

    def put(self, day: str, *, is_bad: bool) -> None:
        """Write the source of a day.

        If it is bad, its row of the key `shared` would replace all others.
        """
        at = int(day[-2:])
        rows = [(f"only {day}", at), ("shared", NEWEST if is_bad else at)]
        if is_bad:
            rows.append((BAD, at))
        folder = self.folder / "source" / self.name / day
        folder.mkdir(parents=True, exist_ok=True)
        lines = [json.dumps({"id": key, "at": time, "day": day}) for key, time in rows]
        (folder / "rows.json").write_text("\n".join(lines) + "\n")

    def content(self, version: int | None = None) -> dict[str, str]:
        return {row["id"]: row["day"] for row in self.table.read(version).to_pylist()}

    def reports(self) -> dict[str, list[str]]:
        """Return the ids in the report of each day."""
        prefix = f"{self.name}.report-"
        return {
            path.stem.removeprefix(prefix): json.loads(path.read_text())
            for path in (self.folder / "out").glob(f"{prefix}*.json")
        }

    def followed(self) -> list[dict[str, Any]]:
        """Return the ranges of versions that the sensor gave, in their order."""
        notes = (self.folder / "out").glob(f"{self.name}.follow-*.json")
        return sorted((json.loads(path.read_text()) for path in notes), key=lambda note: note["to"])

    def expect_followed(self) -> None:
        """All versions were given, without a gap."""
        changed = [commit.version for commit in self.table.commits() if commit.changes_view]
        self.airflow.wait_until(
            lambda: bool(self.followed()) and self.followed()[-1]["to"] == changed[0]
        )
        notes = self.followed()
        assert [note["from"] for note in notes] == [0, *(note["to"] for note in notes[:-1])]

    def run_of(self, day: str) -> dict[str, Any]:
        [run] = [run for run in self.airflow.runs(self.name) if run["partition_key"] == day]
        return run

    def passed(self) -> dict[str, datetime]:
        """Return when the check of each day passed, for the days whose check did."""
        passed = {}
        for run in self.airflow.runs(self.name):
            [check] = [
                task
                for task in self.airflow.tasks(self.name, run["dag_run_id"])
                if task["task_id"] == "check"
            ]
            if check["state"] == "success":
                passed[run["partition_key"]] = datetime.fromisoformat(check["end_date"])
        return passed

    def expect_nothing_unchecked(self, passed: dict[str, datetime]) -> None:
        """Expect each version to show only days whose check passed before its commit."""
        versions = [*self.table.commits()]
        assert min(commit.version for commit in versions) == 0
        for commit in versions:
            for key, day in self.content(commit.version).items():
                assert key != BAD, commit.version
                assert day in passed, (commit.version, key, day)
                assert passed[day].timestamp() <= commit.timestamp_us / 1e6, (commit.version, day)

    def reconcile(self) -> tuple[set[str], set[str]]:
        """Return the keys that a reconcile emits again.

        The first set is for the consumer, the second for one that never acknowledged any.
        """
        dag_id = f"{self.name}.reconcile"
        run_id = trigger(self.airflow, dag_id)
        ended(self.airflow, dag_id, run_id)
        states = {task["task_id"]: task["state"] for task in self.airflow.tasks(dag_id, run_id)}
        emitted = []
        for consumer in (f"{self.name}.report", f"{self.name}.nobody"):
            assert states[consumer] in ("success", "skipped"), log_of(
                self.airflow, dag_id, consumer
            )
            is_emitted = states[consumer] == "success"
            result = self.airflow.result(dag_id, run_id, consumer) if is_emitted else {}
            emitted.append({*result})
        return emitted[0], emitted[1]

    def registered(self) -> set[str]:
        """Return the days of which LakeChime has an event."""
        with LakeChime.open(f"sqlite:///{self.airflow.home}/lakechime.db") as chime:
            sync_opal(chime, self.table, f"shop.{self.name}")  # of a commit that found it busy
            events = [stored.event for stored in chime.events([f"shop.{self.name}"]).events]
        return {str(event.partition[0]) for event in events if event.partition}

    def clear(self, day: str) -> None:
        """Clear the ingest of a day with its downstream tasks, as in the UI."""
        asked = {
            "dry_run": False,
            "dag_run_id": self.run_of(day)["dag_run_id"],
            "task_ids": ["ingest"],
            "include_downstream": True,
            "only_failed": False,
            "reset_dag_runs": True,
        }
        self.airflow.api("POST", f"/dags/{self.name}/clearTaskInstances", asked)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("gate")
    for name in ("lake", "source", "out", "bin"):
        (folder / name).mkdir()
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(Path(__file__).parent / "gate_dags", folder / "dags", ignore=ignored)
    submit = folder / "bin" / "spark3-submit"
    submit.write_text(SUBMIT)
    submit.chmod(0o755)
    for name in STORIES:
        create_table(str(folder / "lake" / "shop" / name))
    return folder


@pytest.fixture(scope="module")
def airflow(tmp_path_factory: pytest.TempPathFactory, folder: Path) -> Iterator[LocalAirflow]:
    settings = {
        "AIRFLOW_CONN_OPAL_DEFAULT": json.dumps(
            {"conn_type": "opal", "host": str(folder / "lake")}
        ),
        "AIRFLOW_CONN_SPARK_DEFAULT": json.dumps({"conn_type": "spark", "host": "local[2]"}),
        "AIRFLOW_VAR_GATE_SOURCE": str(folder / "source"),
        "AIRFLOW_VAR_GATE_OUT": str(folder / "out"),
        "AIRFLOW__CORE__PARALLELISM": "4",
        "AIRFLOW__CORE__DAGBAG_IMPORT_TIMEOUT": "180",  # of a worker on a busy machine
        "PATH": os.pathsep.join(
            [str(folder / "bin"), str(Path(sys.executable).parent), os.environ["PATH"]]
        ),
    }
    with local_airflow(tmp_path_factory.mktemp("airflow"), folder / "dags", settings) as airflow:
        airflow.wait_until(
            lambda: (
                {*DAGS} <= {dag["dag_id"] for dag in airflow.api("GET", "/dags?limit=100")["dags"]}
            )
        )
        assert airflow.api("GET", "/importErrors")["import_errors"] == []
        yield airflow


def most_at_once(airflow: LocalAirflow, dag_id: str) -> int:
    """Return how many runs of a DAG were running at one moment, at most."""
    runs = airflow.runs(dag_id)
    return max(
        sum(other["start_date"] <= run["start_date"] < other["end_date"] for other in runs)
        for run in runs
    )


@pytest.mark.parametrize("name", STORIES)
def test_nothing_shows_or_tells_of_a_key_whose_check_has_not_passed(
    airflow: LocalAirflow, folder: Path, name: str
) -> None:
    story = Story(folder, airflow, name)
    keys = days(1, 8 if name == "at_once" else 4)
    bad = {keys[1], keys[4]} if name == "at_once" else {keys[1]}
    good = {*keys} - bad
    for key in keys:
        story.put(key, is_bad=key in bad)
    dag_ids = [name, f"{name}.report", f"{name}.follow", f"{name}.reconcile"]
    for dag_id in dag_ids:
        pause(airflow, dag_id, paused=False)
    backfill(airflow, keys[0], keys[-1], name, *STORIES[name])
    airflow.wait_until(
        lambda: (
            len(keyed(airflow, name)) == len(keys)
            and all(state in DONE for _, state in keyed(airflow, name))
        )
    )
    assert succeeded(airflow, name) == good
    if name == "at_once":
        assert most_at_once(airflow, name) > 4
    airflow.wait_until(lambda: succeeded(airflow, f"{name}.report") == good)
    passed = story.passed()
    assert {*passed} == good
    story.expect_nothing_unchecked(passed)
    expected = {**{f"only {key}": key for key in good}, "shared": max(good)}
    assert story.content() == expected
    assert story.reports() == {key: [f"only {key}", "shared"] for key in good}
    assert story.registered() == good
    assert story.reconcile() == ({*()}, good)
    story.expect_followed()
    assert {day for note in story.followed() for day in note["days"]} <= good

    for key in sorted(bad):
        story.put(key, is_bad=False)
        story.clear(key)
    airflow.wait_until(lambda: succeeded(airflow, name) == {*keys})
    airflow.wait_until(lambda: succeeded(airflow, f"{name}.report") == {*keys})
    story.expect_nothing_unchecked(story.passed())
    assert story.content() == {**{f"only {key}": key for key in keys}, "shared": keys[-1]}
    assert story.reports() == {key: [f"only {key}", "shared"] for key in keys}
    assert story.registered() == {*keys}
    emitted, emitted_to_nobody = story.reconcile()
    assert emitted == {*()}
    assert bad <= emitted_to_nobody
    story.expect_followed()
    assert BAD not in {key for note in story.followed() for key in note["ids"]}
    pause(airflow, f"{name}.follow", paused=True)
    settle(airflow, f"{name}.report")
    assert sorted(key for key, _ in keyed(airflow, f"{name}.report")) == keys
    assert check_table(story.table) == []
