"""Reruns, mapped tasks and templates under a real scheduler.

A script replaces spark-submit, without Spark: the tests check tokens, states and events.

The tests share one Airflow; each has runs and tables of its own.
"""

import json
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from opal_lake.table import Table
from tests.airflow_provider_opal.cluster.lake import trigger
from tests.demo.shop.local_airflow import LocalAirflow, local_airflow

pytestmark = [pytest.mark.slow, pytest.mark.chained]

# Does a job's work in this process. `<task>.kill` lets it end its worker after the commit, once;
# `<task>.slow` lets it wait before.
SUBMIT = """#!{python}
import json, os, signal, sys, time
from pathlib import Path
import pyarrow as pa
from opal_lake.operations.job_spec import JobSpec
from opal_lake.result import JobResult
from opal_lake.engine.results import keep_result
from opal_lake.table import Table
spec = JobSpec.from_json(sys.argv[sys.argv.index("--spec") + 1])
task, given, control = spec.token.split("/")[2], vars(spec.operation), Path({control!r})
if (control / f"{{task}}.slow").exists():
    (control / f"{{task}}.runs").touch()
    time.sleep(60)
SCHEMA = pa.schema([("id", pa.int64()), ("at", pa.int64())])
table = Table.open(spec.table)
if spec.operation.name == "ingest":
    rows = [json.loads(line) for path in given["source"]["files"]["paths"] for line in open(path)]
    columns = {{name: [row[name] for row in rows] for name in SCHEMA.names}}
    more = {{"metadata": given["metadata"], "partition_key": given.get("partition_key")}}
    table.ingest(pa.table(columns, schema=SCHEMA), token=spec.token, **more)
elif spec.operation.name == "metagen":
    table.metagen(partition_key=given.get("partition_key"), token=spec.token)
else:
    done = dict(operation=spec.operation.name, table=spec.table, token=spec.token)
    result = JobResult(**done, version=given.get("version"), counts={{"calls": 1}})
    keep_result(table.storage, result)
for kill in (control / f"{{task}}.kill",):
    if kill.exists():
        kill.unlink()
        os.kill(os.getppid(), signal.SIGKILL)
"""

DAGS = """
from datetime import datetime, timedelta
from airflow.sdk import DAG, task
from airflow_provider_opal import *

DELAY = {"retry_delay": timedelta(seconds=12)}
with DAG("reruns", schedule=None, default_args={"retries": RETRIES, **DELAY}):
    IngestOperator(task_id="own", table="shop.own", source="IN/a.json", retries=RETRIES)
    mapped = IngestOperator.partial(task_id="mapped", table="shop.mapped")
    mapped.expand(source=["IN/a.json", "IN/b.json"])

with DAG("mapped", schedule=keyed_schedule(None), params={"table": "shop.c"}):
    @task
    def paths():
        return ["IN/a.json", "IN/b.json"]

    @task
    def source():
        return {"files": ["IN/a.json"]}

    ingests = IngestOperator.partial(task_id="ingests", table="shop.a").expand(source=paths())
    other = IngestOperator(task_id="other", table="shop.b", source=source())
    metagens = MetaGenOperator.partial(task_id="metagens").expand(table=["shop.a", "shop.b"])
    inline = IngestOperator.partial(task_id="inline", metadata="inline").expand_kwargs([
        {"table": "shop.d", "source": Files("IN/a.json")},
        {"table": "shop.e", "source": Files("IN/b.json")},
    ])
    named = IngestOperator(
        task_id="named",
        table="{{ params.table }}",
        source=["IN/{{ 'a' }}.json"],
        metadata="{{ 'inline' }}",
    )
    waits = SnapshotTriggerSensor.partial(task_id="waits", start="all", poke_interval=2)
    waits = waits.expand(table=["shop.a", "shop.b"])
    consumes = ConsumeOperator.partial(task_id="consumes", table="shop.a")
    consumes = consumes.expand(function=["m:f", "m:g"])
    compacts = CompactionOperator.partial(task_id="compacts").expand(table=["shop.a", "shop.b"])
    [ingests, other] >> metagens >> [waits, consumes, compacts]

for name in "abcde":
    schedule = consumer_schedule(f"shop.{name}", consumer=f"hears_{name}.c")
    with DAG(f"hears_{name}", schedule=schedule):
        @task
        def hear(partition_key=None, **_):
            return partition_key
        hear()

with DAG("keyed", schedule=keyed_schedule(None)):
    source = Files("IN/{{ partition_key[:4] }}.json")
    IngestOperator(task_id="ingest", table="shop.k", source=source)

# A sensor that is looked at again before the scheduler has seen the end of its last process is
# taken for one that was killed, so it waits
with DAG("late", schedule=None):
    SnapshotTriggerSensor(task_id="deferred", table="shop.late", deferrable=True, poke_interval=2)
    SnapshotTriggerSensor(
        task_id="poking",
        table="shop.late",
        deferrable=False,
        mode="reschedule",
        poke_interval=15,
    )
"""
DONE = ("success", "failed")
TABLES = ("own", "mapped", *"abcde")


