"""The command `opal` as it is when the package is installed, also where it is not: its entry points, made from pyproject.toml."""

import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCES = ROOT / "spark_apps"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def write_metadata(folder: Path) -> Path:
    """A folder that, put on the path, makes the distribution known; it hides one that is installed."""
    info = folder / f"{PROJECT['name'].replace('-', '_')}-{PROJECT['version']}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {PROJECT['name']}\nVersion: {PROJECT['version']}\n"
    )
    commands = PROJECT["entry-points"]["opal.commands"]
    (info / "entry_points.txt").write_text(
        "[opal.commands]\n" + "".join(f"{name} = {target}\n" for name, target in commands.items())
    )
    return folder


@pytest.fixture(scope="session")
def metadata(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder to put on the path."""
    return write_metadata(tmp_path_factory.mktemp("metadata"))


@pytest.fixture
def opal_commands(metadata: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the verbs known to `main` in this process."""
    monkeypatch.syspath_prepend(str(metadata))
