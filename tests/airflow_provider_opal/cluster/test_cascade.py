"""dags/cities.py and dags/cities.opal.yaml under a real Airflow.

Totals that consumers keep by changes alone are those of all rows.

The tests share one Airflow and go on from what those before left.
"""

import json
import os
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from opal_lake.table import Table
from tests.airflow_provider_opal.cluster.city_dags.moving import batch, counted, totals_of, write
from tests.airflow_provider_opal.cluster.lake import ROOT, drivers_of, ended, pause, settle, trigger
from tests.demo.shop.local_airflow import LocalAirflow, local_airflow
from tests.kit.check import check_table
from tests.opal_lake.compacting import compact

pytestmark = [pytest.mark.slow, pytest.mark.chained]

SEED = int(os.environ.get("OPAL_SEED", "0")) or random.SystemRandom().randrange(1, 1 << 32)
POPULATION, DAGS = (
    "user_city.population",
    ("user_city", "user_city.population", "company_city", "company_city.companies", "moves"),
)
FAILS_AFTER_ITS_COMMIT = """

counts = count_by_city


def count_by_city(change):
    from opal_lake.errors import InvalidInputError

    counts(change)
    raise InvalidInputError("the disk of the report is full")  # an error that no retry mends
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`lake`, `dags`, and the files of both pipelines' first runs."""
    folder = tmp_path_factory.mktemp("cities")
    (folder / "lake").mkdir()
    shutil.copytree(ROOT / "dags", folder / "dags", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(Path(__file__).parent / "city_dags", folder / "dags", dirs_exist_ok=True)
    for name, key in (("user_city", "user_id"), ("company_city", "company_id")):
        (folder / name).mkdir()
        rows = [{key: row.pop("user_id"), **row} for row in batch(0, SEED)]
        (folder / name / "0.json").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


@pytest.fixture(scope="module")
def airflow(tmp_path_factory: pytest.TempPathFactory, folder: Path) -> Iterator[LocalAirflow]:
    print(f"OPAL_SEED={SEED}")
    settings = {
        "AIRFLOW_CONN_OPAL_DEFAULT": json.dumps(
            {"conn_type": "opal", "host": str(folder / "lake")}
        ),
        "AIRFLOW_CONN_SPARK_DEFAULT": json.dumps({"conn_type": "spark", "host": "local[2]"}),
        "AIRFLOW_VAR_CITY_SOURCE": str(folder),
        "AIRFLOW_VAR_LAKE_SEED": str(SEED),
    }
    with local_airflow(tmp_path_factory.mktemp("airflow"), folder / "dags", settings) as airflow:
        airflow.wait_until(
            lambda: (
                {*DAGS} <= {dag["dag_id"] for dag in airflow.api("GET", "/dags?limit=100")["dags"]}
            )
        )
        for dag_id in DAGS:
            pause(airflow, dag_id, paused=False)
        yield airflow


def table(folder: Path, name: str) -> Table:
    return Table.open(str(folder / "lake" / "cities" / name))


def consumed(airflow: LocalAirflow) -> dict[str, int]:
    """Up to which version each run has consumed, the oldest first."""
    runs = [run["dag_run_id"] for run in airflow.runs(POPULATION) if run["state"] == "success"]
    return {run: airflow.result(POPULATION, run, "population")["version"] for run in runs}


def of_run(airflow: LocalAirflow, run_id: str) -> dict[str, Any]:
    [task] = airflow.tasks(POPULATION, run_id)
    return dict(task)


def kill_driver_when_something_is_new_in(
    airflow: LocalAirflow, folder: Path, subfolder: str
) -> None:
    """Kill the consumer's driver with the Python below it, once a file appears."""
    watched = folder / "lake" / "cities" / "city_population" / "_opal" / subfolder
    before = set(watched.iterdir())
    airflow.wait_until(lambda: set(watched.iterdir()) > before, pause_s=0.02)
    [driver] = drivers_of("consume", folder / "lake")
    for process in [*psutil.Process(driver.pid).children(recursive=True), driver]:
        process.kill()


def test_both_pipelines_count_what_they_ingest(airflow: LocalAirflow, folder: Path) -> None:
    runs = {name: trigger(airflow, name) for name in ("user_city", "company_city")}
    assert {ended(airflow, name, run) for name, run in runs.items()} == {"success"}
    for name, totals, consumer in (
        ("user_city", "city_population", "population"),
        ("company_city", "city_companies", "companies"),
    ):
        dag_id = f"{name}.{consumer}"
        airflow.wait_until(
            lambda dag_id=dag_id: [run["state"] for run in airflow.runs(dag_id)] == ["success"]
        )
        assert totals_of(table(folder, totals)) == counted(table(folder, name)) != {}


def test_after_200_batches_and_two_kills_the_totals_of_every_run_are_those_of_all_rows(
    airflow: LocalAirflow, folder: Path
) -> None:
    run_id = trigger(airflow, "moves")
    for log_folder in ("claims", "log"):  # in the middle of the ingest, and after its commit
        kill_driver_when_something_is_new_in(airflow, folder, log_folder)
    compact(table(folder, "user_city"))
    assert ended(airflow, "moves", run_id) == "success"
    settle(airflow, POPULATION)
    users, cities, versions = (
        table(folder, "user_city"),
        table(folder, "city_population"),
        consumed(airflow),
    )
    assert sum(commit.operation == "metagen" for commit in users.commits()) == 201
    assert len({*versions.values()}) > 2
    assert len(versions) == len(airflow.runs(POPULATION)), "a run has failed"
    assert max(of_run(airflow, run)["try_number"] for run in versions) > 1
    for version in versions.values():
        assert totals_of(cities, event_time=version) == counted(users, version), version
    assert totals_of(cities) == counted(users)


def test_a_run_that_fails_after_its_commit_is_not_counted_twice_by_the_next_one(
    airflow: LocalAirflow, folder: Path
) -> None:
    users, jobs, before = (
        table(folder, "user_city"),
        folder / "dags" / "city_jobs.py",
        table(folder, "city_population").snapshot_at().version,
    )
    sound = jobs.read_text()
    jobs.write_text(sound + FAILS_AFTER_ITS_COMMIT)
    write(users, batch(301, SEED))
    failed = trigger(airflow, POPULATION)
    assert ended(airflow, POPULATION, failed) == "failed"
    assert table(folder, "city_population").snapshot_at().version > before
    jobs.write_text(sound)
    begun, newest = users.snapshot_at().version, write(users, batch(302, SEED)).version
    later = trigger(airflow, POPULATION)
    assert ended(airflow, POPULATION, later) == "success"
    assert consumed(airflow)[later] == newest
    for version in (begun, newest):
        assert totals_of(table(folder, "city_population"), event_time=version) == counted(
            users, version
        )


def test_runs_that_are_cleared_change_nothing(airflow: LocalAirflow, folder: Path) -> None:
    """Clear a run that failed, too."""
    cities = table(folder, "city_population")
    totals, version = totals_of(cities), cities.snapshot_at().version
    runs = airflow.runs(POPULATION)
    [failed] = [run["dag_run_id"] for run in runs if run["state"] == "failed"]
    for run in (runs[0]["dag_run_id"], failed):
        before = of_run(airflow, run)["try_number"]
        airflow.api("POST", f"/dags/{POPULATION}/dagRuns/{run}/clear", {"dry_run": False})
        airflow.wait_until(
            lambda run=run, before=before: of_run(airflow, run)["try_number"] > before
        )
        assert ended(airflow, POPULATION, run) == "success"
    assert (totals_of(cities), cities.snapshot_at().version) == (totals, version)
    assert totals == counted(table(folder, "user_city"))


def test_opal_check_finds_nothing_after_all_runs(folder: Path) -> None:
    for path in (folder / "lake" / "cities").iterdir():
        assert check_table(Table.open(str(path))) == []
