"""Spark's submit hook with additions for Opal jobs.

Secrets stay off the command line, the process group can be killed, and the URL of the Spark UI is
reported.
"""

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
# The exit code of a remote app, in the reports of YARN and Kubernetes
_APP_STATUS = re.compile(
    r"User application exited with (?:status )?(\d+)|phase=Failed exit_code=(\d+)"
)
_EVENTS_URL = "LAKECHIME_URL"
_PYTHON = "spark.pyspark.python"
# Settings by which an app may find its packages on a cluster
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
_LOOK_S = 0.1


class OpalSubmitHook(SparkSubmitHook):
    """A hook that starts spark-submit in its own process group.

    A kill of the JVM alone would leave the Python driver alive, and able to commit.
    """

    # Callbacks while the job runs; the operator sets them
    on_started: Callable[[dict[str, Any]], None] = staticmethod(lambda process: None)
    on_ui: Callable[[str], None] = staticmethod(lambda url: None)
    on_history: Callable[[str], None] = staticmethod(lambda url: None)

    # Secrets, which `hiding` sets. They are masked in all logs
    _secrets: tuple[str, ...] = ()
    _hidden_environment: Mapping[str, str] = MappingProxyType({})

    # The cause of a failure that a line of the log has named
    _cause: str | None = None

    # A message about what spark-submit lacks on this machine. Then nothing was submitted
    lack: str | None = None

    @property
    def is_client(self) -> bool:
        """True if the driver runs on this machine, next to spark-submit."""
        return bool(self._connection["deploy_mode"] != "cluster")

    @property
    def is_local(self) -> bool:
        """True if driver and workers run on this machine."""
        return str(self._connection["master"]).startswith("local")

    @property
    def is_yarn_cluster(self) -> bool:
        """True if the driver runs in YARN."""
        return bool(self._is_yarn_cluster_mode)

    def app_status(self, failure: Exception | None) -> int | None:
        """Return the app's exit code, if Spark reports it."""
        if self.is_client:
            return None if self._submit_sp is None else self._submit_sp.returncode
        # The exit code of a remote driver is only in the log
        report = "\n".join([*self._last_submit_log_lines, str(failure or "")])
        statuses = _APP_STATUS.findall(report)
        if not statuses:
            return self._spark_exit_code
        # YARN and Kubernetes have a group each, of which one is empty
        return int("".join(statuses[-1]))

    def cause(self, failure: Exception | None) -> str | None:
        """Return why the job failed and what to do about it; None if unknown."""
        from airflow_provider_opal.hooks.causes import cause_of_end, cause_of_start

        return (
            cause_of_start(failure)
            or self.lack
            or self._cause
            or cause_of_end(self.app_status(failure))
        )

    @property
    def log_command(self) -> str | None:
        """The command that shows the log of a remote driver."""
        if self.is_client:
            return None
        if self._yarn_application_id:
            return f"yarn logs -applicationId {self._yarn_application_id}"
        if self._kubernetes_driver_pod:
            namespace = self._connection["namespace"] or "default"
            return f"kubectl logs {self._kubernetes_driver_pod} --namespace {namespace}"
        return None

    def check_master(self) -> None:
        """Fail if spark-submit would refuse the master with a stack trace, or misread it."""
        master = self._connection["master"]
        if not _MASTER.fullmatch(master):
            raise AirflowFailException(
                f"the Spark connection {self._conn_id!r} names the master {master!r}, which Spark "
                "does not know. Set the connection's host to local[2], spark://host:7077, yarn or "
                "k8s://https://host:6443, without a prefix"
            )
        if not self.is_client and (self.is_local or master.startswith("spark://")):
            raise AirflowFailException(
                f"Spark cannot run a Python driver inside the cluster of {master!r}: give the "
                f"Spark connection {self._conn_id!r} the deploy mode client, so that the driver "
                "runs next to the Airflow worker"
            )

    def doubts(self, application: str) -> Iterator[str]:
        """Yield warnings about packages and files that the cluster may lack.

        These are not errors: the nodes may have them, or Spark's own settings may provide them.
        """
        if self.is_local or self._properties_file:
            return
        has_packages = any(name in self._conf for name in _PACKAGES)
        if not (self._archives or self._py_files or has_packages):
            yield (
                "the Python workers of the cluster need opal_lake and pyarrow. If the nodes do not "
                "have them, build an archive with `opal pack` and give the arguments that it "
                "prints: archives='environment.tar.gz#environment', and in conf "
                f"{_PYTHON}='./environment/bin/python'"
            )
        is_remote_pod = self._is_kubernetes and not self.is_client
        if is_remote_pod and "://" not in application and _UPLOAD not in self._conf:
            yield (
                f"the driver's pod cannot see {application}. Set {_UPLOAD} in conf, or give the "
                "path of the app in the image: app='local:///path/to/opal_spark/submit/app.py'"
            )

    def track_on_yarn(self) -> bool:
        """Poll YARN's resource manager for the state, if its address is known.

        Returns whether the connection names the address.
        """
        extra = self.get_connection(self._conn_id).extra_dejson
        self._yarn_track_via_rm_api = self._yarn_track_via_rm_api or bool(
            extra.get(self._YARN_RM_WEBAPP_ADDRESS_EXTRA_KEY)
        )
        return self._yarn_track_via_rm_api

    def find_modules_in(self, folders: Iterable[str]) -> None:
        """Let the driver and local workers import modules of these folders.

        In cluster mode this does nothing: the modules have to be in `py_files` or in an archive.
        """
        if not self.is_client:
            return
        variables = dict(self._env_vars or {})
        paths = [*folders]
        existing = variables.get("PYTHONPATH") or os.environ.get("PYTHONPATH")
        if existing:
            paths.append(existing)
        variables["PYTHONPATH"] = os.pathsep.join(paths)
        self._env_vars = variables

    def follow(self, external_id: str) -> None:
        """Remember YARN's application of an earlier try, so that a kill reaches it."""
        if self._is_yarn_cluster_mode:
            self._yarn_application_id = external_id

    @contextmanager
    def hiding(self, conf: Mapping[str, str], environment: Mapping[str, str]) -> Iterator[None]:
        """Pass secret settings to Spark and secret variables to its driver in a block."""
        given = self._properties_file
        self._hidden_environment = environment
        self._secrets = mask([*conf.items(), *environment.items()])
        secret_conf = {**conf, **self._as_conf(environment)}
        try:
            with properties_file(secret_conf, given) as self._properties_file:
                yield
        finally:
            self._properties_file = given

    def redacted(self, text: str) -> str:
        """Return the text with secrets masked."""
        return redacted(text, self._secrets)

    def submit(self, application: str = "", **kwargs: Any) -> str | None:
        """Submit an application as Airflow's hook does, in a new process session."""
        return super().submit(application, start_new_session=True, **kwargs)

    def _build_spark_submit_command(self, application: str) -> list[str]:
        if self.is_client and not self.is_local and _PYTHON in self._conf:
            # That Python is a path on the cluster, and the driver runs here
            driver_python = os.environ.get("PYSPARK_DRIVER_PYTHON", sys.executable)
            self._conf = {"spark.pyspark.driver.python": driver_python, **self._conf}
        command: list[str] = super()._build_spark_submit_command(application)
        # Not earlier: Airflow's method replaces the environment by `env_vars`
        self._env = {**self._own_environment(), **(self._env or {}), **self._hidden_environment}
        return command

    def _own_environment(self) -> dict[str, str]:
        """Return the variables for Java, and for the Python of processes on this machine."""
        environment = java_environment()
        # For processes on other machines, YARN would carry the path of this Python to the cluster
        names = []
        if self.is_client:
            names.append("PYSPARK_DRIVER_PYTHON")
        if self.is_local:
            names.append("PYSPARK_PYTHON")
        for name in names:
            if name not in os.environ:
                environment[name] = sys.executable
        # The task registers the job's commits, under its own name of the table. The job must not.
        if _EVENTS_URL in os.environ:
            environment[_EVENTS_URL] = ""
        return environment

    def _as_conf(self, environment: Mapping[str, str]) -> dict[str, str]:
        """Return the Spark settings that set variables of a remote driver."""
        if self.is_client:
            return {}
        prefix = "spark.yarn.appMasterEnv" if self._is_yarn else "spark.kubernetes.driverEnv"
        return {f"{prefix}.{name}": value for name, value in environment.items()}

    def _get_spark_binary_path(self) -> list[str]:
        [binary] = super()._get_spark_binary_path()
        # A virtual environment that is not active is not on the PATH
        in_environment = Path(sys.executable).with_name(binary)
        if shutil.which(binary) is None and in_environment.exists():
            binary = str(in_environment)
        return [binary, "--load-spark-defaults"] if self._properties_file else [binary]

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
        """End the whole process group, and the processes that Airflow's hook ends."""
        # First a driver on a cluster: Airflow's hook ends it only while spark-submit runs
        process = self._submit_sp
        is_running = process is not None and process.poll() is None
        if not self.is_client:
            super().on_kill()
        if process is not None and is_running:
            end_group(process.pid, lambda: process.poll() is not None)
        if self.is_client:
            super().on_kill()


