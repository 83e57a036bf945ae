"""Spark's submit hook with additions for Opal jobs: no secrets on the command line, a process group to kill, the URL of the Spark UI."""

import logging
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any

from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook
from airflow.sdk.exceptions import AirflowFailException

from airflow_provider_opal.secrets import mask, redacted

_log = logging.getLogger(__name__)

_UI = re.compile(r"^Spark UI: (\S+)")
_HISTORY = re.compile(r"^Spark history: (\S+)")
_MASTER = re.compile(r"local(\[[^\]]+\])?|local-cluster\[[^\]]+\]|yarn|k8s://.+|spark://[^/]+:\d+")
# How YARN's and Kubernetes' reports name the exit code of an app that ran elsewhere
_APP_STATUS = re.compile(
    r"User application exited with (?:status )?(\d+)|phase=Failed exit_code=(\d+)"
)
_EVENTS_URL = "LAKECHIME_URL"
_PYTHON = "spark.pyspark.python"
# With one of them an app may find its packages on a cluster
_PACKAGES = (
    _PYTHON,
    "spark.archives",
    "spark.submit.pyFiles",
    "spark.yarn.appMasterEnv.PYSPARK_PYTHON",
    "spark.yarn.dist.archives",
    "spark.kubernetes.container.image",
    "spark.kubernetes.driver.container.image",
)
_UPLOAD = "spark.kubernetes.file.upload.path"
_GRACE_S = 3.0  # Airflow itself waits five seconds between SIGTERM and SIGKILL


