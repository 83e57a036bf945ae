"""`opal pack`: the archive's content, which is the same twice, and apps that run from it alone."""

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from opal_lake.cli import main
from opal_lake.errors import InvalidInputError
from opal_lake.exit_codes import INPUT, OK
from opal_lake.table import Table
from opal_spark.cli.archive import (
    AIRFLOWS,
    FOR_S3,
    NEEDED,
    PACKAGES,
    PYTHON,
    SPARKS,
    Packing,
    closure,
)
from opal_spark.engine.java import ensure_java
from tests.fixtures_cli import LAKE, SOURCES, metadata, opal_commands
from tests.fixtures_spark import spark_home

__all__ = ["metadata", "opal_commands"]

ROOT = Path(__file__).parents[3]
BASE_PYTHON = str(Path(sys.base_prefix) / "bin" / f"python{PYTHON}")
SMALL = ("six",)
BARE = {"PATH": "/usr/bin:/bin", "OPAL_PYTHON": BASE_PYTHON}

pytestmark = pytest.mark.usefixtures("opal_commands")


def packed(folder: Path, *extra: str, name: str = "e.tar.gz") -> Path:
    return Packing(extra, SMALL).write(folder / name).path


def unpacked(archive: Path, folder: Path) -> Path:
    with tarfile.open(archive) as content:
        if hasattr(tarfile, "data_filter"):  # since 3.11.4
            content.extraction_filter = tarfile.data_filter
        content.extractall(folder)
    return folder


def run_python(
    home: Path, code: str, environment: Mapping[str, str] = BARE
) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [home / "bin" / "python", "-c", code],
        env=dict(environment),
        capture_output=True,
        text=True,
        cwd="/",
    )


def names_in(archive: Path) -> list[str]:
    with tarfile.open(archive) as content:
        return content.getnames()


def test_the_project_s_requirements_are_packed_except_spark_and_airflow() -> None:
    extras = LAKE["optional-dependencies"]
    asked = {re.split(r"[<>=\[]", line)[0] for line in [*LAKE["dependencies"], *extras["spark"]]}
    assert set(NEEDED) == asked - SPARKS
    assert (
        FOR_S3 in {re.split(r"[<>=]", line)[0] for line in extras["s3"]} <= set(closure((FOR_S3,)))
    )
    assert not [
        name for name in closure((*NEEDED, FOR_S3)) if name in SPARKS or AIRFLOWS.match(name)
    ]


def test_the_packed_python_finds_its_packages_wherever_it_lies_and_runs_the_node_s_own_python(
    tmp_path: Path,
) -> None:
    home = unpacked(packed(tmp_path), tmp_path / "some where")
    answer = run_python(
        home,
        (
            "import json, opal_lake, opal_spark, six, sys; print(json.dumps([opal_lake.__file__, "
            "six.__file__, sys.prefix]))"
        ),
    )
    assert answer.returncode == 0, answer.stderr
    opal_lake, six, prefix = json.loads(answer.stdout)
    assert Path(opal_lake) == home / PACKAGES / "opal_lake" / "__init__.py"
    assert Path(six) == home / PACKAGES / "six.py"
    assert prefix == sys.base_prefix


def test_the_packed_python_runs_through_a_link_and_keeps_spark_s_pythonpath(tmp_path: Path) -> None:
    (tmp_path / "environment").symlink_to(
        unpacked(packed(tmp_path), tmp_path / "cache" / "e.tar.gz")
    )
    answer = run_python(
        tmp_path / "environment",
        "import os; print(os.environ['PYTHONPATH'])",
        {**BARE, "PYTHONPATH": "/spark.zip"},
    )
    assert answer.stdout.strip() == f"{tmp_path / 'cache' / 'e.tar.gz' / PACKAGES}:/spark.zip"


def test_a_node_without_that_python_is_reported(tmp_path: Path) -> None:
    home = unpacked(packed(tmp_path), tmp_path / "e")
    tools = tmp_path / "tools"
    tools.mkdir()
    for tool in ("sh", "dirname", "uname"):
        (tools / tool).symlink_to(str(shutil.which(tool)))
    (tools / "python3").write_text("#!/bin/sh\nexit 1\n")  # of another version
    (tools / "python3").chmod(0o755)
    (tools / "python").symlink_to(home / "bin" / "python")  # itself
    answer = run_python(home, "", {"PATH": str(tools)})
    assert answer.returncode == 127
    assert f"was packed with Python {PYTHON}" in answer.stderr
    assert "OPAL_PYTHON" in answer.stderr