def java_environment() -> dict[str, str]:
    """Return variables for the Java of the extra `java`, unless another is installed."""
    if "JAVA_HOME" in os.environ or shutil.which("java"):
        return {}
    answer = subprocess.run(
        [sys.executable, "-m", "opal_spark.engine.java"],
        capture_output=True,
        text=True,
        check=False,
    )
    if answer.returncode != 0:
        # This is not an error: Spark's own settings may still name a Java
        _log.warning("%s", answer.stderr.strip())
        return {}
    return {"JAVA_HOME": answer.stdout.strip()}


@contextmanager
def properties_file(conf: Mapping[str, str], given: str | None) -> Iterator[str | None]:
    """Yield the path of a file with the given properties and the secret ones.

    Only this user can read the file. Without secret properties, yield the given path.
    """
    if not conf:
        yield given
        return
    given_text = Path(given).read_text(encoding="utf-8") if given else ""
    lines = [f"{name}={_escaped(value)}" for name, value in conf.items()]
    text = "\n".join([given_text, *lines, ""])
    with tempfile.TemporaryDirectory(prefix="opal-submit-") as folder:
        path = Path(folder) / "spark.properties"
        # With these permissions from the start: a later chmod would leave a moment to read it
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        yield str(path)


def _escaped(value: str) -> str:
    """Escape a value for a Java properties file."""
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r")


