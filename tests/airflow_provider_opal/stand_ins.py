"""Stand-ins for a cluster: recording commands, and a server as of YARN."""

import json
import os
import shutil
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_opal.operators.spark import OpalSparkOperator

ROOT = Path(__file__).parents[2]

# Notes argv, the properties file and its mode, and the environment; prints the given lines; may do
# the app's work before it ends
SPARK_SUBMIT = """#!{python}
import json, os, sys, time
sys.path[:0] = {path!r}
argv = sys.argv[1:]
file = argv[argv.index("--properties-file") + 1] if "--properties-file" in argv else None
note = dict(argv=argv, pid=os.getpid(), environment=dict(os.environ))
if file:
    note.update(properties=open(file).read(), mode=os.stat(file).st_mode)
with open({notes!r}, "a") as notes:
    notes.write(json.dumps(note) + "\\n")
for line in {lines!r}:
    print(line, flush=True)
if {echo!r} and file:
    values = [os.environ.get(name, "") for name in {echo!r}]
    print(open(file).read(), *values, sep="\\n", flush=True)
if {works!r}:
    from opal_lake.operations.job_spec import JobSpec
    from opal_lake.result import JobResult
    from opal_lake.engine.results import RESULT_KEPT_APART, keep_result
    from opal_lake.table import Table
    from tests.opal_lake.shop import rows
    spec = JobSpec.from_json(argv[argv.index("--spec") + 1])
    table = Table.open(spec.table)
    if spec.operation.name in RESULT_KEPT_APART:
        done = dict(operation=spec.operation.name, table=spec.table, token=spec.token)
        keep_result(table.storage, JobResult(**done, counts={{"files": 3}}))
    else:
        table.ingest(*rows([("a", 1, 1)]), token=spec.token)
time.sleep({pause_s!r})
sys.exit({status!r})
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Commands:
    """A folder in front of the PATH."""

    folder: Path

    def spark_submit(
        self,
        *lines: str,
        status: int = 0,
        works: bool = False,
        pause_s: float = 0,
        echo: Sequence[str] = (),
    ) -> None:
        text = SPARK_SUBMIT.format(
            python=sys.executable,
            path=[str(ROOT), str(ROOT / "spark_apps")],
            notes=str(self._notes("spark-submit")),
            lines=list(lines),
            status=status,
            works=works,
            pause_s=pause_s,
            echo=list(echo),
        )
        self._write("spark-submit", text)

    def plain(self, name: str) -> None:
        """Write a command that notes its arguments and succeeds."""
        self._write(
            name, f'#!/bin/sh\nprintf \'{{"argv": "%s"}}\\n\' "$*" >> \'{self._notes(name)}\'\n'
        )

    def notes(self, name: str = "spark-submit") -> list[dict[str, Any]]:
        """Return how a command was called, call by call."""
        notes = self._notes(name)
        return (
            [json.loads(line) for line in notes.read_text().splitlines()] if notes.exists() else []
        )

    def wait_for_start(self, name: str = "spark-submit") -> dict[str, Any]:
        end = time.monotonic() + 20
        while not self.notes(name):
            assert time.monotonic() < end, f"{name} was not started"
            time.sleep(0.05)
        return self.notes(name)[-1]

    def _notes(self, name: str) -> Path:
        return self.folder / f"{name}.notes"

    def _write(self, name: str, text: str) -> None:
        script = self.folder / name
        script.write_text(text)
        script.chmod(0o755)


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Commands:
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    assert shutil.which("yarn") is None, "these tests must not find a real YARN"
    return Commands(folder=folder)


@dataclass(slots=True, kw_only=True)
class Cluster:
    """The answers of YARN and Kubernetes, and the requests that they got."""

    url: str = ""
    # One an enquiry, the last one permanently; None: not found
    reports: list[Mapping[str, Any] | None] = field(default_factory=list)
    asked: list[tuple[str, str]] = field(default_factory=list)

    def report(self) -> Mapping[str, Any] | None:
        return self.reports.pop(0) if len(self.reports) > 1 else self.reports[0]


def yarn_report(state: str, final: str = "UNDEFINED", diagnostics: str = "") -> dict[str, Any]:
    return {"app": {"state": state, "finalStatus": final, "diagnostics": diagnostics}}


def pod(phase: str, exit_code: int | None = None) -> dict[str, Any]:
    ended = {"terminated": {"exitCode": exit_code, "reason": "Error" if exit_code else "Completed"}}
    containers = (
        []
        if exit_code is None
        else [
            {
                "image": "i",
                "imageID": "i",
                "name": "c",
                "ready": False,
                "restartCount": 0,
                "state": ended,
            }
        ]
    )
    return {
        "kind": "Pod",
        "apiVersion": "v1",
        "metadata": {"name": "p"},
        "status": {"phase": phase, "containerStatuses": containers},
    }


@contextmanager
def serving() -> Iterator[Cluster]:
    cluster = Cluster()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            report = cluster.report()
            body = json.dumps(
                report if report is not None else {"kind": "Status", "code": 404}
            ).encode()
            self.send_response(200 if report is not None else 404)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_PUT(self) -> None:
            text = self.rfile.read(int(self.headers.get("Content-Length", 0))).decode()
            cluster.asked.append((f"{self.command} {self.path.partition('?')[0]}", text))
            cluster.reports[:] = (
                [yarn_report("KILLED", "KILLED")] if "/ws/v1/" in self.path else [None]
            )
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"{}")

        do_DELETE = do_PUT  # the server's own spelling

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    cluster.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield cluster
    finally:
        server.shutdown()
        server.server_close()


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with serving() as cluster:
        yield cluster


class Store(dict[str, Any]):
    """Airflow's state store of a task or of an asset, as far as it is used."""

    def set(self, key: str, value: Any, **_: Any) -> None:
        self[key] = value


def task_instance(task: Any, *, clears: int = 0, run_id: str = "r") -> Any:
    """Return a task instance at its first try, after some clears."""
    names = {
        "dag_id": "d",
        "run_id": run_id,
        "task_id": task.task_id,
        "map_index": -1,
        "stats_tags": {},
    }
    return SimpleNamespace(
        **names,
        id=clears,
        try_number=clears + 1,
        max_tries=(task.retries or 0) + clears,
        xcom_push=dict,
    )


def context(
    task: OpalSparkOperator,
    *,
    clears: int = 0,
    store: Store | None = None,
    partition_key: str | None = None,
) -> Any:
    run = {
        "dag_run": SimpleNamespace(clear_number=clears),
        "partition_key": partition_key,
        "outlet_events": {},
    }
    return {
        "ti": task_instance(task, clears=clears),
        "task": task,
        "task_state_store": Store() if store is None else store,
        **run,
    }
