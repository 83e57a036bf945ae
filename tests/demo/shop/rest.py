"""Airflow's REST API, as a user of the UI would use it: log in, look, trigger, wait."""

import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

USER = "admin"
TRIES = 4
ANSWER_S = 180  # of the api-server to a request
_DATABASE_ERROR = "Database error"  # so Airflow calls what its database refused


class ApiError(RuntimeError):
    """The REST API refused."""


@dataclass(slots=True, kw_only=True)
class AirflowApi:
    """An Airflow that is up, wherever it runs; the heirs say where, and who logs in."""

    _token: str = ""

    @property
    def url(self) -> str:
        raise NotImplementedError

    @property
    def password(self) -> str:
        raise NotImplementedError

    @property
    def logs(self) -> str:
        """Where to look when something failed."""
        raise NotImplementedError

    def api(self, method: str, path: str, body: Any = None) -> Any:
        """An answer of the REST API, below /api/v2. Asked again when the login has run out, or SQLite was busy."""
        for attempt in range(1, TRIES + 1):
            try:
                if not self._token:
                    login = {"username": USER, "password": self.password}
                    self._token = request("POST", f"{self.url}/auth/token", login, {})[
                        "access_token"
                    ]
                return request(
                    method,
                    f"{self.url}/api/v2{path}",
                    body,
                    {"Authorization": f"Bearer {self._token}"},
                )
            except urllib.error.HTTPError as error:
                answer = error.read().decode(errors="replace")[:2000]
                rolled_back = error.code >= 500 and (method == "GET" or _DATABASE_ERROR in answer)
                if attempt == TRIES or not (error.code == 401 or rolled_back):
                    raise ApiError(f"{method} {path}: {error.code} {answer}") from error
                if error.code == 401:
                    self._token = ""
                else:
                    time.sleep(attempt)
        raise AssertionError("unreachable")

    def runs(self, dag_id: str) -> list[dict[str, Any]]:
        """Runs of a DAG, oldest first."""
        return list(self.api("GET", f"/dags/{dag_id}/dagRuns?limit=100&order_by=id")["dag_runs"])

    def tasks(self, dag_id: str, run_id: str) -> list[dict[str, Any]]:
        return list(
            self.api("GET", f"/dags/{dag_id}/dagRuns/{run_id}/taskInstances")["task_instances"]
        )

    def result(self, dag_id: str, run_id: str, task_id: str) -> dict[str, Any]:
        """What a task returned."""
        value = self.api(
            "GET",
            f"/dags/{dag_id}/dagRuns/{run_id}/taskInstances/{task_id}/xcomEntries/return_value",
        )["value"]
        return dict(json.loads(value) if isinstance(value, str) else value)

    def wait_until(
        self, holds: Callable[[], bool], most_s: float = 600, pause_s: float = 1
    ) -> None:
        """Look until it holds; TimeoutError if it never does."""
        end = time.monotonic() + most_s
        while not _holds(holds):
            if time.monotonic() > end:
                raise TimeoutError(
                    f"the DAG runs did not end in {most_s:.0f} s; the logs are in {self.logs}; still running: {self._pending()}"
                )
            time.sleep(pause_s)

    def _pending(self) -> str:
        """Runs that have not ended, with the states of their tasks."""
        with suppress(OSError, ApiError):
            runs = self.api("GET", "/dags/~/dagRuns?state=queued&state=running&limit=100")[
                "dag_runs"
            ]
            lines = []
            for run in runs:
                tasks = self.tasks(run["dag_id"], run["dag_run_id"])
                states = ", ".join(f"{task['task_id']}={task['state']}" for task in tasks)
                lines.append(f"{run['dag_id']} {run['dag_run_id']} ({run['state']}: {states})")
            return "; ".join(lines) or "no run"
        return "unknown, the API does not answer"


@dataclass(slots=True, kw_only=True)
class DeployedAirflow(AirflowApi):
    """One that somebody else started and watches over."""

    address: str
    secret: str

    @property
    def url(self) -> str:
        return self.address

    @property
    def password(self) -> str:
        return self.secret

    @property
    def logs(self) -> str:
        return "what `docker compose logs` prints"


def request(method: str, url: str, body: Any, headers: Mapping[str, str]) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(
        url, data, {"Content-Type": "application/json", **headers}, method=method
    )
    try:
        with urllib.request.urlopen(request, timeout=ANSWER_S) as answer:
            text = answer.read()
    except TimeoutError as error:
        raise TimeoutError(
            f"Airflow did not answer {method} {url} in {ANSWER_S} s; give the machine less to do, then try again"
        ) from error
    return json.loads(text) if text else None


def _holds(holds: Callable[[], bool]) -> bool:
    """Not while Airflow is still coming up, or restarting."""
    try:
        return holds()
    except (OSError, KeyError, ApiError):  # URLError is an OSError
        return False
