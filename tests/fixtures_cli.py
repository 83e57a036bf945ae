"""The command `opal` as in installed packages, also where they are not installed.

Their entry points are made from pyproject.toml.
"""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
SOURCES = ROOT / "spark_apps"
# Of the packages opal-lake and airflow-provider-opal.
LAKE, PROVIDER = (
    tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    for folder in (SOURCES, ROOT)
)


def write_metadata(folder: Path, *projects: Mapping[str, Any]) -> Path:
    """Write the metadata of the distributions into a folder, and return it.

    On the path it makes them known, and hides installed ones.
    """
    for project in projects or (LAKE, PROVIDER):
        info = folder / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
        info.mkdir(parents=True)
        files = {"METADATA": "\n".join(_metadata(project)), "entry_points.txt": _commands(project)}
        files["RECORD"] = "".join(f"{info.name}/{name},,\n" for name in (*files, "RECORD"))
        for name, text in files.items():
            (info / name).write_text(text)
    return folder


def _metadata(project: Mapping[str, Any]) -> list[str]:
    lines = ["Metadata-Version: 2.1", f"Name: {project['name']}", f"Version: {project['version']}"]
    lines += [f"Requires-Dist: {requirement}" for requirement in project["dependencies"]]
    for extra, requirements in project["optional-dependencies"].items():
        lines.append(f"Provides-Extra: {extra}")
        lines += [f'Requires-Dist: {it}; extra == "{extra}"' for it in requirements]
    return [*lines, ""]


def _commands(project: Mapping[str, Any]) -> str:
    commands = project["entry-points"]["opal.commands"]
    return "[opal.commands]\n" + "".join(f"{name} = {it}\n" for name, it in commands.items())


@pytest.fixture(scope="session")
def metadata(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder to put on the path."""
    return write_metadata(tmp_path_factory.mktemp("metadata"))


@pytest.fixture
def opal_commands(metadata: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the verbs known to `main` in this process."""
    monkeypatch.syspath_prepend(str(metadata))