def test_the_same_packages_give_the_same_bytes(tmp_path: Path) -> None:
    shop = tmp_path / "shop"
    shop.mkdir()
    (shop / "__init__.py").write_text("")
    first = packed(tmp_path, str(shop), name="a.tar.gz").read_bytes()
    os.utime(shop / "__init__.py", (0, 0))
    assert packed(tmp_path, str(shop), name="b.tar.gz").read_bytes() == first


def test_the_archive_holds_no_caches_and_nothing_of_this_machine(tmp_path: Path) -> None:
    names = names_in(packed(tmp_path))
    assert not [
        name
        for name in names
        if "__pycache__" in name or name.endswith(("/RECORD", "/direct_url.json", ".pyc"))
    ]
    assert not [name for name in names if name.startswith(("/", "..")) or "/../" in name]
    assert {
        "bin/python",
        "opal-pack.json",
        f"{PACKAGES}/opal_spark/submit/app.py",
        f"{PACKAGES}/opal_lake/py.typed",
    } <= set(names)
    home = unpacked(tmp_path / "e.tar.gz", tmp_path / "e")
    assert str(ROOT) not in "".join(
        file.read_text() for file in [home / "bin" / "python", home / "opal-pack.json"]
    )


def test_the_user_s_own_packages_and_code_are_packed(tmp_path: Path) -> None:
    shop, rules = tmp_path / "src" / "shop", tmp_path / "src" / "rules.py"
    shop.mkdir(parents=True)
    (shop / "__init__.py").write_text("NAME = 'shop'")
    (shop / "jobs.py").write_text("from rules import RATE\nimport pytz, dateutil")
    rules.write_text("RATE = 2")
    home = unpacked(
        packed(tmp_path, str(shop), str(rules), "pytz", "Python_DateUtil"), tmp_path / "e"
    )
    answer = run_python(home, "import shop.jobs; print(shop.NAME, shop.jobs.RATE)")
    assert answer.stdout == "shop 2\n", answer.stderr
    assert set(json.loads((home / "opal-pack.json").read_text())["packages"]) == {
        "opal-lake",
        "six",
        "pytz",
        "python-dateutil",
    }


def test_opal_lake_comes_with_its_metadata_so_that_its_commands_are_found(tmp_path: Path) -> None:
    packages = {folder.name for folder in SOURCES.iterdir() if (folder / "py.typed").is_file()}
    names = names_in(packed(tmp_path))
    assert {name for name in packages if f"{PACKAGES}/{name}/__init__.py" in names} == packages
    home = unpacked(tmp_path / "e.tar.gz", tmp_path / "e")
    answer = run_python(
        home,
        "from importlib.metadata import distribution as d; lake = d('opal-lake'); "
        "print(lake.version, *sorted(e.name for e in lake.entry_points if e.group == "
        "'opal.commands'))",
    )
    commands = " ".join(sorted(LAKE["entry-points"]["opal.commands"]))
    assert answer.stdout == f"{LAKE['version']} {commands}\n", answer.stderr


def test_an_extra_of_opal_lake_is_packed_with_what_it_requires(tmp_path: Path) -> None:
    with_kafka = {*closure(("opal-lake[kafka]",))}
    assert {"confluent-kafka", "fastavro"} <= with_kafka - {*closure(("opal-lake",))}
    assert not with_kafka & {"rocksdict", "sqlalchemy", "boto3"}
    assert "pandas" in closure(("opal-lake[spark]",))
    with pytest.raises(
        InvalidInputError, match=r"opal-lake has no extra 'kafak'; its extras are: .*kafka"
    ):
        packed(tmp_path, "opal-lake[kafak]")


@pytest.mark.parametrize(
    "extra,message",
    [
        ("no-such-package", "no-such-package is not installed here"),
        ("apache-airflow", "does not belong on the cluster"),
        ("./nowhere", "is neither a module nor the folder of a package"),
        ("airflow-provider-opal", "does not belong on the cluster"),
    ],
)
def test_an_unpackable_package_is_refused_with_the_reason(
    extra: str, message: str, tmp_path: Path
) -> None:
    with pytest.raises(InvalidInputError, match=message):
        packed(tmp_path, extra)
    assert not list(tmp_path.iterdir())


