"""A pipeline under a real Airflow: real scheduler, real spark-submit, real backfills.

The tests share one Airflow and go on from what those before left; each begins by checking its
state.
"""

import os
import signal
import time
from contextlib import suppress
from typing import Any

import psutil
import pyarrow as pa
import pytest

from opal_lake.table import Table
from tests.airflow_provider_opal.cluster.lake import (
    HEADS,
    Lake,
    backfill,
    days,
    drivers_of,
    ended,
    keyed,
    log_of,
    pause,
    settle,
    succeeded,
    trigger,
)
from tests.demo.shop.local_airflow import LocalAirflow
from tests.kit.check import check_table

pytestmark = [pytest.mark.slow, pytest.mark.chained]


def clear(airflow: LocalAirflow, key: str) -> None:
    """Clear a key as the Airflow guide says it."""
    before = [task["try_number"] for task in of_key(airflow, key)]
    airflow.cli("dags", "clear", "orders", "--partition-key", key, "--yes")
    airflow.wait_until(
        lambda: sum(task["try_number"] for task in of_key(airflow, key)) >= sum(before) + 2
    )
    airflow.wait_until(lambda: dict(keyed(airflow, "orders"))[key] == "success")


def of_key(airflow: LocalAirflow, key: str) -> list[dict[str, Any]]:
    run = next(run for run in airflow.runs("orders") if run["partition_key"] == key)
    return airflow.tasks("orders", run["dag_run_id"])


def test_a_backfill_cascades_to_the_consumers_one_run_a_key(
    airflow: LocalAirflow, lake: Lake
) -> None:
    lake.put("2026-11-01", (1, 1, "Ann", "I"), (2, 1, "Bob", "I"))
    lake.put("2026-11-02", (1, 2, "Anna", "U"), (3, 2, "Cid", "I"))
    lake.put("2026-11-03", (2, 3, "Bob", "D"))
    backfill(airflow, "2026-11-01", "2026-11-03")
    airflow.wait_until(lambda: keyed(airflow, "orders") == [(key, "success") for key in days(1, 3)])
    airflow.wait_until(
        lambda: sorted(keyed(airflow, "orders.copy")) == [(key, "success") for key in days(1, 3)]
    )
    settle(airflow, *HEADS)
    assert lake.names() == {1: "Anna", 3: "Cid"}
    assert {note["key"]: note["rows"] for note in lake.notes("copy")}["2026-11-02"] == [
        [1, "Anna"],
        [3, "Cid"],
    ]
    lake.expect_no_gap("follow-orders", "orders")


def test_a_keyless_run_of_a_keyed_dag_fails_with_a_hint(airflow: LocalAirflow, lake: Lake) -> None:
    head = lake.table().snapshot_at().version
    run_id = trigger(airflow, "orders")
    assert ended(airflow, "orders", run_id) == "failed"
    assert "airflow dags clear DAG_ID --partition-key KEY" in log_of(airflow, "orders", "ingest")
    assert lake.table().snapshot_at().version == head


def test_a_clear_really_runs_again_and_takes_up_what_was_corrected(
    airflow: LocalAirflow, lake: Lake
) -> None:
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


def test_a_reprocess_and_a_run_by_hand_with_a_key_are_runs_like_any_other(
    airflow: LocalAirflow, lake: Lake
) -> None:
    names, head = lake.names(), lake.table().snapshot_at().version
    backfill(airflow, "2026-11-03", "2026-11-03", "orders", "--reprocess-behavior", "completed")
    airflow.wait_until(lambda: lake.table().snapshot_at().version == head + 2)
    airflow.wait_until(lambda: dict(keyed(airflow, "orders"))["2026-11-03"] == "success")
    assert lake.names() == names
    lake.put("2026-11-08", (8, 8, "Hal", "I"))
    assert (
        ended(airflow, "orders", trigger(airflow, "orders", partition_key="2026-11-08"))
        == "success"
    )
    airflow.wait_until(lambda: dict(keyed(airflow, "orders.copy")).get("2026-11-08") == "success")
    assert lake.names() == {**names, 8: "Hal"}


def test_a_worker_killed_in_a_metagen_is_followed_by_a_retry_that_applies_once(
    airflow: LocalAirflow, lake: Lake
) -> None:
    lake.put("2026-11-04", (4, 4, "Dora", "I"))
    versions = lake.table().snapshot_at().version
    backfill(airflow, "2026-11-04", "2026-11-04")
    drivers: list[psutil.Process] = []

    def is_submitted() -> bool:
        drivers[:] = drivers_of("metagen", lake.root)
        return bool(drivers)

    airflow.wait_until(is_submitted, pause_s=0.1)
    driver = drivers[0]
    time.sleep(1)  # well within its start
    for worker in driver.parents()[
        :2
    ]:  # the process of the task, and the executor's worker that watches it
        os.kill(worker.pid, signal.SIGKILL)
    assert driver.is_running(), (
        "the kill of a worker reached its Spark driver; the test shows nothing"
    )
    airflow.wait_until(lambda: dict(keyed(airflow, "orders")).get("2026-11-04") == "success")
    metagen = next(task for task in of_key(airflow, "2026-11-04") if task["task_id"] == "metagen")
    assert metagen["try_number"] == 2
    result = airflow.result("orders", metagen["dag_run_id"], "metagen")
    settle(airflow, *HEADS)
    assert not drivers_of("metagen", lake.root)
    assert lake.table().snapshot_at().version == versions + 2, (
        "the MetaGen was applied more than once"
    )
    assert result["version"] == versions + 2
    assert lake.names() == {1: "Hannah", 3: "Cid", 4: "Dora", 8: "Hal"}


