"""The memory and CPU of a triggerer while 1,000 sensors wait for data-change events.

    python -m tests.bench.waiting [--sensors 1000] [--seconds 60]

A real triggerer of a real Airflow, whose database is set so that many tasks are deferred: to start
each of them would take an hour. Prints the memory of its processes (RSS, and PSS, which counts
shared pages once), the CPU that it takes, and how long the sensors take to wake.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import psutil

from lakechime import DataChangeEvent, LakeChime, TableFormat
from tests.demo.shop.local_airflow import LocalAirflow, local_airflow

AIM_MB = 300
PAGE = 500
DAG = """
from datetime import datetime
from airflow.sdk import DAG
from airflow_provider_opal import PartitionTriggerSensor
with DAG("waiting", schedule=None, start_date=datetime(2026, 11, 1)):
    for number in range({sensors}):
        PartitionTriggerSensor(
            task_id=f"wait_{{number}}",
            table=f"shop.t{{number}}",
            partition=["a"],
            deferrable=True,
        )
"""
# Run as a server of Airflow, which may use its database
DEFER = """
import sys
from airflow.models.dagrun import DagRun
from airflow.models.taskinstance import TaskInstance
from airflow.models.trigger import Trigger
from airflow.utils.session import create_session
from airflow_provider_opal.triggers.events import EventsTrigger
with create_session() as session:
    for ti in session.query(TaskInstance).filter_by(dag_id="waiting"):
        number = ti.task_id.removeprefix("wait_")
        made = EventsTrigger(
            lakechime_conn_id="lakechime_default",
            tables=[["default", f"shop.t{number}"]],
            partition=["a"],
            after=0,
            poke_interval_s=1.0,
        )
        trigger = Trigger(*made.serialize())
        session.add(trigger)
        session.flush()
        ti.trigger_id, ti.state = trigger.id, "deferred"
        ti.next_method, ti.next_kwargs = "resume", {}
"""


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sensors", type=int, default=1000)
    parser.add_argument("--seconds", type=int, default=60, help="how long to look at what it takes")
    args = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="opal-waiting-") as folder:
        dags = Path(folder) / "dags"
        dags.mkdir()
        (dags / "waiting.py").write_text(DAG.format(sensors=args.sensors))
        with local_airflow(
            Path(folder) / "airflow",
            dags,
            {"AIRFLOW__DAG_PROCESSOR__DAG_FILE_PROCESSOR_TIMEOUT": "300"},
        ) as airflow:
            measure(airflow, args.sensors, args.seconds)
    return 0


def measure(airflow: LocalAirflow, sensors: int, seconds: int) -> None:
    show("idle", airflow)
    airflow.stop("triggerer")
    airflow.wait_until(
        lambda: any(dag["dag_id"] == "waiting" for dag in airflow.api("GET", "/dags")["dags"])
    )
    run_id = airflow.api("POST", "/dags/waiting/dagRuns", {"logical_date": None})["dag_run_id"]
    airflow.stop("scheduler")  # or it would run the tasks; the DAG is paused as it is
    subprocess.run(
        [sys.executable, "-c", DEFER],
        env={**airflow.environment, "_AIRFLOW_PROCESS_CONTEXT": "server"},
        check=True,
    )
    with LakeChime.open(f"sqlite:///{airflow.home}/lakechime.db") as client:
        airflow.start("triggerer")
        log = airflow.home / "triggerer.log"
        airflow.wait_until(
            lambda: (
                log.read_text(errors="replace").count("trigger waiting/") >= sensors
                or _created(airflow, sensors)
            )
        )
        time.sleep(15)
        before, begun = cpu_seconds(airflow), time.monotonic()
        time.sleep(seconds)
        took = time.monotonic() - begun
        show(f"{sensors:,} sensors wait", airflow)
        print(
            f"CPU while they wait              {(cpu_seconds(airflow) - before) / took:8.1%} of a "
            "core"
        )
        begun = time.monotonic()
        events = [
            DataChangeEvent(
                table=f"shop.t{number}",
                partition=("a",),
                snapshot_id="1",
                table_format=TableFormat.ICEBERG,
            )
            for number in range(sensors)
        ]
        for first in range(0, sensors, PAGE):
            client.register(events[first : first + PAGE])
        airflow.wait_until(lambda: waiting(airflow, run_id) == 0)
        print(f"all {sensors:,} woken after          {time.monotonic() - begun:8.1f} s")


def _created(airflow: LocalAirflow, sensors: int) -> bool:
    """Return whether the triggers are created, by the triggerer's line each minute."""
    return f"{sensors} triggers currently running" in (airflow.home / "triggerer.log").read_text(
        errors="replace"
    )


def waiting(airflow: LocalAirflow, run_id: str) -> int:
    return int(
        airflow.api("GET", f"/dags/waiting/dagRuns/{run_id}/taskInstances?state=deferred&limit=1")[
            "total_entries"
        ]
    )


def family(airflow: LocalAirflow) -> list[psutil.Process]:
    leader = psutil.Process(airflow.processes["triggerer"].pid)
    return [leader, *leader.children(recursive=True)]


def cpu_seconds(airflow: LocalAirflow) -> float:
    return sum(sum(process.cpu_times()[:2]) for process in family(airflow))


def show(what: str, airflow: LocalAirflow) -> None:
    print(what)
    for process in family(airflow):
        memory = process.memory_full_info()
        rss, pss = memory.rss / 1e6, getattr(memory, "pss", memory.rss) / 1e6
        print(
            f"  {process.name()[:28]:<28} RSS {rss:7.0f} MB, PSS {pss:7.0f} MB   (aim: at most "
            f"{AIM_MB} MB)"
        )


if __name__ == "__main__":
    sys.exit(main())