def test_a_package_that_lacks_what_it_requires_or_lies_elsewhere_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in (
        (
            "lacking",
            "Requires-Dist: no-such-package>=1\nRequires-Dist: nor-this; sys_platform == 'win32'\n",
        ),
        ("elsewhere", ""),
    ):
        info = tmp_path / "site" / f"{name}-1.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n{text}")
        (info / "RECORD").write_text(f"{name}-1.dist-info/METADATA,,\n")
    (tmp_path / "site" / "elsewhere-1.dist-info" / "direct_url.json").write_text(
        '{"dir_info": {"editable": true}, "url": "file:///src"}'
    )
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    with pytest.raises(
        InvalidInputError, match="no-such-package is not installed here, and lacking needs it"
    ):
        packed(tmp_path, "lacking")
    with pytest.raises(InvalidInputError, match="editable"):
        packed(tmp_path, "elsewhere")


def test_an_archive_is_replaced_only_with_overwrite(tmp_path: Path) -> None:
    target = tmp_path / "e.tar.gz"
    target.write_bytes(b"mine")
    with pytest.raises(
        InvalidInputError, match="exists already: name another file with -o, or add --overwrite"
    ):
        packed(tmp_path)
    assert target.read_bytes() == b"mine"
    Packing((), SMALL).write(target, overwrite=True)
    assert tarfile.is_tarfile(target)
    assert [entry.name for entry in tmp_path.iterdir()] == ["e.tar.gz"]


def test_pack_reports_wrong_arguments_and_prints_no_result(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["pack", "-o", str(tmp_path / "e.tar.gz"), "--with", "no-such-package"]) == INPUT
    (tmp_path / "e.tar.gz").touch()
    assert main(["pack", "-o", str(tmp_path / "e.tar.gz")]) == INPUT
    assert main(["pack", "-o", str(tmp_path / "nowhere" / "e.tar.gz"), "--with", "./no"]) == INPUT
    output = capsys.readouterr()
    assert not output.out
    assert "exists already" in output.err


@pytest.mark.slow
@pytest.mark.spark
def test_apps_run_where_only_the_archive_knows_opal_lake(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A little cluster's executor unpacks the archive; a MetaGen is in client mode."""
    assert main(["pack", "-o", str(tmp_path / "environment.tar.gz"), "--json"]) == OK
    report = json.loads(capsys.readouterr().out)
    home = unpacked(tmp_path / "environment.tar.gz", tmp_path / "driver")
    assert (
        subprocess.run(
            [BASE_PYTHON, "-c", "import opal_lake"], env=BARE, capture_output=True
        ).returncode
        == 1
    )
    (tmp_path / "in.json").write_text(
        '{"id": 1, "at": 1}\n{"id": 2, "at": 1}\n{"id": 1, "at": 2}\n'
    )
    source = {"files": {"paths": [str(tmp_path / "in.json")]}}
    cluster = ["--master", "local-cluster[1,1,1024]", "--archives", report["archives"]]
    for name, value in report["conf"].items():
        cluster += ["--conf", f"{name}={value}"]
    create = {"keys": ["id"], "delta": "at"}
    submit(tmp_path, home, "ingest", {"source": source, "create": create}, *cluster)
    submit(
        tmp_path,
        home,
        "metagen",
        {},
        "--master",
        "local[1]",
        "--conf",
        f"spark.pyspark.python={home}/bin/python",
    )
    rows = Table.open(str(tmp_path / "t")).read().to_pylist()
    assert sorted((row["id"], row["at"]) for row in rows) == [(1, 2), (2, 1)]


def submit(
    folder: Path, home: Path, operation: str, arguments: Mapping[str, object], *words: str
) -> None:
    spec = {"operation": operation, "table": str(folder / "t"), "arguments": arguments}
    command = [
        str(spark_home(folder) / "bin" / "spark-submit"),
        *words,
        *(
            "--conf",
            f"spark.pyspark.driver.python={home}/bin/python",
            "--conf",
            "spark.driver.host=127.0.0.1",
        ),
        *(
            str(home / PACKAGES / "opal_spark" / "submit" / "app.py"),
            "--spec",
            json.dumps(spec),
        ),
    ]
    ensure_java()
    environment = {**BARE, "HOME": str(folder), "SPARK_HOME": str(spark_home(folder))}
    environment |= {name: os.environ[name] for name in ("JAVA_HOME",) if name in os.environ}
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, cwd=folder, timeout=300
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
