"""docker/compose.yaml and its files, without an engine: order, secrets, rights, and images."""

import json
import re
import runpy
import stat
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.docker.compose_file import FILE, ROOT, folders_of, own_services, read_compose, variables

COMPOSE = read_compose()
OURS = own_services(COMPOSE)
PLACE = ROOT / "docker" / "compose"
MAKE = runpy.run_path(str(PLACE / "first-start"))["make"]
ENTRY = (ROOT / "docker" / "image" / "opal-entry").read_text()


@pytest.mark.parametrize("name", OURS)
def test_our_containers_have_no_rights_that_they_do_not_need(name: str) -> None:
    service = OURS[name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert any(mount.startswith("/tmp") for mount in service["tmpfs"])
    assert not service.keys() & {"privileged", "user", "network_mode", "pid"}


def test_every_port_is_on_the_loopback_address_only() -> None:
    ports = [port for service in COMPOSE["services"].values() for port in service.get("ports", ())]
    assert ports
    assert all(port.startswith("127.0.0.1:") for port in ports)


def test_a_service_waits_for_services_that_start_and_are_checked() -> None:
    services = COMPOSE["services"]
    for name, service in services.items():
        for other, how in service.get("depends_on", {}).items():
            assert other in services, f"{name} waits for {other}"
            once = services[other].get("restart") == "no"
            assert how["condition"] == (
                "service_completed_successfully" if once else "service_healthy"
            ), f"{name} waits for {other}"
            assert once or other in OURS or "healthcheck" in services[other], (
                f"{other} has no health check"
            )
            assert set(services[other].get("profiles", ())) <= set(service.get("profiles", ())), (
                f"{name} starts without {other}"
            )


def test_nothing_waits_in_a_circle() -> None:
    done: set[str] = set()
    services = COMPOSE["services"]
    while more := {
        name
        for name, service in services.items()
        if name not in done and done >= set(service.get("depends_on", ()))
    }:
        done |= more
    assert done == set(services)


@pytest.mark.parametrize("name", OURS)
def test_commands_are_roles_that_the_images_know(name: str) -> None:
    role = OURS[name].get("command", [None])[0]
    roles = re.findall(r"^    ([\w -]+(?: \| [\w-]+)*)\)", ENTRY, re.MULTILINE)
    known = {part.strip() for line in roles for part in line.split("|")}
    if role not in (None, "python", "bash"):
        assert role in known


def test_all_that_is_mounted_and_secret_is_declared() -> None:
    for name, service in COMPOSE["services"].items():
        for secret in service.get("secrets", ()):
            assert secret in COMPOSE["secrets"], f"{name}: {secret}"
        for volume in service.get("volumes", ()):
            source = volume.split(":")[0]
            if source.startswith("."):
                assert (FILE.parent / source).exists(), f"{name}: {source}"
            else:
                assert source in COMPOSE["volumes"], f"{name}: {source}"
        for variable, path in service.get("environment", {}).items():
            if variable.endswith("_FILE") and path != "/run/secrets/lakechime/token":
                assert path.removeprefix("/run/secrets/") in service["secrets"], (
                    f"{name}: {variable} is {path}"
                )


def test_the_shop_s_story_is_mounted_where_python_finds_it() -> None:
    shop = OURS["shop"]
    module = shop["command"][shop["command"].index("-m") + 1]
    path = Path(shop["environment"]["PYTHONPATH"], *module.split(".")).with_suffix(".py")
    [source] = [
        folder / path.relative_to(target)
        for target, folder in folders_of(shop).items()
        if path.is_relative_to(target)
    ]
    assert source.is_file()


def test_the_example_of_the_settings_says_what_the_file_says() -> None:
    lines = [
        line
        for line in (PLACE / "env.example").read_text().splitlines()
        if line and not line.startswith("#")
    ]
    assert dict(line.split("=", 1) for line in lines) == variables()


def test_the_first_start_makes_every_secret_and_a_second_start_none(tmp_path: Path) -> None:
    made = MAKE(tmp_path / "a")
    assert set(made) == {*COMPOSE["secrets"], ".env"}
    assert MAKE(tmp_path / "a") == []
    MAKE(tmp_path / "b")
    for name in COMPOSE["secrets"]:
        path = tmp_path / "a" / "secrets" / name
        assert path.read_text() != (tmp_path / "b" / "secrets" / name).read_text()
        assert stat.S_IMODE(path.stat().st_mode) == 0o444
    assert stat.S_IMODE((tmp_path / "a" / "secrets").stat().st_mode) == 0o700


def test_a_lost_secret_alone_is_made_again_and_fits_the_others(tmp_path: Path) -> None:
    MAKE(tmp_path)
    secrets = tmp_path / "secrets"
    (secrets / "s3_identities").unlink()
    (secrets / "airflow_database").unlink()
    assert set(MAKE(tmp_path)) == {"s3_identities", "airflow_database"}
    connection: dict[str, Any] = json.loads((secrets / "opal_connection").read_text())
    assert connection["password"] in (secrets / "s3_identities").read_text()
    password = (secrets / "airflow_database_password").read_text()
    assert password in (secrets / "airflow_database").read_text()


def test_no_file_of_the_deployment_holds_a_password() -> None:
    for path in (FILE, *PLACE.iterdir()):
        assert not re.search(
            r"(?i)(password|secret|token)\s*[:=]\s*['\"]?[a-z0-9]{6,}['\"]?\s*$",
            path.read_text(),
            re.MULTILINE,
        ), path
    assert {"/docker/secrets/", "/docker/.env"} <= set(
        (ROOT / ".gitignore").read_text().splitlines()
    )


def test_the_makefile_waits_for_all_that_stays() -> None:
    staying = re.search(r"^STAYING = (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert staying is not None
    stay = {
        name
        for name, service in COMPOSE["services"].items()
        if service["restart"] != "no" and not service.get("profiles")
    }
    assert set(staying[1].split()) == stay


@pytest.mark.parametrize(
    "path",
    [*PLACE.glob("*.sh"), ROOT / "docker" / "image" / "opal-entry"],
    ids=lambda path: path.name,
)
def test_shell_scripts_parse(path: Path) -> None:
    subprocess.run(["bash", "-n", str(path)], check=True)


def test_the_workers_profile_has_an_executor_that_loads() -> None:
    # Its provider and Celery itself come in versions that do not fit each other
    from airflow.providers.celery.executors.celery_executor import CeleryExecutor

    assert "celery-worker" in OURS
    assert not CeleryExecutor.is_local
