"""The spark-submit apps: a JobSpec in, a JobResult as the last line out, and an exit code."""

import json
import logging
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyspark
import pytest
from pyspark.sql import SparkSession

from opal_lake.errors import (
    ConflictError,
    FormatError,
    InvalidInputError,
    NoRowsError,
    StorageError,
)
from opal_lake.exit_codes import BUG, DAMAGE, INPUT, OK, RETRY
from opal_lake.operations.job_spec import JobSpec
from opal_lake.operations.metagen import MetaGen
from opal_lake.result import JobResult
from opal_spark.engine.failures import as_opal_error, short_message
from opal_spark.engine.java import ensure_java
from opal_spark.engine.progress import SparkSteps
from opal_spark.submit import runner
from opal_spark.submit.jobs import run_job
from opal_spark.submit.runner import run_app

SOURCES = Path(__file__).parents[3] / "spark_apps"
APP = SOURCES / "opal_spark" / "submit" / "app.py"
COLUMNS = {
    "schema": "id BIGINT, name STRING, op STRING, at TIMESTAMP",
    "keys": ["id"],
    "delta": "at",
    "deletes": "op = 'D'",
}
FIRST = (
    "id,name,op,at\n"
    "1,Ann,U,2026-01-01T10:00:00Z\n"
    "2,Bob,U,2026-01-01T10:00:00Z\n"
    "3,Cy,U,2026-01-01T10:00:00Z\n"
)
SECOND = "id,name,op,at\n2,Bobby,U,2026-01-02T10:00:00Z\n3,,D,2026-01-02T10:00:00Z\n"

pytestmark = pytest.mark.spark