def test_a_consumer_that_was_paused_gets_every_version_and_every_key_later(
    airflow: LocalAirflow, lake: Lake
) -> None:
    seen = len(lake.notes("copy"))
    for dag_id in ("orders.copy", "orders.follow"):
        pause(airflow, dag_id, paused=True)
    lake.put("2026-11-05", (5, 5, "Eve", "I"))
    lake.put("2026-11-06", (6, 6, "Fay", "I"))
    backfill(airflow, "2026-11-05", "2026-11-06")
    airflow.wait_until(
        lambda: [dict(keyed(airflow, "orders")).get(key) for key in days(5, 6)] == ["success"] * 2
    )
    run_id = trigger(airflow, "tell_again")
    assert ended(airflow, "tell_again", run_id) == "success"
    waiting = airflow.result("tell_again", run_id, "report")
    assert "2 keys (2026-11-05, 2026-11-06) of lake.orders wait" in waiting["orders.copy"]
    assert "the DAG 'orders.follow' is paused" in waiting["orders.follow"]
    for dag_id in ("orders.copy", "orders.follow"):
        pause(airflow, dag_id, paused=False)
    settle(airflow, "orders.copy", "orders.follow")
    assert len(lake.notes("copy")) == seen, (
        "Airflow kept the events of a paused DAG: the Airflow guide and the reconcile DAG say that "
        "it drops them"
    )
    run_id = trigger(airflow, "tell_again")
    assert ended(airflow, "tell_again", run_id) == "success"
    airflow.wait_until(
        lambda: {"2026-11-05", "2026-11-06"} <= {note["key"] for note in lake.notes("copy")}
    )
    settle(airflow, *HEADS)
    assert len(lake.notes("copy")) == seen + 2
    lake.expect_no_gap("follow-orders", "orders")
    run_id = trigger(airflow, "tell_again")
    assert ended(airflow, "tell_again", run_id) == "success"
    states = {task["task_id"]: task["state"] for task in airflow.tasks("tell_again", run_id)}
    assert states.pop("report") == "success"
    assert {*states.values()} == {"skipped"}


def test_a_scheduler_that_dies_in_the_middle_of_a_cascade_is_no_loss(
    airflow: LocalAirflow, lake: Lake
) -> None:
    lake.put("2026-11-07", (7, 7, "Gus", "I"))
    backfill(airflow, "2026-11-07", "2026-11-07")
    airflow.wait_until(
        lambda: (
            [task["state"] for task in of_key(airflow, "2026-11-07") if task["task_id"] == "ingest"]
            == ["success"]
        )
    )
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


def test_a_consumer_that_was_paused_past_the_window_gets_its_keys_and_what_it_has_lost_is_named(
    airflow: LocalAirflow, lake: Lake
) -> None:
    lake.put("2026-11-09", (9, 9, "Ida", "I"))
    backfill(airflow, "2026-11-09", "2026-11-09")
    airflow.wait_until(lambda: "2026-11-09" in succeeded(airflow, "orders.copy"))
    settle(airflow, "orders.copy", "orders.follow")
    for dag_id in ("orders.copy", "orders.follow"):
        pause(airflow, dag_id, paused=True)
    table, seen = lake.table(), max(note["to"] for note in lake.notes("follow-orders"))
    for number, key in enumerate(days(10, 11), start=10):
        table.ingest(
            pa.table({"id": [number], "at": [number], "name": [key], "op": ["I"]}),
            [False],
            partition_key=key,
        )
        table.metagen(partition_key=key)
    last = table.snapshot_at().version
    while table.snapshot_at().root.oldest_version < last:
        time.sleep(0.2)
        table.retain(window="1s", grace="1s")
    pause(airflow, "orders.copy", paused=False)
    run_id = trigger(airflow, "tell_again")
    assert ended(airflow, "tell_again", run_id) == "success"
    assert {task["task_id"]: task["state"] for task in airflow.tasks("tell_again", run_id)} == {
        "orders.copy": "success",
        "orders.follow": "failed",
        "report": "success",
    }
    report = airflow.result("tell_again", run_id, "report")
    assert "orders.copy: 2 keys (2026-11-10, 2026-11-11) of lake.orders" in report["orders.copy"]
    assert f"has seen version {seen} of {table.uri}" in report["orders.follow"]
    assert f"has seen version {seen} of {table.uri}" in log_of(
        airflow, "tell_again", "orders.follow", run_id
    )
    airflow.wait_until(lambda: {*days(10, 11)} <= succeeded(airflow, "orders.copy"))
    copied = {note["key"]: note["rows"] for note in lake.notes("copy")}
    assert [copied[key] for key in days(10, 11)] == [[[10, "2026-11-10"]], [[11, "2026-11-11"]]]


def test_opal_check_finds_nothing_after_all_runs(lake: Lake) -> None:
    for path in lake.root.glob("*/*"):
        assert check_table(Table.open(str(path))) == []