class OpalSubmitHook(SparkSubmitHook):
    """Starts spark-submit in a process group of its own, because killing the JVM alone leaves the Python driver alive, able to commit."""

    # What happens while the job runs; the operator sets them
    on_started: Callable[[dict[str, Any]], None] = staticmethod(lambda process: None)
    on_ui: Callable[[str], None] = staticmethod(lambda url: None)
    on_history: Callable[[str], None] = staticmethod(lambda url: None)

    # What is shown nowhere; see `hiding`
    _secrets: tuple[str, ...] = ()
    _hidden_environment: Mapping[str, str] = MappingProxyType({})

    # What a line has said of why it will fail
    _cause: str | None = None

    # What spark-submit found missing on this machine, so that nothing was submitted
    lack: str | None = None

    @property
    def is_client(self) -> bool:
        """Whether the driver runs beside spark-submit, on this machine."""
        return bool(self._connection["deploy_mode"] != "cluster")

    @property
    def is_local(self) -> bool:
        """Whether the workers run on this machine, too."""
        return str(self._connection["master"]).startswith("local")

    @property
    def is_yarn_cluster(self) -> bool:
        """Whether the driver runs in YARN."""
        return bool(self._is_yarn_cluster_mode)

    def app_status(self, failure: Exception | None) -> int | None:
        """The app's exit code, if Spark reports it. For a remote driver it is only in the log."""
        if self.is_client:
            return None if self._submit_sp is None else self._submit_sp.returncode
        statuses = _APP_STATUS.findall(
            "\n".join([*self._last_submit_log_lines, str(failure or "")])
        )
        return int("".join(statuses[-1])) if statuses else self._spark_exit_code

    def cause(self, failure: Exception | None) -> str | None:
        """Why it failed, and what to do about it, where that is known."""
        from airflow_provider_opal.hooks.causes import cause_of_end, cause_of_start

        return (
            cause_of_start(failure)
            or self.lack
            or self._cause
            or cause_of_end(self.app_status(failure))
        )

    @property
    def log_command(self) -> str | None:
        """How to read the log of a remote driver."""
        if not self.is_client and self._yarn_application_id:
            return f"yarn logs -applicationId {self._yarn_application_id}"
        if not self.is_client and self._kubernetes_driver_pod:
            return f"kubectl logs {self._kubernetes_driver_pod} --namespace {self._connection['namespace'] or 'default'}"
        return None

    def check_master(self) -> None:
        """Refuse what spark-submit would refuse, or take for something else, with a stack trace."""
        master = self._connection["master"]
        if not _MASTER.fullmatch(master):
            raise AirflowFailException(
                f"the Spark connection {self._conn_id!r} leads to the master {master!r}, which Spark does not know. Set its host to "
                "local[2], spark://host:7077, yarn or k8s://https://host:6443, without a prefix"
            )
        if not self.is_client and (self.is_local or master.startswith("spark://")):
            raise AirflowFailException(
                f"Spark cannot run a Python driver inside the cluster of {master!r}: give the Spark connection {self._conn_id!r} "
                "the deploy mode client, so that the driver runs beside the Airflow worker"
            )

    def doubts(self, application: str) -> Iterator[str]:
        """What the cluster may lack. Its nodes may have all, or Spark's own settings say it, so that these are no errors."""
        if self.is_local or self._properties_file:
            return
        if not (self._archives or self._py_files or any(name in self._conf for name in _PACKAGES)):
            yield (
                "the Python workers of the cluster need opal_lake and pyarrow. Unless they are installed there, build "
                "an archive with `opal pack`, and give what it prints: archives='environment.tar.gz#environment', and in conf "
                f"{_PYTHON}='./environment/bin/python'"
            )
        if (
            self._is_kubernetes
            and not self.is_client
            and "://" not in application
            and _UPLOAD not in self._conf
        ):
            yield (
                f"the driver's pod cannot see {application}. Set {_UPLOAD} in conf, or name the app in the image: "
                "app='local:///path/to/opal_spark/submit/app.py'"
            )

    def track_on_yarn(self) -> bool:
        """Poll the resource manager for the application's state, if the connection names its address."""
        extra = self.get_connection(self._conn_id).extra_dejson
        self._yarn_track_via_rm_api = self._yarn_track_via_rm_api or bool(
            extra.get(self._YARN_RM_WEBAPP_ADDRESS_EXTRA_KEY)
        )
        return self._yarn_track_via_rm_api

    def find_modules_in(self, folders: Iterable[str]) -> None:
        """Let the driver and local workers import modules of these folders. A cluster needs them by other means."""
        if self.is_client:
            given = dict(self._env_vars or {})
            before = given.get("PYTHONPATH") or os.environ.get("PYTHONPATH")
            self._env_vars = {
                **given,
                "PYTHONPATH": os.pathsep.join([*folders, *filter(None, [before])]),
            }

    def follow(self, external_id: str) -> None:
        """Remember the application of an earlier try, so that a kill reaches it."""
        if self._is_yarn_cluster_mode:
            self._yarn_application_id = external_id

    @contextmanager
    def hiding(self, conf: Mapping[str, str], environment: Mapping[str, str]) -> Iterator[None]:
        """While the block runs, give Spark these settings, and its driver these variables, and show them nowhere."""
        given = self._properties_file
        self._hidden_environment = environment
        self._secrets = mask([*conf.items(), *environment.items()])
        try:
            with properties_file(
                {**conf, **self._as_conf(environment)}, given
            ) as self._properties_file:
                yield
        finally:
            self._properties_file = given

    def redacted(self, text: str) -> str:
        """The text with secrets masked."""
        return redacted(text, self._secrets)

    def submit(self, application: str = "", **kwargs: Any) -> str | None:
        """As Airflow's, in a new process session."""
        return super().submit(application, start_new_session=True, **kwargs)

    def _build_spark_submit_command(self, application: str) -> list[str]:
        if (
            self.is_client and not self.is_local and _PYTHON in self._conf
        ):  # a path on the cluster, and the driver runs here
            self._conf = {
                "spark.pyspark.driver.python": os.environ.get(
                    "PYSPARK_DRIVER_PYTHON", sys.executable
                ),
                **self._conf,
            }
        command: list[str] = super()._build_spark_submit_command(application)
        # Here and no earlier: Airflow's method replaces the environment by `env_vars`
        self._env = {**self._own_environment(), **(self._env or {}), **self._hidden_environment}
        return command

    def _own_environment(self) -> dict[str, str]:
        """The Java that Spark is installed with, and this Python for what runs on this machine; YARN would carry it to the cluster.

        The task registers what the job commits, under its own name of the table: the job itself does not.
        """
        names = ["PYSPARK_DRIVER_PYTHON"] if self.is_client else []
        names += ["PYSPARK_PYTHON"] if self.is_local else []
        silenced = {_EVENTS_URL: ""} if _EVENTS_URL in os.environ else {}
        return {
            **java_environment(),
            **{name: sys.executable for name in names if name not in os.environ},
            **silenced,
        }

    def _as_conf(self, environment: Mapping[str, str]) -> dict[str, str]:
        """Environment variables of a remote driver are Spark settings."""
        if self.is_client:
            return {}
        prefix = "spark.yarn.appMasterEnv" if self._is_yarn else "spark.kubernetes.driverEnv"
        return {f"{prefix}.{name}": value for name, value in environment.items()}

    def _get_spark_binary_path(self) -> list[str]:
        [binary] = super()._get_spark_binary_path()
        beside = Path(sys.executable).with_name(binary)
        command = [str(beside)] if shutil.which(binary) is None and beside.exists() else [binary]
        return [*command, "--load-spark-defaults"] if self._properties_file else command

    def _process_spark_submit_log(self, itr: Iterator[Any]) -> None:
        if self._submit_sp is not None:
            self.on_started(process_identity(self._submit_sp.pid))
        super()._process_spark_submit_log(self._watched(itr))

    def _watched(self, lines: Iterable[str]) -> Iterator[str]:
        from airflow_provider_opal.hooks.causes import cause_in, lack_in

        for line in lines:
            if match := _UI.match(line):
                self.on_ui(match[1])
            if match := _HISTORY.match(line):
                self.on_history(match[1])
            self.lack = self.lack or lack_in(line)
            self._cause = self._cause or cause_in(
                line, str(self._connection["master"]), self._conn_id
            )
            yield self.redacted(line)

    def on_kill(self) -> None:
        """Ends the whole group, and what Airflow's hook knows to end.

        A driver on a cluster comes first: Airflow's hook asks for its end only while spark-submit runs.
        """
        running = (
            self._submit_sp
            if self._submit_sp is not None and self._submit_sp.poll() is None
            else None
        )
        if not self.is_client:
            super().on_kill()
        if running is not None:
            end_group(running.pid, lambda: running.poll() is not None)
        if self.is_client:
            super().on_kill()


