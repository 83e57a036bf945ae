"""Airflow's REST API, used as the UI does: log in, look, trigger, wait."""

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
ANSWER_S = 180  # the api-server's time for an answer
_DATABASE_ERROR = "Database error"  # Airflow's words for an error of its database


class ApiError(RuntimeError):
    """An error that the REST API returned."""


@dataclass(slots=True, kw_only=True)
class AirflowApi:
    """A running Airflow. Subclasses know its URL and the password."""

    _token: str = ""

    @property
    def url(self) -> str:
        raise NotImplementedError

    @property
    def password(self) -> str:
        raise NotImplementedError

    @property
    def logs(self) -> str:
        """The folder or the command with the logs, for messages about a failure."""
        raise NotImplementedError

    def api(self, method: str, path: str, body: Any = None) -> Any:
        """Return an answer of the REST API, below /api/v2.

        It asks again when the login has expired, or SQLite was busy.
        """
        for attempt in range(1, TRIES + 1):
            try:
                if not self._token:
                    login = {"username": USER, "password": self.password}
                    answer = request("POST", f"{self.url}/auth/token", login, {})
                    self._token = answer["access_token"]
                headers = {"Authorization": f"Bearer {self._token}"}
                return request(method, f"{self.url}/api/v2{path}", body, headers)
            except urllib.error.HTTPError as error:
                text = error.read().decode(errors="replace")[:2000]
                is_rolled_back = error.code >= 500 and (method == "GET" or _DATABASE_ERROR in text)
                if attempt == TRIES or not (error.code == 401 or is_rolled_back):
                    raise ApiError(f"{method} {path}: {error.code} {text}") from error
                if error.code == 401:
                    self._token = ""
                else:
                    time.sleep(attempt)
        raise AssertionError("unreachable")

    def runs(self, dag_id: str) -> list[dict[str, Any]]:
        """Return the runs of a DAG, oldest first."""
        return list(self.api("GET", f"/dags/{dag_id}/dagRuns?limit=100&order_by=id")["dag_runs"])

    def tasks(self, dag_id: str, run_id: str) -> list[dict[str, Any]]:
        return list(
            self.api("GET", f"/dags/{dag_id}/dagRuns/{run_id}/taskInstances")["task_instances"]
        )

    def result(self, dag_id: str, run_id: str, task_id: str) -> dict[str, Any]:
        """Return the result of a task."""
        value = self.api(
            "GET",
            f"/dags/{dag_id}/dagRuns/{run_id}/taskInstances/{task_id}/xcomEntries/return_value",
        )["value"]
        return dict(json.loads(value) if isinstance(value, str) else value)

    def wait_until(
        self, holds: Callable[[], bool], most_s: float = 600, pause_s: float = 1
    ) -> None:
        """Wait for a condition; raise TimeoutError if it does not become true."""
        end = time.monotonic() + most_s
        while not _holds(holds):
            if time.monotonic() > end:
                raise TimeoutError(
                    f"the DAG runs did not end in {most_s:.0f} s; the logs are in {self.logs}; "
                    f"still running: {self._pending()}"
                )
            time.sleep(pause_s)

    def _pending(self) -> str:
        """Return the runs that have not ended, with the states of their tasks."""
        with suppress(OSError, ApiError):
            answer = self.api("GET", "/dags/~/dagRuns?state=queued&state=running&limit=100")
            lines = []
            for run in answer["dag_runs"]:
                tasks = self.tasks(run["dag_id"], run["dag_run_id"])
                states = ", ".join(f"{task['task_id']}={task['state']}" for task in tasks)
                lines.append(f"{run['dag_id']} {run['dag_run_id']} ({run['state']}: {states})")
            return "; ".join(lines) if lines else "no DAG run"
        return "unknown, because the API does not answer"


@dataclass(slots=True, kw_only=True)
class DeployedAirflow(AirflowApi):
    """An Airflow that runs already."""

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
        return "the output of `docker compose logs`"


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
            f"Airflow did not answer {method} {url} in {ANSWER_S} s; "
            "give the machine less work, then try again"
        ) from error
    return json.loads(text) if text else None


def _holds(holds: Callable[[], bool]) -> bool:
    try:
        return holds()
    # Airflow is starting, or restarting. URLError is an OSError.
    except (OSError, KeyError, ApiError):
        return False