class Workspace:
    """The folders of the lake, and what a test does in them."""

    def __init__(self, folder: Path) -> None:
        self.root, self.control, self.dags, self.source = (
            folder / name for name in ("lake", "control", "dags", "in")
        )
        for made in (self.root, self.control, self.dags, self.source):
            made.mkdir()
        for number, name in enumerate("ab"):
            (self.source / f"{name}.json").write_text(json.dumps({"id": number, "at": 1}) + "\n")
        schema = pa.schema([("id", pa.int64()), ("at", pa.int64())])
        for name in TABLES:
            Table.create(str(self.root / "shop" / name), schema, keys=["id"], delta="at")
        (folder / "bin").mkdir()
        submit = folder / "bin" / "spark-submit"
        submit.write_text(SUBMIT.format(python=sys.executable, control=str(self.control)))
        submit.chmod(0o755)
        python_bin = Path(sys.executable).parent
        self.path = os.pathsep.join([str(folder / "bin"), str(python_bin), os.environ["PATH"]])
        self.edit(retries=2)

    def edit(self, retries: int) -> None:
        (self.dags / "reruns.py").write_text(
            DAGS.replace("RETRIES", str(retries)).replace("IN/", f"{self.source}/")
        )

    def commits(self, name: str) -> int:
        """Return how many ingests of a table there are."""
        table = Table.open(str(self.root / "shop" / name))
        return sum(commit.operation == "ingest" for commit in table.commits())


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    return Workspace(tmp_path_factory.mktemp("reruns"))


@pytest.fixture(scope="module")
def airflow(
    tmp_path_factory: pytest.TempPathFactory, workspace: Workspace
) -> Iterator[LocalAirflow]:
    settings = {
        "AIRFLOW_CONN_OPAL_DEFAULT": json.dumps({"conn_type": "opal", "host": str(workspace.root)}),
        "AIRFLOW_CONN_SPARK_DEFAULT": json.dumps({"conn_type": "spark", "host": "local[2]"}),
        "AIRFLOW__DAG_PROCESSOR__REFRESH_INTERVAL": "2",
        "AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "2",
        "AIRFLOW__CORE__PARALLELISM": "4",
        "PATH": workspace.path,
    }
    with local_airflow(tmp_path_factory.mktemp("airflow"), workspace.dags, settings) as airflow:
        names = {"reruns", "mapped", "keyed", "late", *(f"hears_{name}" for name in "abcde")}
        airflow.wait_until(
            lambda: (
                names <= {dag["dag_id"] for dag in airflow.api("GET", "/dags?limit=100")["dags"]}
            )
        )
        assert airflow.api("GET", "/importErrors")["import_errors"] == []
        for name in names:
            airflow.api("PATCH", f"/dags/{name}", {"is_paused": False})
        yield airflow


def edited(airflow: LocalAirflow, workspace: Workspace, retries: int) -> None:
    """Edit the DAGs; wait until the scheduler has loaded them."""
    workspace.edit(retries)
    airflow.wait_until(lambda: airflow.api("GET", "/dags/reruns/tasks/own")["retries"] == retries)


def states(
    airflow: LocalAirflow, dag_id: str, run_id: str
) -> dict[tuple[str, int], tuple[str, int]]:
    return {
        (task["task_id"], task["map_index"]): (task["state"], task["try_number"])
        for task in airflow.tasks(dag_id, run_id)
    }


def ended(
    airflow: LocalAirflow, dag_id: str, run_id: str, tries: int = 1, expected: str = "success"
) -> None:
    """Expect every task of the run at this try or a later one to end so."""

    def is_over() -> bool:
        outcomes = states(airflow, dag_id, run_id)
        return bool(outcomes) and all(
            state in (*DONE, "upstream_failed", "skipped") and number >= tries
            for state, number in outcomes.values()
        )

    airflow.wait_until(is_over, 300)
    outcomes = states(airflow, dag_id, run_id)
    logs = (airflow.home / "logs" / f"dag_id={dag_id}" / f"run_id={run_id}").glob("**/*.log")
    text = (
        "\n".join(path.read_text(errors="replace")[-3000:] for path in logs)
        if any(s[0] != expected for s in outcomes.values())
        else ""
    )
    assert {state for state, _ in outcomes.values()} == {expected}, f"{outcomes}\n{text}"


