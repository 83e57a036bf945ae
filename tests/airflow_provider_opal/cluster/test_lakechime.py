"""Foreign tables wake DAGs under a real Airflow, whatever becomes of its processes.

The tests share one Airflow, next to a LakeChime without any set-up, and go on from what those
before left.
"""

import json
import shutil
import signal
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psutil
import pytest

from lakechime import LakeChime
from opal_lake.table import Table
from tests.airflow_provider_opal.chime import event, put
from tests.airflow_provider_opal.cluster.chime_dags.chime import WAITING
from tests.airflow_provider_opal.cluster.lake import ROOT, ended, keyed, log_of, pause, trigger
from tests.demo.shop.local_airflow import LocalAirflow, local_airflow
from tests.demo.shop.pageviews import VIEWS, register_pageviews, write_pageviews

pytestmark = [pytest.mark.slow, pytest.mark.chained]

DAGS = ("relay", "by_partition", "by_snapshot", "by_watcher", "waiting", "flow")
EXAMPLES = ("pageviews_relay", "pageviews_report", "pageviews_hourly", "page_visits")
FILES = ("pageviews.py", "pageviews_jobs.py", "visits.opal.yaml", "load_yaml.py")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the lake, the foreign table, and the files of visits."""
    return tmp_path_factory.mktemp("lake")


@pytest.fixture(scope="module")
def airflow(tmp_path_factory: pytest.TempPathFactory, folder: Path) -> Iterator[LocalAirflow]:
    dags = tmp_path_factory.mktemp("dags")
    for name in FILES:
        shutil.copy(ROOT / "dags" / name, dags)
    shutil.copytree(
        Path(__file__).parent / "chime_dags",
        dags,
        dirs_exist_ok=True,
        ignore=shutil.ignore_patterns("__pycache__"),
    )
    settings = {
        "AIRFLOW_CONN_OPAL_DEFAULT": json.dumps({"conn_type": "opal", "host": str(folder)}),
        "AIRFLOW_CONN_SPARK_DEFAULT": json.dumps({"conn_type": "spark", "host": "local[2]"}),
        "AIRFLOW_VAR_PAGEVIEWS": str(folder / "pageviews"),
        "AIRFLOW_VAR_VISIT_SOURCE": str(folder / "visits"),
        "AIRFLOW__CORE__PARALLELISM": "4",
        "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "20",
        "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT_DETECTION_INTERVAL": "3",
        "AIRFLOW__TRIGGERER__JOB_HEARTBEAT_SEC": "2",
        "AIRFLOW__SCHEDULER__TRIGGER_TIMEOUT_CHECK_INTERVAL": "3",
    }
    with local_airflow(tmp_path_factory.mktemp("airflow"), dags, settings) as airflow:
        airflow.wait_until(
            lambda: (
                {*DAGS, *EXAMPLES}
                <= {dag["dag_id"] for dag in airflow.api("GET", "/dags?limit=100")["dags"]}
            )
        )
        assert airflow.api("GET", "/importErrors")["import_errors"] == []
        for dag_id in (*DAGS, *EXAMPLES):
            if dag_id != "by_snapshot":  # paused while its first events come
                pause(airflow, dag_id, paused=False)
        yield airflow


@pytest.fixture(scope="module")
def chime(airflow: LocalAirflow) -> Iterator[LakeChime]:
    with LakeChime.open(events_of(airflow)) as client:
        yield client


def events_of(airflow: LocalAirflow) -> str:
    return f"sqlite:///{airflow.home}/lakechime.db"


def deferred(airflow: LocalAirflow, dag_id: str, run_id: str) -> int:
    return sum(task["state"] == "deferred" for task in airflow.tasks(dag_id, run_id))


def kill(airflow: LocalAirflow, component: str) -> None:
    """Kill a component and its child processes with SIGKILL."""
    process = airflow.processes.pop(component)
    for member in [
        *psutil.Process(process.pid).children(recursive=True),
        psutil.Process(process.pid),
    ]:
        member.send_signal(signal.SIGKILL)
    process.wait()


def result(airflow: LocalAirflow, dag_id: str, run_id: str, task_id: str) -> Any:
    value = airflow.api(
        "GET", f"/dags/{dag_id}/dagRuns/{run_id}/taskInstances/{task_id}/xcomEntries/return_value"
    )["value"]
    return json.loads(value) if isinstance(value, str) and value.startswith(("[", "{")) else value


def test_the_relay_wakes_a_dag_once_for_each_partition_that_changed(
    airflow: LocalAirflow, chime: LakeChime
) -> None:
    put(
        chime,
        event(snapshot=1, partition=("2026-11-01", 7)),
        event(snapshot=1, partition=("2026-11-02", 7)),
    )
    airflow.wait_until(
        lambda: (
            sorted(keyed(airflow, "by_partition"))
            == [("2026-11-01/7", "success"), ("2026-11-02/7", "success")]
        )
    )
    put(chime, event(snapshot=2, partition=("2026-11-01", 7)))
    airflow.wait_until(
        lambda: (
            [key for key, state in keyed(airflow, "by_partition") if state == "success"].count(
                "2026-11-01/7"
            )
            == 2
        )
    )


def test_sensors_survive_the_triggerer_s_death_and_wake_for_what_came_meanwhile(
    airflow: LocalAirflow, chime: LakeChime
) -> None:
    run_id = trigger(airflow, "waiting")
    airflow.wait_until(lambda: deferred(airflow, "waiting", run_id) == WAITING)
    put(chime, event("shop.many", snapshot=1, partition=(0,)))
    airflow.wait_until(lambda: deferred(airflow, "waiting", run_id) == WAITING - 1)
    kill(airflow, "triggerer")
    for number in range(1, WAITING // 2):
        put(chime, event("shop.many", snapshot=number + 1, partition=(number,)))
    airflow.start("triggerer")
    airflow.wait_until(lambda: deferred(airflow, "waiting", run_id) == WAITING - WAITING // 2)
    chime.register(
        [
            event("shop.many", snapshot=number + 1, partition=(number,))
            for number in range(WAITING // 2, WAITING)
        ]
    )
    assert ended(airflow, "waiting", run_id) == "success"


def test_a_relay_whose_scheduler_and_triggerer_die_leaves_nothing_out(
    airflow: LocalAirflow, chime: LakeChime
) -> None:
    """Register events before, while and after: each is emitted at least once."""
    days = [f"2026-12-{day:02}" for day in range(1, 13)]
    chime.register(
        [event(snapshot=number + 10, partition=(day, 1)) for number, day in enumerate(days[:4])]
    )
    kill(airflow, "scheduler")
    kill(airflow, "triggerer")
    chime.register(
        [event(snapshot=number + 20, partition=(day, 1)) for number, day in enumerate(days[4:8])]
    )
    airflow.start("scheduler")
    airflow.start("triggerer")
    chime.register(
        [event(snapshot=number + 30, partition=(day, 1)) for number, day in enumerate(days[8:])]
    )
    airflow.wait_until(
        lambda: (
            {f"{day}/1" for day in days}
            <= {key for key, state in keyed(airflow, "by_partition") if state == "success"}
        )
    )


def test_a_watcher_wakes_a_plain_dag_and_no_event_is_left_out(
    airflow: LocalAirflow, chime: LakeChime
) -> None:
    def seen() -> list[str]:
        runs = [
            run["dag_run_id"] for run in airflow.runs("by_watcher") if run["state"] == "success"
        ]
        return sorted(
            {snapshot for run in runs for snapshot in result(airflow, "by_watcher", run, "count")},
            key=int,
        )

    airflow.wait_until(lambda: chime.watermark("watcher.raw", "events") is not None)
    put(chime, event("shop.watched", snapshot=1))
    airflow.wait_until(lambda: seen() == ["1"])
    first = chime.watermark("watcher.raw", "events")
    airflow.wait_until(lambda: (chime.watermark("watcher.raw", "events") or first).revision > 1)
    put(chime, *(event("shop.watched", snapshot=number) for number in range(2, 12)))
    airflow.wait_until(lambda: seen() == [str(number) for number in range(1, 12)])


def test_events_of_a_failed_run_are_given_to_the_next_run(
    airflow: LocalAirflow, chime: LakeChime
) -> None:
    put(chime, event("shop.flow", snapshot=1))
    failed = trigger(airflow, "flow", conf={"fails": True})
    assert ended(airflow, "flow", failed) == "failed"
    put(chime, event("shop.flow", snapshot=2))
    good = trigger(airflow, "flow")
    assert ended(airflow, "flow", good) == "success"
    assert result(airflow, "flow", good, "work") == ["1", "2"]
    waiting = trigger(airflow, "flow")
    airflow.wait_until(lambda: deferred(airflow, "flow", waiting) == 1)
    put(chime, event("shop.flow", snapshot=3))
    assert ended(airflow, "flow", waiting) == "success"
    assert result(airflow, "flow", waiting, "work") == ["3"]


def test_a_paused_relay_goes_on_where_it_was(airflow: LocalAirflow, chime: LakeChime) -> None:
    """Expect the events of a paused relay only once it is back.

    Airflow drops asset events of DAGs that are paused.
    """
    pause(airflow, "relay", paused=True)
    pause(airflow, "by_snapshot", paused=False)
    chime.register([event("shop.flat", snapshot=number) for number in range(1, 6)])
    pause(airflow, "relay", paused=False)
    airflow.wait_until(
        lambda: (
            {key for key, state in keyed(airflow, "by_snapshot") if state == "success"}
            == {"1", "2", "3", "4", "5"}
        )
    )


def test_the_examples_run_when_a_foreign_table_changes(
    airflow: LocalAirflow, chime: LakeChime, folder: Path
) -> None:
    """Run dags/pageviews.py: a relay wakes a report a day.

    The paper's DAG reads what came within its span, or skips.
    """
    pageviews = str(folder / "pageviews")
    write_pageviews(pageviews)
    assert register_pageviews(pageviews, events_of(airflow)) == len(VIEWS)
    airflow.wait_until(
        lambda: (
            {key for key, state in keyed(airflow, "pageviews_report") if state == "success"}
            == VIEWS.keys()
        )
    )
    runs = {run["partition_key"]: run["dag_run_id"] for run in airflow.runs("pageviews_report")}
    assert {
        key: result(airflow, "pageviews_report", run_id, "report") for key, run_id in runs.items()
    } == VIEWS
    now = datetime.now(UTC).replace(microsecond=0)
    everything = sum(views for pages in VIEWS.values() for views in pages.values())
    for begin, end, expected in (
        (now - timedelta(hours=1), now + timedelta(seconds=1), everything),
        (now - timedelta(days=2),) * 2 + (None,),
    ):
        span = {"data_interval_start": begin.isoformat(), "data_interval_end": end.isoformat()}
        run_id = trigger(airflow, "pageviews_hourly", logical_date=begin.isoformat(), **span)
        assert ended(airflow, "pageviews_hourly", run_id) == "success"
        states = {
            task["task_id"]: task["state"] for task in airflow.tasks("pageviews_hourly", run_id)
        }
        assert states["count_rows"] == ("skipped" if expected is None else "success")
        assert (
            expected is None
            or int(result(airflow, "pageviews_hourly", run_id, "count_rows")) == expected
        )


def test_a_pipeline_waits_for_a_foreign_partition_and_tells_of_its_own_rows(
    airflow: LocalAirflow, chime: LakeChime, folder: Path
) -> None:
    """dags/visits.opal.yaml."""
    (folder / "visits" / "2026-11-03").mkdir(parents=True)
    (folder / "visits" / "2026-11-03" / "a.json").write_text(
        '{"visit_id": 1, "at": 1, "page": "home"}\n'
    )
    run_id = trigger(airflow, "page_visits", partition_key="2026-11-03")
    airflow.wait_until(lambda: deferred(airflow, "page_visits", run_id) == 1)
    put(chime, event("data.pageviews", snapshot=3, partition=("2026-11-03",), prev_snapshot_id="1"))
    assert ended(airflow, "page_visits", run_id) == "success"
    own = [stored.event for stored in chime.events(["web.visits"]).events]
    assert [
        (visit.partition, visit.table_format, visit.operation_type)
        for visit in own
        if visit.partition
    ] == [(("2026-11-03",), "OPAL", "APPEND")]
    assert Table.open(str(folder / "web" / "visits")).read().num_rows == 1
    assert "not registered" not in log_of(airflow, "page_visits", "ingest", run_id)
