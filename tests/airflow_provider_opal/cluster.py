"""A real Airflow for tests: scheduler, dag-processor, triggerer and api-server on SQLite, in processes of their own."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

COMPONENTS = ("api-server", "scheduler", "dag-processor", "triggerer")
START_S, RUN_S = 180, 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Where it lives, and how to speak to it: by Airflow's own command line, as a user would."""

    home: Path
    environment: Mapping[str, str]

    def airflow(self, *arguments: str, check: bool = True) -> str:
        command = [str(Path(sys.executable).with_name("airflow")), *arguments]
        done = subprocess.run(command, env=dict(self.environment), capture_output=True, text=True, timeout=120)
        assert done.returncode == 0 or not check, done.stdout[-3000:] + done.stderr[-3000:]
        return done.stdout

    def runs(self, dag_id: str) -> list[dict[str, Any]]:
        return self.listed("dags", "list-runs", dag_id)

    def listed(self, *arguments: str) -> list[dict[str, Any]]:
        """What a listing says; Airflow may write warnings in front of it."""
        lines = self.airflow(*arguments, "--output", "json", check=False).splitlines()
        return next((list(json.loads(line)) for line in lines if line.startswith(("[{", "[]"))), [])

    def wait_for_run(self, dag_id: str, run_id: str) -> str:
        """The state that a run ends in."""
        end = time.monotonic() + RUN_S
        while time.monotonic() < end:
            state = next((run["state"] for run in self.runs(dag_id) if run["run_id"] == run_id), None)
            if state in ("success", "failed"):
                return str(state)
            time.sleep(2)
        raise TimeoutError(f"{dag_id} {run_id} has not ended; the logs are in {self.home}/logs")

    def logs(self) -> str:
        """The ends of all logs, for a failed assertion."""
        texts = [f"== {path}\n{path.read_text(errors='replace')[-3000:]}" for path in sorted(self.home.rglob("*.log"))]
        return "\n".join(texts)[-20000:]


@contextmanager
def running_airflow(
    home: Path, dags: Path, connections: Mapping[str, Mapping[str, Any]], variables: Mapping[str, str]
) -> Iterator[Cluster]:
    port = _free_port()
    environment = {
        **os.environ,
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__CORE__DAGS_FOLDER": str(dags),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__PARALLELISM": "2",
        "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"http://127.0.0.1:{port}/execution/",
        "AIRFLOW__API__BASE_URL": f"http://127.0.0.1:{port}",
        "AIRFLOW__API__HOST": "127.0.0.1",
        "AIRFLOW__API__PORT": str(port),
        "AIRFLOW__API__WORKERS": "1",
        "AIRFLOW__API_AUTH__JWT_SECRET": "of-the-tests-and-long-enough-for-the-algorithm-that-signs-with-it-0123456789",
        "AIRFLOW__DAG_PROCESSOR__REFRESH_INTERVAL": "5",
        "AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "5",
        "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "20",
        "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT_DETECTION_INTERVAL": "3",
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        **{f"AIRFLOW_CONN_{name.upper()}": json.dumps(connection) for name, connection in connections.items()},
        **{f"AIRFLOW_VAR_{name.upper()}": value for name, value in variables.items()},
    }
    cluster = Cluster(home=home, environment=environment)
    home.mkdir(parents=True, exist_ok=True)
    cluster.airflow("db", "migrate")
    binary = str(Path(sys.executable).with_name("airflow"))
    processes = []
    try:
        for name in COMPONENTS:
            with (home / f"{name}.log").open("w") as log:
                process = subprocess.Popen([binary, name], env=environment, stdout=log, stderr=log, start_new_session=True)
            processes.append(process)
        yield cluster
    finally:
        for process in processes:
            _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    for how in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, how)
            process.wait(15)
        except (ProcessLookupError, subprocess.TimeoutExpired):
            continue


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])