def clear(airflow: LocalAirflow, run_id: str, **body: Any) -> None:
    more = {
        "dry_run": False,
        "dag_run_id": run_id,
        "only_failed": False,
        "reset_dag_runs": True,
        **body,
    }
    airflow.api("POST", "/dags/reruns/clearTaskInstances", more)


def commits(workspace: Workspace) -> tuple[int, int]:
    return workspace.commits("own"), workspace.commits("mapped")


def test_retries_apply_once_whatever_becomes_of_their_number(
    airflow: LocalAirflow, workspace: Workspace
) -> None:
    for before, after in ((2, 1), (1, 3)):
        edited(airflow, workspace, before)
        own, mapped = commits(workspace)
        (workspace.control / "own.kill").touch()
        (workspace.control / "mapped.kill").touch()
        run_id = trigger(airflow, "reruns")
        airflow.wait_until(
            lambda run_id=run_id: (
                states(airflow, "reruns", run_id).get(("own", -1)) == ("up_for_retry", 1)
            ),
            120,
            0.3,
        )
        workspace.edit(after)
        ended(airflow, "reruns", run_id)
        assert states(airflow, "reruns", run_id)["own", -1] == ("success", 2)
        assert commits(workspace) == (own + 1, mapped + 2), (before, after)
        assert airflow.result("reruns", run_id, "own")["repeated"]


def test_a_clear_runs_tasks_again_even_if_their_number_of_retries_changed(
    airflow: LocalAirflow, workspace: Workspace
) -> None:
    edited(airflow, workspace, 1)
    run_id = trigger(airflow, "reruns")
    ended(airflow, "reruns", run_id)
    assert not airflow.result("reruns", run_id, "own")["repeated"]
    # 1 -> 0: the sum of a clear is what it was before; 0 -> 2 and more: what a worker reads is not
    # what the run was made with
    for tries, (retries, body) in enumerate(
        [(0, {}), (0, {"reset_dag_runs": False}), (2, {}), (5, {"run_on_latest_version": True})], 2
    ):
        edited(airflow, workspace, retries)
        own, mapped = commits(workspace)
        clear(airflow, run_id, **body)
        if body.get("reset_dag_runs") is False:
            airflow.api("PATCH", f"/dags/reruns/dagRuns/{run_id}", {"state": "queued"})
        ended(airflow, "reruns", run_id, tries)
        assert commits(workspace) == (own + 1, mapped + 2), (retries, body)
    own, _ = commits(workspace)
    airflow.cli("tasks", "clear", "reruns", "--task-regex", "own", "--yes")
    airflow.wait_until(lambda: workspace.commits("own") > own)


def test_a_task_that_waits_runs_or_has_failed_runs_again_after_a_clear(
    airflow: LocalAirflow, workspace: Workspace
) -> None:
    edited(airflow, workspace, 2)
    run_id = trigger(airflow, "reruns")
    ended(airflow, "reruns", run_id)
    own, _ = commits(workspace)
    tries = states(airflow, "reruns", run_id)["own", -1][1]
    (workspace.control / "own.kill").touch()
    clear(airflow, run_id, task_ids=["own"])

    def is_at(state: str, number: int) -> bool:
        """Return whether the task is at this state, or at a later try.

        On a slow machine the retry comes before we look, and finds what was done.
        """
        current, at = states(airflow, "reruns", run_id)["own", -1]
        return at > number or (current, at) == (state, number)

    airflow.wait_until(lambda: is_at("up_for_retry", tries + 1), 120, 0.3)
    edited(airflow, workspace, 1)
    clear(airflow, run_id, task_ids=["own"])
    airflow.wait_until(lambda: workspace.commits("own") == own + 2, 120)
    airflow.wait_until(lambda: states(airflow, "reruns", run_id)["own", -1][0] == "success", 120)
    assert workspace.commits("own") == own + 2
    (workspace.control / "own.slow").touch()
    clear(airflow, run_id, task_ids=["own"])
    airflow.wait_until((workspace.control / "own.runs").exists, 120, 0.3)
    (workspace.control / "own.slow").unlink()
    clear(airflow, run_id, task_ids=["own"])
    airflow.wait_until(lambda: workspace.commits("own") == own + 3, 120)
    airflow.wait_until(lambda: states(airflow, "reruns", run_id)["own", -1][0] == "success", 120)
    edited(airflow, workspace, 0)
    (workspace.control / "own.kill").touch()
    clear(airflow, run_id, task_ids=["own"], run_on_latest_version=True)
    airflow.wait_until(lambda: states(airflow, "reruns", run_id)["own", -1][0] == "failed", 120)
    assert workspace.commits("own") == own + 4
    # A clear while the scheduler ends the run would leave the task without a state in a run that
    # is over
    airflow.wait_until(
        lambda: airflow.api("GET", f"/dags/reruns/dagRuns/{run_id}")["state"] == "failed", 120
    )
    clear(airflow, run_id, task_ids=["own"])
    airflow.wait_until(lambda: states(airflow, "reruns", run_id)["own", -1][0] == "success", 120)
    assert workspace.commits("own") == own + 5


