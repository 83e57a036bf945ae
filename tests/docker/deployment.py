"""docker/compose.yaml on this machine's network: its services in jails, its own environment and secrets, and real stores beside them."""

import json
import re
import runpy
import socket
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

from airflow_provider_opal.demo.shop import DAYS, write_shop
from tests.docker.compose_file import ROOT, own_services, read_compose
from tests.docker.jail import Container, Image

BEFORE_ALL = ("lakechime-setup", "airflow-migrate")
IN_ORDER = ("lakechime", "spark-master", "spark-worker-1", "spark-worker-2", "api-server", "scheduler", "dag-processor", "triggerer")
STATE_OF = {"lakechime-setup": "token"}  # of a service with a volume of its own; Airflow's share one


@dataclass(kw_only=True)
class Deployment:
    """The services that run, by their names in the file."""

    images: Mapping[str, Image]
    folder: Path
    addresses: Mapping[str, str]
    secrets: Mapping[str, str]
    ports: Mapping[str, int]
    services: dict[str, Container] = field(default_factory=dict)

    def start(self, name: str) -> Container:
        """As an engine would, but for the addresses: here all is on one."""
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
            dags=ROOT / "dags",
            environment=self._environment(name, service),
            secrets=secrets,
        )
        entrypoint = ["tini", "--", "opal-entry", "bash", "-c", (ROOT / "docker/compose/make_token.sh").read_text()]
        container.start([self._here(part) for part in service.get("command", ())], entrypoint if name == "lakechime-setup" else None)
        self.services[name] = container
        return container

    def _environment(self, name: str, service: Mapping[str, Any]) -> dict[str, str]:
        stated = {key: self._here(str(value)) for key, value in service.get("environment", {}).items()}
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
            "SPARK_SUBMIT_OPTS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Dspark.sql.shuffle.partitions=2",
        }
        if "AIRFLOW_CONN_SPARK_DEFAULT" in stated:
            spark = json.loads(stated["AIRFLOW_CONN_SPARK_DEFAULT"])
            stated["AIRFLOW_CONN_SPARK_DEFAULT"] = json.dumps({**spark, "host": "spark://127.0.0.1", "port": ports["spark-master"]})
        return stated | own

    def _here(self, text: str) -> str:
        for address, here in self.addresses.items():
            text = text.replace(address, here)
        return text

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
        """Orders, paid ones and their total at the end of each day, from the shop's files alone: of an order the last change counts."""
        write_shop(self.folder / "shop")
        changes = [json.loads(line) for path in (self.folder / "shop/orders").rglob("*.json") for line in path.read_text().splitlines()]
        by_order: dict[int, list[dict[str, Any]]] = defaultdict(list)
        for change in sorted(changes, key=lambda change: str(change["updated_at"])):
            by_order[change["order_id"]].append(change)
        table = []
        for day in DAYS:
            last = [[change for change in changes if change["updated_at"][:10] <= day][-1:] for changes in by_order.values()]
            rows = [change for [change] in filter(None, last) if change["op"] != "D"]
            paid = [Decimal(row["total"]) for row in rows if row["status"] == "paid"]
            table.append((day, len(rows), len(paid), str(sum(paid, Decimal(0)))))
        return table


@contextmanager
def deployed(images: Mapping[str, Image], folder: Path, s3: Mapping[str, str], postgres: Any) -> Iterator[Deployment]:
    """All of docker/compose.yaml but PostgreSQL and the S3 store, which are this machine's; well within the block, and gone after it."""
    runpy.run_path(str(ROOT / "docker/compose/first-start"))["make"](folder)
    secrets = {path.name: path.read_text() for path in (folder / "secrets").iterdir()}
    secrets["airflow_database"] = postgres.new_database()
    secrets["lakechime_database"] = postgres.new_database()
    connection = json.loads(secrets["opal_connection"])
    extra = {**connection["extra"], "endpoint_url": s3["endpoint_url"]}
    login = {"login": s3["aws_access_key_id"], "password": s3["aws_secret_access_key"]}
    secrets["opal_connection"] = json.dumps({**connection, **login, "extra": extra})
    names = (*IN_ORDER, "master-ui", "log-server", "trigger-log-server")
    ports = dict(zip(names, free_ports(len(names)), strict=True))
    addresses = {
        "spark-master:7077": f"127.0.0.1:{ports['spark-master']}",
        "lakechime:8765": f"127.0.0.1:{ports['lakechime']}",
        "api-server:8080": f"127.0.0.1:{ports['api-server']}",
        "localhost:8080": f"127.0.0.1:{ports['api-server']}",
    }
    deployment = Deployment(images=images, folder=folder, addresses=addresses, secrets=secrets, ports=ports)
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


def free_ports(count: int) -> list[int]:
    listeners = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [listener.getsockname()[1] for listener in listeners]
    for listener in listeners:
        listener.close()
    return ports
