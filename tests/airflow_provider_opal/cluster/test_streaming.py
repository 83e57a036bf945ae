"""Streams of a real Kafka under a real Airflow.

A killed stream leaves nothing behind, and a resumed one goes on where the table stands.

The tests share one Airflow and go on from what those before left.
"""

import json
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from opal_lake.table import Table
from tests.airflow_provider_opal.cluster.lake import ROOT, backfill, ended, keyed, pause, trigger
from tests.demo.shop.local_airflow import LocalAirflow, local_airflow
from tests.fixtures_kafka import Kafka
from tests.kit.check import check_table
from tests.opal_stream.orders import order

pytestmark = [pytest.mark.slow, pytest.mark.chained]

HERE = Path(__file__).parent
DAGS = ("live", "working", "lag", "days", "clicks")
DAY_MS = 86_400_000
NOVEMBER_MS = 1_793_491_200_000  # 2026-11-01


class Lake:
    """A folder, and the tables in it."""

    def __init__(self, folder: Path) -> None:
        self.root, self.dags = folder / "lake", folder / "dags"
        self.root.mkdir()
        shutil.copytree(HERE / "stream_dags", self.dags)
        shutil.copy(ROOT / "dags" / "clicks.opal.yaml", self.dags)

    def table(self, name: str) -> Table:
        return Table.open(str(self.root / name.replace(".", "/")))

    def ids(self, name: str, column: str = "id") -> list[int]:
        try:
            return sorted(self.table(name).read(columns=[column])[column].to_pylist())
        except KeyError:  # not made yet
            return []

    def streams(self, name: str) -> list[psutil.Process]:
        """Return the processes that read into it now."""
        uri = str(self.root / name.replace(".", "/"))
        processes = [
            process
            for process in psutil.process_iter(["cmdline"])
            if {"stream", uri} <= {*(process.info["cmdline"] or [])}
        ]
        return [process for process in processes if process.status() != psutil.STATUS_ZOMBIE]


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Lake:
    return Lake(tmp_path_factory.mktemp("streams"))


@pytest.fixture(scope="module")
def airflow(
    tmp_path_factory: pytest.TempPathFactory, lake: Lake, kafka: Kafka
) -> Iterator[LocalAirflow]:
    for topic in ("live", "working", "clicks"):
        kafka.create_topic(topic)
    kafka.create_topic("days", retention_ms=str(10**13))
    settings = {
        "AIRFLOW_CONN_OPAL_DEFAULT": json.dumps({"conn_type": "opal", "host": str(lake.root)}),
        "AIRFLOW_CONN_KAFKA_DEFAULT": json.dumps(
            {"conn_type": "kafka", "extra": {"bootstrap.servers": kafka.servers}}
        ),
        "AIRFLOW__TRIGGERER__TRIGGERER_HEALTH_CHECK_THRESHOLD": "10",
        "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "20",
        "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT_DETECTION_INTERVAL": "3",
    }
    with local_airflow(tmp_path_factory.mktemp("airflow"), lake.dags, settings) as airflow:
        airflow.wait_until(
            lambda: (
                {*DAGS} <= {dag["dag_id"] for dag in airflow.api("GET", "/dags?limit=100")["dags"]}
            )
        )
        assert airflow.api("GET", "/importErrors")["import_errors"] == []
        for dag_id in ("live", "working", "lag", "days"):
            pause(airflow, dag_id, paused=False)
        yield airflow


def state_of(airflow: LocalAirflow, dag_id: str, run_id: str) -> Any:
    return airflow.tasks(dag_id, run_id)[0]["state"]


def mark(airflow: LocalAirflow, dag_id: str, run_id: str, task_id: str, state: str) -> None:
    """Mark a task as the UI's button does."""
    airflow.api(
        "PATCH", f"/dags/{dag_id}/dagRuns/{run_id}/taskInstances/{task_id}", {"new_state": state}
    )


def kill_tree(process: psutil.Process, spared: list[psutil.Process]) -> None:
    """Kill a process tree at once, as the out-of-memory killer would.

    The streams see only that their watcher is gone.
    """
    for member in [*process.children(recursive=True), process]:
        if member.pid not in [other.pid for other in spared]:
            member.send_signal(signal.SIGKILL)


def test_a_deferred_stream_is_the_triggerer_s_child_and_messages_are_visible_at_once(
    airflow: LocalAirflow, lake: Lake, kafka: Kafka
) -> None:
    kafka.produce("live", [order(1), order(2)])
    run_id = trigger(airflow, "live")
    airflow.wait_until(lambda: lake.ids("shop.live") == [1, 2], 180)
    assert state_of(airflow, "live", run_id) == "deferred"
    [stream] = lake.streams("shop.live")
    assert airflow.processes["triggerer"].pid in {parent.pid for parent in stream.parents()}
    kafka.produce("live", [order(3)])
    airflow.wait_until(lambda: lake.ids("shop.live") == [1, 2, 3], 60)
    assert ended(airflow, "lag", trigger(airflow, "lag")) == "success"