def process_identity(pid: int) -> dict[str, Any]:
    """Return an identity that no later process has, on this or another machine."""
    return {"host": socket.gethostname(), "pid": pid, "started": _started(pid)}


def _started(pid: int) -> str | None:
    """Return when a process started, as a text to compare, or None if it does not run."""
    try:
        # The name in brackets may contain spaces. The start is the 20th field after it
        _, _, fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")
        return fields.split()[19]
    except (OSError, IndexError):
        answer = subprocess.run(
            ["ps", "-o", "lstart=", "-p", str(pid)], capture_output=True, text=True, check=False
        )
        return answer.stdout.strip() or None


def end_left_over(process: Mapping[str, Any]) -> bool:
    """End the process group that an earlier try left running.

    Returns False if it has ended, or is on another machine.
    """
    pid = int(process["pid"])
    if process["host"] != socket.gethostname() or process["started"] is None:
        return False
    if _started(pid) != process["started"]:
        return False
    end_group(pid, lambda: _started(pid) != process["started"])
    return True


def end_group(leader: int, is_gone: Callable[[], bool]) -> None:
    """End a process group by SIGTERM, and the rest of it later by SIGKILL."""
    with suppress(ProcessLookupError):
        os.killpg(leader, signal.SIGTERM)
    waited_s = 0.0
    while waited_s < _GRACE_S and not is_gone():
        time.sleep(_LOOK_S)
        waited_s += _LOOK_S
    # Also after the leader's end: others of its group may still run
    with suppress(ProcessLookupError):
        os.killpg(leader, signal.SIGKILL)
