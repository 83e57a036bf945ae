"""The contents of the wheels opal-lake and airflow-provider-opal, and their new environments."""

import ast
import json
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from email import message_from_string
from pathlib import Path

import pytest

from tests.docs.build import examples
from tests.fixtures_cli import LAKE, PROVIDER, ROOT, SOURCES

LOCK = ROOT / ".ci" / "requirements.lock"
WITH_CERTIFICATES = ROOT / ".ci" / "with_certificates.py"
UV = Path(sys.executable).with_name("uv")
SET_UP = "pip install ./spark_apps ."
LAKES_PACKAGES = {
    "lakechime",
    "opal_folder",
    "opal_lake",
    "opal_spark",
    "opal_stream",
    "pyspark_opal",
}


def build(project: Path, target: Path, kind: str) -> Path:
    """Build a project's wheel or sdist, and return its file."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", str(target)]
    subprocess.run(command, cwd=project, check=True, capture_output=True)
    [built] = target.iterdir()
    return built


def names_in(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as content:
        return set(content.namelist())


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel of opal-lake."""
    return build(SOURCES, tmp_path_factory.mktemp("lake"), "wheel")


@pytest.fixture(scope="module")
def provider(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel of airflow-provider-opal."""
    return build(ROOT, tmp_path_factory.mktemp("provider"), "wheel")


def test_wheels_hold_their_packages_a_licence_and_no_tests(lake: Path, provider: Path) -> None:
    for wheel, packages in ((lake, LAKES_PACKAGES), (provider, {"airflow_provider_opal"})):
        names = names_in(wheel)
        [info] = {name.partition("/")[0] for name in names if ".dist-info/" in name}
        assert {name.partition("/")[0] for name in names} == {info, *packages}
        assert f"{info}/licenses/LICENSE" in names
        assert not [name for name in names if "test" in name.lower() or "__pycache__" in name]
        assert {f"{package}/py.typed" for package in packages} <= names
    assert "opal_lake/FORMAT.md" in names_in(lake)


def test_the_provider_requires_opal_lake_of_its_version(lake: Path, provider: Path) -> None:
    with zipfile.ZipFile(provider) as content:
        [name] = [name for name in content.namelist() if name.endswith("/METADATA")]
        metadata = message_from_string(content.read(name).decode())
    asked = [it for it in metadata.get_all("Requires-Dist", []) if "extra ==" not in it]
    assert f"opal-lake[s3,spark]=={LAKE['version']}" in asked
    versions = {it.partition("==")[2] for it in asked if it.startswith("pyspark")}
    assert len(versions) == 1, "pyspark and pyspark-client share a folder"
    assert lake.name.startswith(f"opal_lake-{metadata['Version']}-")


@pytest.mark.parametrize("project", [SOURCES, ROOT], ids=["opal-lake", "airflow-provider-opal"])
def test_a_source_distribution_builds_the_same_wheel(project: Path, tmp_path: Path) -> None:
    archive = build(project, tmp_path / "sdist", "sdist")
    with tarfile.open(archive) as content:
        content.extractall(tmp_path / "unpacked", filter="data")
    [unpacked] = (tmp_path / "unpacked").iterdir()
    from_sdist = build(unpacked, tmp_path / "again", "wheel")
    assert names_in(from_sdist) == names_in(build(project, tmp_path / "wheel", "wheel"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """A new virtual environment, which knows nothing of this one."""

    home: Path

    @classmethod
    def make(cls, home: Path) -> "Environment":
        run(UV, "venv", "--quiet", "--no-config", "--python", sys.executable, home)
        return cls(home=home)

    @property
    def python(self) -> Path:
        return self.home / "bin" / "python"

    def uv(self, *words: str | Path) -> str:
        """Run `uv pip`, which has the index and the certificates that `make` has."""
        command, *more = words
        own = (command, "--no-config", "--python", self.python, *more)
        return run(sys.executable, WITH_CERTIFICATES, UV, "pip", *own)

    def install(self, *what: str | Path) -> None:
        """Install as a user does, of the lock's versions."""
        self.uv("install", "--quiet", "--constraint", self._pins(), *what)
        self.uv("check")

    def _pins(self) -> Path:
        pins = self.home / "pins.txt"
        lines = LOCK.read_text(encoding="utf-8").splitlines()
        pins.write_text("\n".join(line.rstrip(" \\") for line in lines if "==" in line[:80]))
        return pins

    def run(self, program: str, *words: str | Path, **variables: str) -> str:
        """Run a program of the environment, where no other is on the PATH."""
        plain = {"PATH": str(self.home / "bin"), "HOME": str(self.home), **variables}
        return run(self.home / "bin" / program, *words, environment=plain, folder=self.home)

    def names(self) -> set[str]:
        listed = json.loads(self.uv("list", "--format", "json"))
        return {package["name"] for package in listed}


def run(
    *words: str | Path, environment: Mapping[str, str] | None = None, folder: Path | None = None
) -> str:
    done = subprocess.run(
        [str(word) for word in words],
        env=environment,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, (words, done.stdout[-3000:], done.stderr[-3000:])
    return done.stdout


@pytest.mark.slow
def test_opal_lake_alone_works_without_airflow_spark_and_java(lake: Path, tmp_path: Path) -> None:
    environment = Environment.make(tmp_path / "environment")
    environment.install(lake)
    assert environment.names() == {"numpy", "opal-lake", "pyarrow", "pyroaring"}
    assert "opal dag" not in environment.run("opal", "--help")
    assert environment.run("opal", "--version") == f"opal {LAKE['version']}\n"
    table, key = str(tmp_path / "t"), ("--key", "id", "--delta", "at")
    environment.run("opal", "create", table, "--schema", "id INT, at INT", *key)
    code = (
        "import pyarrow as pa; from opal_lake import Table; "
        f"Table.open({table!r}).ingest(pa.table({{'id': [1, 1], 'at': [1, 2]}}, "
        "pa.schema([('id', pa.int32()), ('at', pa.int32())])))"
    )
    environment.run("python", "-c", code)
    for verb in ("metagen", "describe", "history", "check", "compact"):
        environment.run("opal", verb, table)
    rows = json.loads(environment.run("opal", "read", table, "--json"))
    assert [(row["id"], row["at"]) for row in rows] == [(1, 2)]


def imported_by_examples() -> set[str]:
    """Return the modules that files of dags/ import, without each other."""
    files = sorted((ROOT / "dags").glob("*.py"))
    names = set()
    for file in files:
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                names |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                names.add(str(node.module))
    return names - {file.stem for file in files}


@pytest.mark.slow(seconds=300)
def test_the_provider_alone_brings_airflow_spark_and_all_that_its_examples_import(
    lake: Path, provider: Path, tmp_path: Path
) -> None:
    """The README's set-up does so too; its pip takes opal-lake from its folder."""
    environment = Environment.make(tmp_path / "environment")
    wheels = ("--find-links", lake.parent, "--find-links", provider.parent)
    environment.install(*wheels, PROVIDER["name"], "hatchling", "pip")
    asked = {"apache-airflow", "apache-airflow-providers-apache-spark", "boto3", "opal-lake"}
    assert asked | {"pendulum", "pyroaring", "pyspark", "pyspark-client"} <= environment.names()
    use_provider(environment, tmp_path)

    assert any(SET_UP in example.text for example in examples("README.md", "console"))
    environment.uv("uninstall", *(project["name"] for project in (LAKE, PROVIDER)))
    folders = (copied(SOURCES, tmp_path / "here" / "spark_apps"), copied_root(tmp_path / "here"))
    offline = ("--no-index", "--no-build-isolation", "--disable-pip-version-check")
    environment.run("python", "-m", "pip", "install", "--quiet", *offline, *folders)
    environment.uv("check")
    use_provider(environment, tmp_path)


def use_provider(environment: Environment, folder: Path) -> None:
    home = {"AIRFLOW_HOME": str(folder / "airflow")}
    modules = sorted(imported_by_examples())
    code = f"import importlib; [importlib.import_module(name) for name in {modules}]"
    environment.run("python", "-c", code, **home)
    environment.run("opal", "dag", "lint", ROOT / "dags", **home)
    providers = environment.run("airflow", "providers", "list", "--output", "json", **home)
    listed = {it["package_name"] for it in json.loads(providers[providers.index("[") :])}
    assert PROVIDER["name"] in listed


def copied(folder: Path, target: Path) -> Path:
    """Copy the sources, so that nothing that a build leaves lies in the checkout."""
    shutil.copytree(folder, target, ignore=shutil.ignore_patterns("__pycache__"))
    return target


def copied_root(target: Path) -> Path:
    copied(ROOT / "airflow_provider_opal", target / "airflow_provider_opal")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, target)
    return target