def java_environment() -> dict[str, str]:
    """The Java of the `java` extra, if there is no other."""
    if "JAVA_HOME" in os.environ or shutil.which("java"):
        return {}
    answer = subprocess.run(
        [sys.executable, "-m", "opal_spark.engine.java"],
        capture_output=True,
        text=True,
        check=False,
    )
    if answer.returncode != 0:  # Spark's own settings may still name one, so that this is no error
        _log.warning("%s", answer.stderr.strip())
        return {}
    return {"JAVA_HOME": answer.stdout.strip()}


@contextmanager
def properties_file(conf: Mapping[str, str], given: str | None) -> Iterator[str | None]:
    """Secret properties in a temporary file that only this user can read, appended to those `given`."""
    if not conf:
        yield given
        return
    with tempfile.TemporaryDirectory(prefix="opal-submit-") as folder:
        path = Path(folder) / "spark.properties"
        lines = [f"{name}={_escaped(value)}" for name, value in conf.items()]
        with os.fdopen(
            os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8"
        ) as file:
            file.write(
                "\n".join([Path(given).read_text(encoding="utf-8") if given else "", *lines, ""])
            )
        yield str(path)


def _escaped(value: str) -> str:
    """Escape a value for a Java properties file."""
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r")


def process_identity(pid: int) -> dict[str, Any]:
    """An identity that tells a process from a later one with the same id, here or on another machine."""
    return {"host": socket.gethostname(), "pid": pid, "started": _started(pid)}


def _started(pid: int) -> str | None:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        answer = subprocess.run(
            ["ps", "-o", "lstart=", "-p", str(pid)], capture_output=True, text=True, check=False
        )
        return answer.stdout.strip() or None


def end_left_over(process: Mapping[str, Any]) -> bool:
    """End the process group that an earlier try left running. False if it is gone, or on another machine."""
    pid = int(process["pid"])
    if (
        process["host"] != socket.gethostname()
        or process["started"] is None
        or _started(pid) != process["started"]
    ):
        return False
    end_group(pid, lambda: _started(pid) != process["started"])
    return True


def end_group(leader: int, is_gone: Callable[[], bool]) -> None:
    """Ask, then insist."""
    for how in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(leader, how)
        waited = 0.0
        while how == signal.SIGTERM and waited < _GRACE_S and not is_gone():
            time.sleep(0.1)
            waited += 0.1
