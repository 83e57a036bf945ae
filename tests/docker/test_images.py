"""The images, built and run without an engine: content, rights, and the shop's story."""

import json
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.docker import jail, store
from tests.docker.deployment import Deployment, deployed
from tests.docker.jail import Container
from tests.docker.store import Image, Store

pytestmark = pytest.mark.slow(seconds=400)
TARGETS = ("lakechime", "spark", "airflow")
MOUNTS = {"/opt/dags": store.ROOT / "dags"}


class Built(dict[str, Image]):
    """The images by their targets, each built when it is first asked for."""

    def __init__(self, image_store: Store) -> None:
        super().__init__()
        self.image_store = image_store

    def __missing__(self, target: str) -> Image:
        took_s = self.image_store.build(target)
        image = self[target] = self.image_store.unpack(target)
        print(f"\n{target}: built in {took_s:.0f} s, {image.size_mb} MB")
        return image


@pytest.fixture(scope="module")
def images() -> Iterator[dict[str, Image]]:
    if why := store.missing():
        print(f"\nskipped: {why}")
        pytest.skip(why)
    with store.opened() as image_store:
        built = Built(image_store)
        yield built
        for image in built.values():
            image.remove()


@pytest.fixture
def contained(images: dict[str, Image], tmp_path: Path) -> Any:
    def contain(target: str, **more: Any) -> Container:
        return Container(
            image=images[target],
            folder=tmp_path / target,
            state=tmp_path / "state",
            mounts=MOUNTS,
            **more,
        )

    return contain


@pytest.mark.parametrize("target", TARGETS)
def test_a_container_has_no_rights_and_a_root_that_it_cannot_write(
    contained: Any, target: str
) -> None:
    script = (
        "id -u; id -un; touch /opt/opal/x; touch /tmp/x /var/lib/opal/x && "
        "grep CapEff /proc/self/status"
    )
    done = contained(target).run(
        [
            "bash",
            "-c",
            script,
        ]
    )
    assert f"{jail.USER}\nopal{jail.USER}\n" in done.stdout
    assert "Read-only file system" in done.stderr
    assert "CapEff:\t0000000000000000" in done.stdout


@pytest.mark.parametrize("target", TARGETS)
def test_an_image_says_what_is_in_it(images: dict[str, Image], contained: Any, target: str) -> None:
    config = images[target].config
    labels, health = config["Labels"], config["Healthcheck"]
    assert isinstance(labels, dict)
    assert isinstance(health, dict)
    assert labels["org.opencontainers.image.title"] == f"opal-{target}"
    assert health["Test"][-1].endswith("opal-health")
    assert re.fullmatch(r"\d+:0", str(config["User"]))
    bom = json.loads((images[target].root / "opt" / "opal" / "sbom.cdx.json").read_text())
    names = {part["name"] for part in bom["components"]}
    assert {"libc6", "pyarrow", "opal-lake"} <= names
    assert ("airflow-provider-opal" in names) == (target == "airflow")
    assert not {"gcc", "hatchling", "pytest", "python3-pip", "uv"} & names
    assert ("apache-airflow" in names) == (target == "airflow")


def test_a_secret_that_cannot_be_read_is_named(contained: Any) -> None:
    done = contained("lakechime", environment={"LAKECHIME_URL_FILE": "/run/secrets/url"}).run(
        ["lakechime"]
    )
    assert done.returncode == 78
    assert "/run/secrets/url" in done.stderr


def test_a_service_ends_at_a_signal(contained: Any) -> None:
    container = contained(
        "lakechime",
        environment={
            "LAKECHIME_URL": "sqlite:////var/lib/opal/events.db",
            "LAKECHIME_PORT": "18765",
        },
    )
    assert container.run(["lakechime", "token", "create", "test", "--role", "read"]).returncode == 0
    container.start(["lakechime"])
    container.wait_until_well()
    began = time.monotonic()
    container.kill(signal.SIGTERM)
    assert time.monotonic() - began < 10


@pytest.mark.slow(seconds=1500)
@pytest.mark.s3
@pytest.mark.postgres
def test_the_shop_s_story_survives_the_loss_of_a_worker_and_of_the_scheduler(
    images: dict[str, Image], tmp_path: Path, postgres: Any
) -> None:
    with deployed(images, tmp_path, postgres) as deployment:
        story = deployment.start("shop")
        deployment.wait_for(story, r"2026-11-01 .*metagen .*done")
        deployment.services["spark-worker-1"].kill()
        deployment.services["scheduler"].kill()
        deployment.start("scheduler")
        deployment.wait_to_end(story, 900)
        check(deployment, story.log.read_text())


def check(deployment: Deployment, log: str) -> None:
    """Compare the rows that `make demo` shows with those of the shop's files."""
    print(log)
    now = log[log.index("Read the table now") : log.index("Read it as of")]
    assert re.findall(r"^ +(\d+)  \w\w  +(\w+)", now, re.MULTILINE) == [
        ("1", "paid"),
        ("3", "paid"),
        ("4", "paid"),
    ]
    assert re.findall(r"^ +(2026-11-0\d) +(\d) +(\d)$", log, re.MULTILINE) == [
        ("2026-11-01", "5", "2"),
        ("2026-11-02", "3", "4"),
    ]
    shown = log[log.index("All orders, as of the end of each day") :]
    rows = re.findall(
        r"^ +(2026-11-0\d) +(\d+) +(\d+) +([\d.]+)$", shown.replace(",", ""), re.MULTILINE
    )
    assert [
        (day, int(orders), int(paid), revenue) for day, orders, paid, revenue in rows
    ] == deployment.expected()