def test_a_triggerer_that_is_killed_leaves_no_stream_and_the_next_one_goes_on(
    airflow: LocalAirflow, lake: Lake, kafka: Kafka
) -> None:
    streams, killed = lake.streams("shop.live"), airflow.processes.pop("triggerer")
    kill_tree(psutil.Process(killed.pid), streams)
    killed.wait()
    airflow.wait_until(lambda: not lake.streams("shop.live"), 60)
    kafka.produce("live", [order(4)])
    airflow.start("triggerer")
    airflow.wait_until(lambda: lake.ids("shop.live") == [1, 2, 3, 4], 180)
    assert len(lake.streams("shop.live")) == 1
    assert lake.table("shop.live").snapshot_at().root.rows == 4


def test_marked_success_it_drains_and_cleared_it_goes_on_where_it_was(
    airflow: LocalAirflow, lake: Lake, kafka: Kafka
) -> None:
    [run] = airflow.runs("live")
    kafka.produce("live", [order(5)])
    airflow.wait_until(lambda: 5 in lake.ids("shop.live"), 60)
    mark(airflow, "live", run["dag_run_id"], "read", "success")
    airflow.wait_until(lambda: not lake.streams("shop.live"), 60)
    kafka.produce("live", [order(6)])
    body = {
        "dry_run": False,
        "dag_run_id": run["dag_run_id"],
        "task_ids": ["read"],
        "only_failed": False,
        "reset_dag_runs": True,
    }
    airflow.api("POST", "/dags/live/clearTaskInstances", body)
    airflow.wait_until(lambda: lake.ids("shop.live") == [1, 2, 3, 4, 5, 6], 180)
    assert lake.table("shop.live").snapshot_at().root.rows == 6
    mark(airflow, "live", run["dag_run_id"], "read", "success")
    airflow.wait_until(lambda: not lake.streams("shop.live"), 60)


def test_a_worker_that_is_killed_leaves_no_stream_and_loses_nothing(
    airflow: LocalAirflow, lake: Lake, kafka: Kafka
) -> None:
    kafka.produce("working", [order(1), order(2)])
    run_id = trigger(airflow, "working")
    airflow.wait_until(lambda: bool(lake.streams("shop.working")), 180)
    [stream] = lake.streams("shop.working")
    task = stream.parent()
    assert task is not None
    airflow.wait_until(lambda: state_of(airflow, "working", run_id) == "running", 60)
    pause_s = 8
    airflow.wait_until(lambda: time.time() - stream.create_time() > pause_s, 60)
    assert lake.ids("shop.working") == []  # its flush is an hour away
    task.kill()
    airflow.wait_until(lambda: not lake.streams("shop.working"), 60)
    assert lake.ids("shop.working") == [1, 2]
    assert ended(airflow, "working", run_id) == "failed"


def test_a_day_is_read_by_its_key_and_a_clear_reads_the_same(
    airflow: LocalAirflow, lake: Lake, kafka: Kafka
) -> None:
    kafka.produce(
        "days",
        [order(n) for n in range(4)],
        moments_ms=[NOVEMBER_MS + day * DAY_MS // 2 for day in range(4)],
    )
    backfill(airflow, "2026-11-01", "2026-11-02", "days")
    airflow.wait_until(
        lambda: {("2026-11-01", "success"), ("2026-11-02", "success")} <= {*keyed(airflow, "days")},
        180,
    )
    table = lake.table("shop.days")
    version = table.snapshot_at().version
    by_key = {
        key: sorted(table.read(columns=["id"], partition_key=key)["id"].to_pylist())
        for key in ("2026-11-01", "2026-11-02")
    }
    assert by_key == {"2026-11-01": [0, 1], "2026-11-02": [2, 3]}
    [run_id] = [
        run["dag_run_id"] for run in airflow.runs("days") if run["partition_key"] == "2026-11-01"
    ]
    first = airflow.result("days", run_id, "ingest")
    body = {
        "dry_run": False,
        "dag_run_id": run_id,
        "task_ids": ["ingest"],
        "only_failed": False,
        "reset_dag_runs": True,
    }
    airflow.api("POST", "/dags/days/clearTaskInstances", body)
    airflow.wait_until(lambda: airflow.result("days", run_id, "ingest")["records"] == 0, 180)
    again = airflow.result("days", run_id, "ingest")
    assert (first["records"], again["ranges"], table.snapshot_at().version) == (
        2,
        first["ranges"],
        version,
    )


def test_the_example_reads_clicks_all_the_time_and_takes_new_columns(
    airflow: LocalAirflow, lake: Lake, kafka: Kafka
) -> None:
    click = {"click_id": 1, "page": "/", "visitor": "a", "at": "2026-11-24T09:00:00Z"}
    kafka.produce("clicks", [click, {**click, "click_id": 2, "country": "DE"}])
    pause(airflow, "clicks", paused=False)
    airflow.wait_until(lambda: lake.ids("web.clicks", "click_id") == [1, 2], 180)
    assert "country" in lake.table("web.clicks").snapshot_at().spec.schema.names
    pause(airflow, "clicks", paused=True)
    [run] = airflow.runs("clicks")
    mark(airflow, "clicks", run["dag_run_id"], "ingest", "failed")
    airflow.wait_until(lambda: not lake.streams("web.clicks"), 60)


def test_opal_check_finds_nothing_after_all_runs(lake: Lake) -> None:
    for path in lake.root.glob("*/*"):
        assert check_table(Table.open(str(path))) == []
