"""Spark's submit hook, with what an Opal job needs beside: secrets off the command line, a process group to kill, the page of the job."""

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
from typing import Any

from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook

_UI = re.compile(r"^Spark UI: (\S+)")
_GRACE_S = 3.0  # Airflow itself waits five seconds between SIGTERM and SIGKILL


class OpalSubmitHook(SparkSubmitHook):
    """Starts spark-submit in a process group of its own, because killing the JVM alone leaves the Python driver alive, able to commit."""

    # What happens while the job runs; the operator sets them
    on_started: Callable[[dict[str, Any]], None] = staticmethod(lambda process: None)
    on_ui: Callable[[str], None] = staticmethod(lambda url: None)

    @property
    def exit_status(self) -> int | None:
        """Of spark-submit, which in client mode is the app's."""
        return None if self._submit_sp is None else self._submit_sp.returncode

    @property
    def is_client(self) -> bool:
        """Whether the driver runs beside spark-submit, on this machine."""
        return bool(self._connection["deploy_mode"] != "cluster")

    def follow(self, external_id: str) -> None:
        """Know the application of an earlier try, so that a kill reaches it."""
        if self._is_yarn_cluster_mode:
            self._yarn_application_id = external_id

    def submit(self, application: str = "", **kwargs: Any) -> str | None:
        """As Airflow's, in a session of its own, and with the Java and the Python that Spark is installed with."""
        self._env = {**java_environment(), **(self._env or {})}
        return super().submit(application, start_new_session=True, **kwargs)

    def _get_spark_binary_path(self) -> list[str]:
        [binary] = super()._get_spark_binary_path()
        beside = Path(sys.executable).with_name(binary)
        found = [str(beside)] if shutil.which(binary) is None and beside.exists() else [binary]
        return [*found, "--load-spark-defaults"] if self._properties_file else found

    def _process_spark_submit_log(self, itr: Iterator[Any]) -> None:
        if self._submit_sp is not None:
            self.on_started(process_identity(self._submit_sp.pid))
        super()._process_spark_submit_log(self._watched(itr))

    def _watched(self, lines: Iterable[str]) -> Iterator[str]:
        for line in lines:
            if found := _UI.match(line):
                self.on_ui(found[1])
            yield line

    def on_kill(self) -> None:
        """Ends the whole group, then what Airflow's hook knows to end."""
        if self._submit_sp is not None and self._submit_sp.poll() is None:
            end_group(self._submit_sp.pid, lambda: self._submit_sp is None or self._submit_sp.poll() is not None)
        super().on_kill()


def java_environment() -> dict[str, str]:
    """Where no Java is, the one of the `java` extra; and this Python for the driver and local workers, unless others are set."""
    found = {name: sys.executable for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON") if name not in os.environ}
    if "JAVA_HOME" in os.environ or shutil.which("java"):
        return found
    answer = subprocess.run([sys.executable, "-m", "opal_spark.java"], capture_output=True, text=True, check=False)
    return {**found, "JAVA_HOME": answer.stdout.strip()} if answer.returncode == 0 else found


@contextmanager
def properties_file(conf: Mapping[str, str], given: str | None) -> Iterator[str | None]:
    """Properties that must not be seen, in a file that only this user can read and that is gone afterwards, behind those `given`."""
    if not conf:
        yield given
        return
    with tempfile.TemporaryDirectory(prefix="opal-submit-") as folder:
        path = Path(folder) / "spark.properties"
        lines = [f"{name}={_escaped(value)}" for name, value in conf.items()]
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
            file.write("\n".join([Path(given).read_text(encoding="utf-8") if given else "", *lines, ""]))
        yield str(path)


def _escaped(value: str) -> str:
    """A value of a Java properties file."""
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r")


def process_identity(pid: int) -> dict[str, Any]:
    """What tells a process from a later one of the same number, here or on another machine."""
    return {"host": socket.gethostname(), "pid": pid, "started": _started(pid)}


def _started(pid: int) -> str | None:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        answer = subprocess.run(["ps", "-o", "lstart=", "-p", str(pid)], capture_output=True, text=True, check=False)
        return answer.stdout.strip() or None


def end_left_over(process: Mapping[str, Any]) -> bool:
    """End the group that an earlier try left behind. False when it is not here to be ended: gone, or on another machine."""
    pid = int(process["pid"])
    if process["host"] != socket.gethostname() or process["started"] is None or _started(pid) != process["started"]:
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