def ends_heard(airflow: LocalAirflow, run_id: str, dag_id: str = "reruns") -> int:
    """Return how many ends of tasks of a run the scheduler has heard of."""
    log = (airflow.home / "scheduler.log").read_text(errors="replace")
    return len(
        re.findall(
            rf"TaskInstance Finished: dag_id={dag_id}, task_id=\w+, run_id={re.escape(run_id)},",
            log,
        )
    )


def test_a_run_that_was_deleted_and_triggered_again_commits_again(
    airflow: LocalAirflow, workspace: Workspace
) -> None:
    own, _ = commits(workspace)
    for more in (1, 2):
        run_id = trigger(airflow, "reruns", dag_run_id="again")
        ended(airflow, "reruns", run_id)
        assert workspace.commits("own") == own + more
        tasks = len(states(airflow, "reruns", run_id))
        # Else the scheduler would take the ends of these tasks for those of the next run
        airflow.wait_until(
            lambda ends=more * tasks, run_id=run_id: ends_heard(airflow, run_id) >= ends, 120
        )
        airflow.api("DELETE", f"/dags/reruns/dagRuns/{run_id}")


def test_mapped_operators_and_templates_work_and_their_events_are_heard(
    airflow: LocalAirflow, workspace: Workspace
) -> None:
    run_id = trigger(airflow, "mapped", partition_key="2026-11-01")
    ended(airflow, "mapped", run_id)
    assert [workspace.commits(name) for name in "abcde"] == [2, 1, 1, 1, 1]
    assert Table.open(str(workspace.root / "shop" / "a")).read().num_rows == 2
    for name in "abcde":
        airflow.wait_until(lambda name=name: airflow.runs(f"hears_{name}") != [], 120)
        assert {run["partition_key"] for run in airflow.runs(f"hears_{name}")} == {"2026-11-01"}


def test_the_connection_of_the_guide_can_be_tested_in_the_ui(
    airflow: LocalAirflow, workspace: Workspace
) -> None:
    """Test connections without a port: the button asks with port 0 then."""
    for name, host, message in (
        ("guide", workspace.root, "can be listed"),
        ("nowhere", workspace.root / "nowhere", "does not exist on"),
    ):
        airflow.cli(
            "connections",
            "add",
            name,
            "--conn-type",
            "opal",
            "--conn-host",
            str(host),
            "--conn-port",
            "0",
        )
        asked = {
            "connection_id": name,
            "conn_type": "opal",
            "host": str(host),
            "login": "",
            "password": "",
            "port": 0,
            "schema": "",
        }
        answer = airflow.api(
            "POST", "/connections/test", {**asked, "description": "", "extra": "{}"}
        )
        assert (answer["status"], message in answer["message"]) == (name == "guide", True), answer


def test_a_run_without_a_key_is_refused_where_it_is_seen(
    airflow: LocalAirflow, workspace: Workspace
) -> None:
    run_id = trigger(airflow, "keyed")
    ended(airflow, "keyed", run_id, expected="failed")
    [log] = (airflow.home / "logs" / "dag_id=keyed").glob(f"run_id={run_id}/**/*.log")
    before, _, after = log.read_text().partition("::endgroup::")
    assert "has no partition key" in after
    assert "has no partition key" not in before


def test_a_sensor_waits_for_a_table_that_is_not_there_yet(
    airflow: LocalAirflow, workspace: Workspace
) -> None:
    run_id = trigger(airflow, "late")
    expected = {("deferred", -1): "deferred", ("poking", -1): "up_for_reschedule"}
    airflow.wait_until(
        lambda: (
            {name: state for name, (state, _) in states(airflow, "late", run_id).items()}
            == expected
        ),
        120,
        0.3,
    )
    # A deferred task that goes on before the scheduler has seen the end of its first process is
    # taken for one that was killed
    airflow.wait_until(lambda: ends_heard(airflow, run_id, "late") >= len(expected), 120, 0.3)
    made = workspace.root / "shop" / "d"
    (workspace.root / "shop" / "late").symlink_to(made, target_is_directory=True)
    ended(airflow, "late", run_id)
    version = Table.open(str(made)).snapshot_at().version
    assert [airflow.result("late", run_id, name) for name in ("deferred", "poking")] == [
        {"from": 0, "to": version}
    ] * 2