def submit(spec: str, scratch: Path, **conf: str) -> subprocess.CompletedProcess[str]:
    """Submit an app as an operator does: in a new JVM, with two packages on the path."""
    ensure_java()
    command = [
        str(Path(pyspark.__file__).parent / "bin" / "spark-submit"),
        "--master",
        "local[2]",
        "--conf",
        "spark.ui.enabled=false",
    ]
    settings = [word for name, value in conf.items() for word in ("--conf", f"{name}={value}")]
    environment = {
        **os.environ,
        "PYTHONPATH": str(SOURCES),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    return subprocess.run(
        [*command, *settings, str(APP), "--spec", spec],
        env=environment,
        cwd=scratch,
        capture_output=True,
        text=True,
    )


def spec_of(
    operation: str,
    table: Path,
    arguments: Mapping[str, Any] | None = None,
    token: str | None = None,
) -> JobSpec[Any]:
    return JobSpec.of(operation, str(table), arguments or {}, token)


@pytest.mark.slow
def test_four_operations_under_spark_submit(tmp_path: Path) -> None:
    table, source = tmp_path / "users", tmp_path / "in.csv"
    source.write_text(FIRST)
    specs = [
        spec_of("create", table, COLUMNS),
        spec_of("ingest", table, {"source": {"files": [str(source)]}}, token="run-1"),
        spec_of("metagen", table, token="run-2"),
        spec_of(
            "read",
            table,
            {
                "columns": ["id", "name"],
                "where": "id < 3",
                "event_time": "2026-01-01T12:00:00+00:00",
            },
        ),
    ]
    results = []
    for spec in specs:
        file = tmp_path / "spec.json"
        file.write_text(spec.to_json())
        done = submit(
            f"@{file}" if spec.operation.name == "ingest" else spec.to_json(),
            tmp_path,
        )
        assert done.returncode == OK, done.stderr
        results.append(JobResult.from_json(done.stdout.splitlines()[-1]))
    assert [(result.operation, result.version, result.token) for result in results] == [
        ("create", 0, None),
        ("ingest", 1, "run-1"),
        ("metagen", 2, "run-2"),
        ("read", 2, None),
    ]
    assert [result.counts.get("rows") for result in results] == [None, 3, 3, 2]
    assert sorted(row["name"] for row in results[-1].examples) == ["Ann", "Bob"]
    assert all(result.timings_ms["total"] > 0 for result in results)


@pytest.mark.slow
def test_spark_submit_ends_with_the_app_s_exit_code(tmp_path: Path) -> None:
    history = {
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": str(tmp_path),
        "spark.yarn.historyServer.address": "history:18080",
    }
    spec = '{"operation": "metagen", "table": "nowhere", "arguments": {}}'
    done = submit(spec, tmp_path, **history)
    assert done.returncode == INPUT
    assert "Spark history: http://history:18080/history/local-" in done.stdout
    assert (
        "nowhere is not an Opal table" in done.stdout
    )  # where spark-submit sends what an app says on standard error
    assert not done.stdout.splitlines()[-1].startswith("{")


def make_table(spark: SparkSession, folder: Path) -> Path:
    """Three visible rows, of which the second version changes one and deletes one."""
    path = folder / "users"
    run_job(spark, spec_of("create", path, COLUMNS))
    for number, text in enumerate((FIRST, SECOND), start=1):
        (folder / f"{number}.csv").write_text(text)
        run_job(
            spark, spec_of("ingest", path, {"source": {"files": [str(folder / f"{number}.csv")]}})
        )
        run_job(spark, spec_of("metagen", path))
    return path


@pytest.fixture(scope="module")
def made_table(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_table(spark, tmp_path_factory.mktemp("made"))


@pytest.fixture
def table(made_table: Path, tmp_path: Path) -> Path:
    return (
        shutil.copytree(made_table.parent, tmp_path, dirs_exist_ok=True) / "users"
    )  # and the files that went into it


def run(spec: JobSpec[Any] | str) -> int:
    """Run a job in this process, on the session of the tests."""
    logging.getLogger("SQLQueryContextLogger").setLevel(
        logging.CRITICAL
    )  # as a session of its own would
    return run_app(["--spec", spec.to_json() if isinstance(spec, JobSpec) else spec])


@pytest.mark.parametrize(
    "spec,said",
    [
        ("{", "JobSpec is not JSON"),
        ('{"operation": "fly", "table": "t"}', "operation 'fly' is unknown"),
        ('{"operation": "read", "table": "t", "secret": "x"}', "JobSpec has no field secret"),
        (
            '{"operation": "read", "table": "t", "arguments": {"wher": "id > 1"}}',
            "read has no argument wher; its arguments are limit, to",
        ),
        (
            '{"operation": "read", "table": "t", "arguments": {"version": "1"}}',
            "argument version is a text; give a whole number, or leave it out",
        ),
        (
            '{"operation": "read", "table": "t", "arguments": {"columns": "id"}}',
            "columns='id' is a text; give a list",
        ),
        (
            '{"operation": "read", "table": "t", "arguments": {"overwrite": 1}}',
            "overwrite=1 is a whole number, neither true nor false",
        ),
        (
            '{"operation": "read", "table": "t", "arguments": []}',
            "arguments of read must map names to values, got a list",
        ),
        ("@/nowhere.json", "the file cannot be read"),
    ],
)
@pytest.mark.usefixtures("spark")
def test_a_wrong_spec_is_final(spec: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(spec) == INPUT
    shown = capsys.readouterr()
    assert said in shown.err
    assert shown.out == ""


def test_a_missing_argument_is_named() -> None:
    with pytest.raises(InvalidInputError, match="create needs the argument delta"):
        spec_of("create", Path("t"), {"keys": ["id"]})


@pytest.mark.slow_but_one
@pytest.mark.parametrize("where", ["nope > 1", "id >", "cast(name AS INT) > 1"])
def test_a_wrong_filter_is_an_input_error_without_a_query_plan(
    where: str, table: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(spec_of("read", table, {"where": where})) == INPUT
    shown = capsys.readouterr().err
    assert shown.splitlines()[-3].startswith("opal: ")
    assert "JVM" not in shown
    assert "Project [" not in shown


def test_a_store_that_does_not_answer_is_retriable(
    spark: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = {"endpoint": "http://127.0.0.1:9", "access.key": "nobody", "secret.key": "nothing"}
    for name, value in settings.items():
        spark.conf.set(f"spark.hadoop.fs.s3a.{name}", value)
    try:
        assert run(JobSpec(operation=MetaGen(), table="s3a://lake/users")) == RETRY
    finally:
        for name in settings:
            spark.conf.unset(f"spark.hadoop.fs.s3a.{name}")
    shown = capsys.readouterr()
    assert "S3 did not answer" in shown.err
    assert shown.out == ""


def test_damage_has_an_exit_code_of_its_own(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = make_table(spark, tmp_path)  # of a copy this process may know what the log holds
    log = next((table / "_opal" / "segment_logs").iterdir())
    log.write_bytes(log.read_bytes()[:-1] + b"x")
    assert run(spec_of("read", table)) == DAMAGE
    assert log.name in capsys.readouterr().err


def test_a_bug_has_an_exit_code_of_its_own(
    capsys: pytest.CaptureFixture[str], spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(spark: SparkSession, spec: JobSpec[Any]) -> JobResult:
        raise ZeroDivisionError("by zero")

    monkeypatch.setattr(runner, "run_job", broken)
    assert run_app(["--spec", '{"operation": "metagen", "table": "t"}']) == BUG
    assert "ZeroDivisionError" in capsys.readouterr().err
    assert spark.range(1).count() == 1  # the session was there before, and stays


@pytest.mark.parametrize("kind", [InvalidInputError, FormatError, StorageError, ConflictError])
def test_an_error_of_a_task_is_the_error_of_the_job(
    kind: type[Exception], spark: SparkSession
) -> None:
    def fail(batches: Any) -> Any:
        raise kind("the fact, 'a value'; the next step")
        yield from batches

    with pytest.raises(Exception, match="the fact") as caught:
        spark.range(1).mapInArrow(fail, "id BIGINT").collect()
    understood = as_opal_error(caught.value)
    assert type(understood) is kind
    assert str(understood) == "the fact, 'a value'; the next step"


def test_a_failure_of_spark_itself_is_retriable(spark: SparkSession) -> None:
    def die(batches: Any) -> Any:
        os._exit(1)
        yield from batches

    with pytest.raises(Exception, match="Python worker exited") as caught:
        spark.range(1).mapInArrow(die, "id BIGINT").collect()
    assert isinstance(as_opal_error(caught.value), StorageError)


def test_a_file_that_was_changed_by_hand_is_named_with_its_checksum_file(
    spark: SparkSession, tmp_path: Path
) -> None:
    spark.range(1).coalesce(1).write.csv(str(tmp_path / "m"))
    (file,) = (tmp_path / "m").glob("part-*.csv")
    file.write_text("1\n2\n")
    with pytest.raises(Exception, match="Checksum") as caught:
        spark.read.csv(str(tmp_path / "m")).collect()
    understood = as_opal_error(caught.value)
    assert isinstance(understood, InvalidInputError)
    assert str(understood).endswith(f"delete file:{tmp_path}/m/.{file.name}.crc, then try again")


def test_a_java_error_without_a_message_is_shown_by_its_cause() -> None:
    message = (
        "An error occurred while calling o319.load.\n: org.apache.spark.SparkException: Job "
        "aborted.\n\tat a.b(C.java:3)\n"
    )
    assert short_message(Exception(message)) == "org.apache.spark.SparkException: Job aborted."
    assert (
        short_message(
            Exception(
                message + "Caused by: x.Y: file:/p is cut\n\tat d.e(F.java:1)\n\t... 3 more\n"
            )
        )
        == "x.Y: file:/p is cut"
    )
    assert (
        short_message(Exception("[NO_COLUMN] there is no x;\n'Project ['x]\n"))
        == "[NO_COLUMN] there is no x"
    )


def test_the_same_token_ingests_once(spark: SparkSession, table: Path, tmp_path: Path) -> None:
    spec = spec_of("ingest", table, {"source": {"files": [str(tmp_path / "1.csv")]}}, token="once")
    first, again = (run_job(spark, spec) for _ in range(2))
    assert (first.repeated, again.repeated, again.version) == (False, True, first.version)


def test_create_may_let_the_same_table_stand(spark: SparkSession, table: Path) -> None:
    assert run_job(spark, spec_of("create", table, {**COLUMNS, "if_absent": True})).repeated
    with pytest.raises(InvalidInputError, match=r"keys is \[.id.\], not \[.name.\]"):
        run_job(spark, spec_of("create", table, {**COLUMNS, "keys": ["name"], "if_absent": True}))


def test_one_of_several_jobs_makes_a_table_and_all_continue(
    spark: SparkSession, tmp_path: Path
) -> None:
    """The first runs of a backfill are such jobs."""
    for turn in range(4):
        spec = spec_of("create", tmp_path / f"t{turn}", {**COLUMNS, "if_absent": True})
        together = threading.Barrier(4)

        def make(_: int, spec: JobSpec[Any] = spec, together: threading.Barrier = together) -> bool:
            together.wait()
            return run_job(spark, spec).repeated

        with ThreadPoolExecutor(4) as pool:
            assert sorted(pool.map(make, range(4))) == [False, True, True, True]
    with pytest.raises(InvalidInputError, match="is an Opal table already"):
        run_job(spark, spec_of("create", tmp_path / "t0", COLUMNS))


def test_create_takes_its_columns_from_a_file(spark: SparkSession, tmp_path: Path) -> None:
    file = tmp_path / "in.csv"
    file.write_text(FIRST)
    layout = {"keys": ["id"], "delta": "at"}
    run_job(spark, spec_of("create", tmp_path / "t", {**layout, "like": {"files": [str(file)]}}))
    assert spark.read.option("header", "true").csv(str(file)).columns == ["id", "name", "op", "at"]
    with pytest.raises(InvalidInputError, match="got no columns"):
        run_job(spark, spec_of("create", tmp_path / "t", layout))


def test_a_read_shows_some_rows_and_says_that_there_are_more(
    spark: SparkSession, table: Path
) -> None:
    result = run_job(spark, spec_of("read", table, {"version": 2, "limit": 2}))
    assert (len(result.examples), result.counts, result.version) == (2, {"rows": 2}, 2)
    assert "more rows" in result.notes[0]
    assert not run_job(spark, spec_of("read", table, {"limit": 2})).notes


@pytest.mark.slow_but_one
@pytest.mark.parametrize("file_format", ["parquet", "csv", "json", "orc"])
def test_an_export_counts_its_rows_and_never_mixes_with_existing_files(
    file_format: str,
    spark: SparkSession,
    table: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    to = str(tmp_path / "out")
    spec = spec_of(
        "read", table, {"to": to, "format": file_format, "event_time": "2026-01-01T12:00:00+00:00"}
    )
    assert run(spec) == OK
    result = JobResult.from_json(capsys.readouterr().out.splitlines()[-1])
    assert (result.counts, result.examples) == ({"rows": 3}, ())
    assert spark.read.format(file_format).option("header", "true").load(to).count() == 3
    assert run(spec) == INPUT
    assert "exists" in capsys.readouterr().err
    assert (
        run(
            spec_of(
                "read",
                table,
                {"to": to, "format": file_format, "overwrite": True, "where": "false"},
            )
        )
        == OK
    )
    assert json.loads(capsys.readouterr().out)["counts"] == {"rows": 0}


@pytest.mark.slow
@pytest.mark.parametrize("folder", ["/proc/nowhere/out", "{file}/out"])
def test_an_export_to_a_folder_without_rights_is_an_error(
    folder: str,
    spark: SparkSession,
    table: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "file").write_text("")
    to = folder.format(file=tmp_path / "file")
    assert run(spec_of("read", table, {"to": to})) == INPUT
    assert f"{to} cannot be written" in (message := capsys.readouterr().err)
    assert "give this user the right to write there, or name another folder" in message


def test_progress_counts_the_tasks_that_run(spark: SparkSession, tmp_path: Path) -> None:
    go_on, steps = tmp_path / "go-on", SparkSteps()
    assert steps.where().name == "starting Spark"

    def wait(batches: Any) -> Any:
        while not go_on.exists():
            time.sleep(0.05)
        yield from batches

    steps.watch(spark)
    job = threading.Thread(target=spark.range(0, 6, 1, 3).mapInArrow(wait, "id BIGINT").collect)
    job.start()
    while not (step := steps.where()).total:
        time.sleep(0.05)
    go_on.touch()
    job.join()
    assert (step.done, step.total) == (0, 3)
    assert steps.where().total == 0


def test_spark_connect_pushes_its_progress() -> None:
    class Connect:
        """A Connect session's receiver of handlers; Spark calls it by these names."""

        __module__ = "pyspark.sql.connect.session"

        def registerProgressHandler(self, handler: Any) -> None:  # noqa: N802  # the name that Spark has
            self.handler = handler

    session, steps = Connect(), SparkSteps()
    steps.watch(session)  # type: ignore[arg-type]  # stands in for a session
    stages = [
        SimpleNamespace(num_tasks=40, num_completed_tasks=12, done=False),
        SimpleNamespace(num_tasks=8, num_completed_tasks=8, done=True),
    ]
    session.handler(stages=stages, inflight_tasks=2, operation_id="x", done=False)
    assert (steps.where().done, steps.where().total) == (12, 40)
    session.handler(stages=stages, inflight_tasks=0, operation_id="x", done=True)
    assert steps.where().total == 0


def ingest(spark: SparkSession, path: Path, file: Path, **arguments: Any) -> JobResult:
    return run_job(
        spark, spec_of("ingest", path, {"source": {"files": {"paths": [str(file)]}}, **arguments})
    )


def test_an_ingest_makes_the_missing_table(spark: SparkSession, tmp_path: Path) -> None:
    """The table has a source's columns, or a schema's; an existing one must have them."""
    path, file = tmp_path / "made", tmp_path / "first.json"
    file.write_text('{"id": 1, "at": 10, "name": "Ann"}\n')
    layout = {"keys": ["id"], "delta": "at"}
    assert ingest(spark, path, file, create=layout).version == 1
    assert ingest(spark, path, file, create=layout).version == 2
    assert (
        ingest(
            spark, path, file, create={**layout, "schema": "id BIGINT, at BIGINT, name STRING"}
        ).version
        == 3
    )
    with pytest.raises(
        InvalidInputError, match=r"delta is 'at', not 'id'; deletes is None, not 'id < 0'"
    ):
        ingest(spark, path, file, create={"keys": ["id"], "delta": "id", "deletes": "id < 0"})
    different = (
        "column 'tel' is missing; column 'name' is in the table only; column 'at' is BIGINT, "
        "not INT"
    )
    with pytest.raises(InvalidInputError, match=different):
        ingest(spark, path, file, create={**layout, "schema": "id BIGINT, at INT, tel STRING"})
    with pytest.raises(InvalidInputError, match="create has no argument key"):
        ingest(spark, path, file, create={"key": ["id"], "delta": "at"})


def test_a_wrong_source_makes_no_table(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="source 'fils' is unknown"):
        run_job(
            spark,
            spec_of("ingest", tmp_path / "t", {"source": {"fils": ["in.csv"]}, "create": COLUMNS}),
        )
    assert not (tmp_path / "t").exists()


@pytest.mark.slow
def test_a_source_without_rows_is_an_error_unless_it_is_accepted(
    spark: SparkSession, table: Path, tmp_path: Path
) -> None:
    empty = tmp_path / "empty.csv"
    empty.write_text(FIRST.splitlines()[0] + "\n")
    for source, message in (
        (empty, "has no row"),
        (tmp_path / "none-*.csv", "no file to read"),
    ):
        with pytest.raises(NoRowsError, match=message):
            ingest(spark, table, source)
        assert ingest(spark, table, source, on_empty="accept").counts.get("rows", 0) == 0
    with pytest.raises(InvalidInputError, match="on_empty='skip' is unknown"):
        ingest(spark, table, empty, on_empty="skip")


@pytest.mark.slow
@pytest.mark.parametrize("target", ["users", "users/data", "users/out", "."])
def test_an_export_never_takes_the_place_of_a_table(
    spark: SparkSession, table: Path, target: str
) -> None:
    with pytest.raises(InvalidInputError, match=r"export to a folder of its own"):
        run_job(
            spark, spec_of("read", table, {"to": str(table.parent / target), "overwrite": True})
        )
    assert run_job(spark, spec_of("read", table)).counts["rows"] == 2


def test_a_repeat_equals_its_first_run(spark: SparkSession, table: Path, tmp_path: Path) -> None:
    spec = spec_of(
        "ingest", table, {"source": {"files": {"paths": [str(tmp_path / "1.csv")]}}}, token="again"
    )
    first, again = (run_job(spark, spec) for _ in range(2))
    assert again == replace(first, repeated=True)
