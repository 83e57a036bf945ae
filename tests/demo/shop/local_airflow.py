"""A real Airflow in a folder, on SQLite.

Scheduler, dag-processor, triggerer and api-server each have a process of their own.
"""

import base64
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from tests.demo.shop.rest import USER, AirflowApi, request

COMPONENTS = ("api-server", "scheduler", "dag-processor", "triggerer")
START_S, GRACE_S = 240.0, 15.0
# How long a writer waits for another one; SQLite's own 5 s are too short on a busy machine
SQLITE_WAIT_S = 60
ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# Jobs take seconds on two cores: compiling them well costs more time than it saves
_SPARK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Dspark.sql.shuffle.partitions=2"
_SPARKS_OWN = ("SPARK_HOME", "HADOOP_CONF_DIR", "YARN_CONF_DIR")
_PASSWORDS = "simple_auth_manager_passwords.json.generated"  # Airflow makes it at its first start


@dataclass(slots=True, kw_only=True)
class LocalAirflow(AirflowApi):
    """A running Airflow, used by its command line and its REST API, as a user would."""

    home: Path
    port: int
    environment: Mapping[str, str]
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def url(self) -> str:
        return f"http://localhost:{self.port}"

    @property
    def password(self) -> str:
        """The password of the user `admin`."""
        return str(json.loads((self.home / _PASSWORDS).read_text())[USER])

    def cli(self, *arguments: str) -> str:
        """Return what `airflow ...` prints; raise RuntimeError if it fails."""
        done = subprocess.run(
            [_airflow(), *arguments],
            check=False,
            env=dict(self.environment),
            capture_output=True,
            text=True,
            timeout=180,
        )
        if done.returncode != 0:
            raise RuntimeError(
                f"airflow {' '.join(arguments)}: {(done.stdout + done.stderr)[-3000:]}"
            )
        return done.stdout

    def start(self, component: str) -> None:
        """Start one of its processes, with a log in the home."""
        with (self.home / f"{component}.log").open("a") as log:
            self.processes[component] = subprocess.Popen(
                [_airflow(), component],
                env=dict(self.environment),
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )

    def stop(self, component: str) -> None:
        """End a process with all that it started, the drivers of its tasks too."""
        process = self.processes.pop(component)
        end_tree(process.pid)
        process.wait()

    def wait_until(
        self, holds: Callable[[], bool], most_s: float = 600, pause_s: float = 1
    ) -> None:
        """Wait for a condition; raise RuntimeError as soon as a component has died."""

        def holds_yet() -> bool:
            for name, process in self.processes.items():
                if process.poll() is not None:
                    log = self.home / f"{name}.log"
                    log_end = log.read_text(errors="replace")[-2000:]
                    raise RuntimeError(
                        f"Airflow's {name} has ended; {log} says why: fix that and start again. "
                        f"It ends with:\n{log_end}"
                    )
            return holds()

        AirflowApi.wait_until(self, holds_yet, most_s, pause_s)

    @property
    def logs(self) -> str:
        return str(self.home)

    def is_up(self) -> bool:
        """Return whether the started components report that they are healthy."""
        health = request("GET", f"{self.url}/api/v2/monitor/health", None, {})
        # The api-server is not in its own report
        reported = [name for name in self.processes if name != "api-server"]
        names = ["metadatabase", *reported]
        states = [health[name.replace("-", "_")]["status"] for name in names]
        return all(state == "healthy" for state in states)


def clean_environment() -> dict[str, str]:
    """Return the environment without the user's own Airflow and Spark.

    Their database, connections and users must not be touched.
    """
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("AIRFLOW_", "_AIRFLOW_", *_SPARKS_OWN))
    }


@contextmanager
def local_airflow(
    home: Path,
    dags: Path,
    settings: Mapping[str, str],
    port: int | None = None,
    components: Sequence[str] = COMPONENTS,
) -> Iterator[LocalAirflow]:
    """Run an Airflow within the block.

    `settings` are environment variables: connections, variables, configuration.
    """
    chosen = port or free_port()
    airflow = LocalAirflow(
        home=home,
        port=chosen,
        environment={**clean_environment(), **_configuration(home, dags, chosen), **settings},
    )
    (home / "spark").mkdir(parents=True, exist_ok=True)
    try:
        airflow.cli("db", "migrate")
        for component in components:
            airflow.start(component)
        airflow.wait_until(airflow.is_up, START_S)
        yield airflow
    finally:
        with undisturbed():
            for component in list(airflow.processes):
                airflow.stop(component)
            end_strays(home)


def _configuration(home: Path, dags: Path, port: int) -> dict[str, str]:
    return {
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__CORE__DAGS_FOLDER": str(dags),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__PARALLELISM": "2",
        "AIRFLOW__CORE__TEST_CONNECTION": "Enabled",
        "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"http://127.0.0.1:{port}/execution/",
        "AIRFLOW__CORE__FERNET_KEY": base64.urlsafe_b64encode(secrets.token_bytes(32)).decode(),
        "AIRFLOW__API__BASE_URL": f"http://localhost:{port}",
        "AIRFLOW__API__HOST": "127.0.0.1",
        "AIRFLOW__API__PORT": str(port),
        "AIRFLOW__API__WORKERS": "1",
        "AIRFLOW__API__SECRET_KEY": secrets.token_hex(32),
        "AIRFLOW__API_AUTH__JWT_SECRET": secrets.token_hex(32),
        "AIRFLOW__LOGGING__WORKER_LOG_SERVER_PORT": str(free_port()),
        "AIRFLOW__TRIGGERER__TRIGGER_LOG_SERVER_PORT": str(free_port()),
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{home}/airflow.db?timeout={SQLITE_WAIT_S}",
        "AIRFLOW__USAGE_DATA_COLLECTION__ENABLED": "False",
        "SPARK_CONF_DIR": str(home / "spark"),  # an empty folder
        "SPARK_SUBMIT_OPTS": f"{os.environ.get('SPARK_SUBMIT_OPTS', '')} {_SPARK}",
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }


@contextmanager
def undisturbed() -> Iterator[None]:
    """Ignore signals within the block."""
    # A process that ends while it stops others leaves some behind
    before = {number: signal.signal(number, signal.SIG_IGN) for number in ENDS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def end_tree(pid: int) -> None:
    """Ask a process and all below it to end, then kill them."""
    # Drivers of Spark have sessions of their own, so that a process group does not reach them
    with suppress(psutil.NoSuchProcess):
        leader = psutil.Process(pid)
        family = [*leader.children(recursive=True), leader]
        for member in family:
            with suppress(psutil.NoSuchProcess):
                member.send_signal(signal.SIGTERM)
        _, left = psutil.wait_procs(family, timeout=GRACE_S)
        for member in left:
            with suppress(psutil.NoSuchProcess):
                member.kill()


def end_strays(home: Path) -> None:
    """End the processes that an exited component left behind."""
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.environ().get("AIRFLOW_HOME") == str(home) and process.pid != os.getpid():
                end_tree(process.pid)


def free_port(preferred: int | None = None) -> int:
    """Return a free port of this machine: the preferred one if it is free."""
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("127.0.0.1", preferred or 0))
        except OSError:
            return free_port()
        return int(listener.getsockname()[1])


def _airflow() -> str:
    return str(Path(sys.executable).with_name("airflow"))
