"""OpalSparkOperator without a scheduler: its command, its output, and the ends of a job."""

import json
import os
import shutil
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowException, AirflowFailException
from structlog.testing import capture_logs

from airflow_provider_opal import CreateTable, Files, IngestOperator, MetaGenOperator, OpalHook
from airflow_provider_opal.hooks.submit import (
    OpalSubmitHook,
    end_left_over,
    process_identity,
    properties_file,
)
from airflow_provider_opal.operators.spark import OpalSparkOperator, app_path, token_of
from opal_lake.exit_codes import INPUT
from opal_lake.operations.create import NewTable
from opal_lake.operations.job_spec import JobSpec
from opal_lake.storage.open import open_storage
from tests.airflow_provider_opal.build import Events
from tests.airflow_provider_opal.stand_ins import Commands, Store, commands, context
from tests.opal_lake.shop import content, create, create_with_pending, rows

__all__ = ["commands"]


@pytest.fixture(autouse=True)
def connections(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(
        "AIRFLOW_CONN_OPAL_DEFAULT", json.dumps({"conn_type": "opal", "host": str(tmp_path)})
    )
    monkeypatch.setenv(
        "AIRFLOW_CONN_SPARK_DEFAULT", json.dumps({"conn_type": "spark", "host": "local[2]"})
    )
    create_with_pending(open_storage(str(tmp_path / "t")))


def ingest(**more: Any) -> IngestOperator:
    source = Files(paths=("/in/{{ partition_key }}/*.json",))
    return IngestOperator(
        task_id="ingest",
        table="shop.users",
        source=source,
        **{"create": CreateTable(keys=["id"], delta="at"), **more},
    )


class CheckOperator(OpalSparkOperator):
    """An operator of one's own, for an operation without a look of its own."""

    operation = "check"


class ReadOperator(OpalSparkOperator):
    """One for an operation that is called otherwise than its class."""

    operation = "read"


@pytest.mark.parametrize("kind", [CheckOperator, ReadOperator])
def test_an_operator_of_one_s_own_may_run_any_operation(
    kind: type[OpalSparkOperator], commands: Commands
) -> None:
    commands.spark_submit(status=1)
    task = kind(task_id="own", table="t")
    with capture_logs() as logs, pytest.raises(AirflowException):
        task.execute(context(task))
    assert len(commands.notes()) == 1
    assert not [log for log in logs if "before Spark starts" in log["event"]]


def test_retries_share_a_token_and_a_clear_has_another() -> None:
    task = ingest(retries=3)
    assert token_of(context(task)) == token_of(context(task)) == "d/r/ingest/-1/0"
    assert token_of(context(task, clears=1)) == "d/r/ingest/-1/1"


def test_a_keyed_task_without_a_key_says_how_to_give_one() -> None:
    """The task fails when it is executed, and renders nothing before."""
    source = "/in/{{ partition_key[:7] }}/*.json"
    task = IngestOperator(task_id="ingest", table="shop.users", source=Files(source))
    task.render_template_fields(context(task))
    assert task.arguments["source"]["files"]["paths"] == [source]
    with pytest.raises(AirflowFailException, match="airflow dags clear DAG_ID --partition-key KEY"):
        task.execute(context(task))
    task = ingest()
    task.render_template_fields(
        {**context(task, partition_key="2026-11-01"), "dag": SimpleNamespace(dag_id="d")}
    )
    assert task.arguments["source"]["files"]["paths"] == ["/in/2026-11-01/*.json"]


def test_a_keyed_task_in_a_dag_without_keys_gets_a_hint_about_the_schedule() -> None:
    with pytest.raises(AirflowFailException, match=r"schedule=keyed_schedule\('@daily'\)"):
        ingest().execute({**context(ingest()), "dag": DAG("plain", schedule=None)})


@pytest.mark.parametrize(
    "connection, said",
    [
        ({"conn_type": "opal", "host": "data/lake"}, "neither an absolute path nor a URI"),
        (None, "the Opal connection 'opal_default' does not exist"),
    ],
)
def test_a_lake_that_cannot_be_found_fails_at_once(
    monkeypatch: pytest.MonkeyPatch, connection: dict[str, str] | None, said: str
) -> None:
    monkeypatch.delenv("AIRFLOW_CONN_OPAL_DEFAULT")
    if connection is not None:
        monkeypatch.setenv("AIRFLOW_CONN_OPAL_DEFAULT", json.dumps(connection))
    task = MetaGenOperator(task_id="m", table="t")
    with pytest.raises(AirflowFailException, match=said):
        task.execute(context(task))


def test_the_job_is_json_and_says_all() -> None:
    task = ingest()
    spec = JobSpec.from_json(task.job(context(task)).to_json())
    assert (spec.operation.name, spec.token) == ("ingest", "d/r/ingest/-1/0")
    assert spec.table.endswith("/shop/users")
    assert spec.operation.create == NewTable(keys=["id"], delta="at", file_format="parquet")
    assert Path(app_path()).name == "app.py"


def test_a_permanent_failure_is_not_retried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "spark-submit"
    script.write_text(f"#!/bin/sh\necho noise\necho 'opal: the table is not there'\nexit {INPUT}\n")
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    task = MetaGenOperator(task_id="m", table="t")
    with pytest.raises(AirflowFailException, match="opal: the table is not there"):
        task.execute(context(task))


def test_a_job_without_a_result_is_no_success(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "spark-submit"
    script.write_text("#!/bin/sh\nexit 0\n")
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    task = MetaGenOperator(task_id="m", table="t")
    with pytest.raises(AirflowException, match="the table has no commit of the job"):
        task.execute(context(task))


def test_a_job_with_a_result_is_not_submitted_again(tmp_path: Path) -> None:
    table = create(open_storage(str(tmp_path / "shop" / "users")))
    task = ingest()
    task_context = context(task, partition_key="2026-11-01")
    table.ingest(*rows([("a", 1, 1)]), token=token_of(task_context))
    result = task.execute(task_context)
    assert result["version"] == 1
    assert result["repeated"]
    assert json.loads(json.dumps(result)) == result


def test_a_first_run_is_no_repeat_and_what_a_clear_submits_is_none_either(
    tmp_path: Path, commands: Commands
) -> None:
    table, store = create(open_storage(str(tmp_path / "shop" / "users"))), Store()
    task = ingest(create=CreateTable(keys=["sku"], delta="at", deletes="price IS NULL"))
    commands.spark_submit(works=True)
    results = [
        task.execute(context(task, clears=clears, store=store, partition_key="2026-11-01"))
        for clears in (0, 0, 1)
    ]
    assert [(result["version"], result["repeated"]) for result in results] == [
        (1, False),
        (1, True),
        (2, False),
    ]
    assert table.snapshot_at().version == 2


def test_a_missing_spark_connection_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Airflow's own hook would take it for YARN."""
    monkeypatch.delenv("AIRFLOW_CONN_SPARK_DEFAULT")
    task = MetaGenOperator(task_id="m", table="t", spark_conn_id="spark_nowhere")
    with pytest.raises(
        AirflowFailException, match="the Spark connection 'spark_nowhere' does not exist"
    ):
        task.execute(context(task))


def test_the_driver_that_a_killed_worker_left_behind_is_ended() -> None:
    """The children of the driver end too; a process with a reused number does not."""
    script = "import subprocess, sys, time; subprocess.Popen(['sleep', '60']); time.sleep(60)"
    process = subprocess.Popen([sys.executable, "-c", script], start_new_session=True)
    time.sleep(0.5)
    known = process_identity(process.pid)
    assert not end_left_over({**known, "host": "elsewhere"})
    assert not end_left_over({**known, "started": "1"})
    assert process.poll() is None
    assert end_left_over(known)
    assert process.wait(10) != 0
    assert not end_left_over(known)


def test_properties_keep_what_the_user_s_file_says(tmp_path: Path) -> None:
    own = tmp_path / "own.properties"
    own.write_text("spark.x=1")
    with properties_file({"spark.secret": "a\\b"}, str(own)) as path:
        assert path is not None
        assert Path(path).read_text().splitlines() == ["spark.x=1", "spark.secret=a\\\\b"]
    assert not Path(path).exists()
    with properties_file({}, str(own)) as path:
        assert path == str(own)


@pytest.mark.parametrize(
    "connection,expected",
    [
        ({"host": "spark://master:7077"}, ["--master", "spark://master:7077"]),
        (
            {"host": "yarn", "extra": {"deploy-mode": "cluster", "queue": "lake"}},
            ["--master", "yarn", "--queue", "lake", "--deploy-mode", "cluster"],
        ),
    ],
)
def test_the_command_for_a_cluster(
    connection: dict[str, Any], expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(
        "AIRFLOW_CONN_SPARK_DEFAULT", json.dumps({"conn_type": "spark", **connection})
    )
    task = MetaGenOperator(
        task_id="m", table="t", archives="env.tar.gz#environment", executor_memory="4g"
    )
    hook = task._watched_hook(context(task))
    assert isinstance(hook, OpalSubmitHook)
    command = hook._build_spark_submit_command(app_path())
    for word in [*expected, "--archives", "env.tar.gz#environment", "--executor-memory", "4g"]:
        assert word in command
    assert hook.is_client == ("cluster" not in expected)


NO_MASTER = (
    "26/11/23 03:05:52 ERROR StandaloneSchedulerBackend: Application has been killed. "
    "Reason: All masters are unresponsive! Giving up."
)


@pytest.mark.parametrize(
    "script, said",
    [
        (
            f"echo '{NO_MASTER}'; echo 'opal: Spark failed: a stopped SparkContext'; exit 3",
            "no Spark master answers at local[2]",
        ),
        (
            "echo 'java.lang.OutOfMemoryError: Java heap space'; exit 3",
            "Spark ran out of memory: give it more (driver_memory=",
        ),
        ("kill -9 $$", "was killed by SIGKILL, as the kernel does when memory runs out"),
        ("exit 137", "was killed by SIGKILL, as the kernel does when memory runs out"),
        ("kill -15 $$", "was ended by SIGTERM"),
    ],
)
def test_the_last_line_of_a_failure_names_its_cause_and_its_mend(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, said: str
) -> None:
    submit = tmp_path / "spark-submit"
    submit.write_text(f"#!/bin/sh\n{script}\n")
    submit.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    task = MetaGenOperator(task_id="m", table="t")
    with pytest.raises(AirflowException) as failed:
        task.execute(context(task))
    assert said in str(failed.value).splitlines()[-1]


def test_a_worker_without_spark_submit_says_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "python").symlink_to(sys.executable)
    monkeypatch.setattr(
        sys, "executable", str(tmp_path / "python")
    )  # a folder without spark-submit
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("JAVA_HOME", "/")
    task = MetaGenOperator(task_id="m", table="t")
    with pytest.raises(
        AirflowFailException,
        match=r"spark-submit is not on the PATH of the Airflow worker on .*pip install airflow-pro",
    ):
        task.execute(context(task))


def test_an_ingest_into_a_table_that_is_not_there_says_how_to_make_it(commands: Commands) -> None:
    commands.spark_submit("opal: no table", status=INPUT)
    task = IngestOperator(task_id="i", table="shop.users", source="/in/*.json")
    with pytest.raises(AirflowFailException) as failed:
        task.execute(context(task))
    assert "the table 'shop.users' does not exist" in str(failed.value).splitlines()[-1]
    assert (
        "add create=CreateTable(keys=['id'], delta='updated_at')"
        in str(failed.value).splitlines()[-1]
    )


@pytest.mark.parametrize(
    "name, connection, said",
    [
        (
            "OPAL",
            {"conn_type": "fs", "host": "/lake"},
            "'opal_default' is of type 'fs', and a lake needs one of type 'opal'",
        ),
        (
            "SPARK",
            {"conn_type": "http", "host": "h"},
            "'spark_default' is of type 'http', and Spark jobs need one of type 'spark'",
        ),
        ("SPARK", {"conn_type": "spark"}, "'spark_default' has no host; write"),
        ("SPARK", {"conn_type": "spark", "host": "http://h"}, "which Spark does not know"),
    ],
)
def test_a_wrong_connection_is_named(
    monkeypatch: pytest.MonkeyPatch, name: str, connection: dict[str, str], said: str
) -> None:
    monkeypatch.setenv(f"AIRFLOW_CONN_{name}_DEFAULT", json.dumps(connection))
    task = MetaGenOperator(task_id="m", table="t")
    with pytest.raises(AirflowFailException, match=said):
        task.execute(context(task))


@pytest.mark.parametrize(
    "given, key, expected",
    [
        ({}, "mon", {"partition_key": "mon"}),
        ({}, None, {}),
        ({"partition_key": "tue"}, "mon", {"partition_key": "tue"}),
        ({"partition_key": "tue"}, None, {"partition_key": "tue"}),
        ({"tokens": ["t"]}, "mon", {"tokens": ["t"]}),
        ({"all": True}, "mon", {"all": True}),
    ],
)
def test_a_metagen_takes_the_key_of_its_run_unless_an_argument_chooses_rows(
    given: dict[str, Any], key: str | None, expected: dict[str, Any]
) -> None:
    task = MetaGenOperator(task_id="m", table="t", **given)
    operation = task.job(context(task, partition_key=key)).operation
    nothing = {"token": None, "partition_key": None, "tokens": None, "all": False}
    assert vars(operation) == {**nothing, **expected}


def test_a_metagen_with_two_arguments_that_choose_rows_is_refused_when_the_dag_is_read() -> None:
    with pytest.raises(ValueError, match="one of partition_key, tokens and all"):
        MetaGenOperator(task_id="m", table="t", partition_key="mon", all=True)


def test_the_keys_that_stay_pending_are_in_the_result_of_a_metagen(tmp_path: Path) -> None:
    table = create(open_storage(str(tmp_path / "shop" / "users")))
    task = MetaGenOperator(task_id="m", table="shop.users")
    run = {**context(task, partition_key="tue"), "outlet_events": Events()}
    for key in ("mon", "tue"):
        table.ingest(*rows([(key, 1, 1)]), partition_key=key)
    table.metagen(partition_key="tue", token=token_of(run))
    [note] = [note for note in task.execute(run)["notes"] if "stays pending" in note]
    assert note.startswith("partition key mon stays pending: 1 segment, 1 row, ingested ")


def test_a_clear_replaces_the_pending_rows_of_its_earlier_tries_and_a_retry_does_not() -> None:
    task, store = ingest(), Store()

    def replaced(clears: int) -> Any:
        run = context(task, clears=clears, store=store, partition_key="mon")
        return task.job(run).operation.replaces

    assert replaced(0) is None
    assert replaced(0) is None
    assert replaced(1) == ["d/r/ingest/-1/0"]
    assert replaced(1) == ["d/r/ingest/-1/0"]
    assert replaced(2) == ["d/r/ingest/-1/0", "d/r/ingest/-1/1"]


def test_a_day_that_is_corrected_and_cleared_after_a_failed_check_is_without_its_bad_row(
    tmp_path: Path,
) -> None:
    """The MetaGen of another day does not publish the day whose check failed."""
    table = create(open_storage(str(tmp_path / "shop" / "users")))
    task, store = ingest(), Store()
    spec = task.job(context(task, store=store, partition_key="mon"))
    table.ingest(*rows([("BAD-1", 1, 1), ("a", 1, 1)]), partition_key="mon", token=spec.token)
    table.ingest(*rows([("b", 1, 1)]), partition_key="tue")
    table.metagen(partition_key="tue")
    cleared = task.job(context(task, clears=1, store=store, partition_key="mon"))
    table.ingest(
        *rows([("a", 2, 1)]),
        partition_key="mon",
        token=cleared.token,
        replaces=cleared.operation.replaces,
    )
    checked = table.metagen(partition_key="mon").version
    seen = [content(table, version=version) for version in range(table.snapshot_at().version + 1)]
    assert checked is not None
    assert {row for state in seen[:checked] for row in state} == {("b", 1, 1)}
    assert sorted(seen[checked]) == [("a", 2, 1), ("b", 1, 1)]
    assert content(table, partition_key="mon", net=True) == [("a", 2, 1)]


def set_root(monkeypatch: pytest.MonkeyPatch, root: str, **extra: Any) -> None:
    connection = {"conn_type": "opal", "host": root, "extra": extra}
    monkeypatch.setenv("AIRFLOW_CONN_OPAL_DEFAULT", json.dumps(connection))


@pytest.mark.parametrize("form", ["{}", "file://{}"])
def test_an_ingest_into_a_root_that_does_not_exist_fails_before_spark_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, commands: Commands, form: str
) -> None:
    root = form.format(tmp_path / "lakee")
    set_root(monkeypatch, root)
    commands.spark_submit(works=True)
    with pytest.raises(AirflowFailException, match=f"'opal_default': the lake's root {root} does"):
        ingest().execute(context(ingest(), partition_key="2026-11-01"))
    assert commands.notes() == []
    assert not (tmp_path / "lakee").exists()
    works, message = OpalHook().test_connection()
    assert not works
    assert 'With the extra {"create_root": true} in the connection' in message


def test_a_root_that_may_be_created_lets_the_first_ingest_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, commands: Commands
) -> None:
    set_root(monkeypatch, str(tmp_path / "new"), create_root=True)
    commands.spark_submit()
    with pytest.raises(AirflowException, match="the table has no commit of the job"):
        ingest().execute(context(ingest(), partition_key="2026-11-01"))
    assert len(commands.notes()) == 1
    assert OpalHook().test_connection()[0]


def test_a_root_that_is_a_file_is_refused_even_if_it_may_be_created(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "lake").touch()
    set_root(monkeypatch, str(tmp_path / "lake"), create_root="true")
    with pytest.raises(AirflowFailException, match="is not a folder on"):
        ingest().execute(context(ingest(), partition_key="2026-11-01"))


def test_a_table_outside_the_root_does_not_need_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_root(monkeypatch, str(tmp_path / "lakee"))
    assert not OpalHook().exists(str(tmp_path / "elsewhere" / "t"))


@pytest.mark.s3
def test_a_bucket_that_does_not_exist_is_named_and_an_absent_prefix_is_an_empty_one(
    monkeypatch: pytest.MonkeyPatch, s3_options: dict[str, str], commands: Commands
) -> None:
    login = {
        "login": s3_options["aws_access_key_id"],
        "password": s3_options["aws_secret_access_key"],
        "extra": {"endpoint_url": s3_options["endpoint_url"], "region_name": "us-east-1"},
    }
    wrong = {"conn_type": "opal", "host": "s3a://no-such-lake/x", **login}
    monkeypatch.setenv("AIRFLOW_CONN_OPAL_DEFAULT", json.dumps(wrong))
    commands.spark_submit(works=True)
    with pytest.raises(AirflowFailException, match="bucket 'no-such-lake' does not exist"):
        ingest().execute(context(ingest(), partition_key="2026-11-01"))
    assert commands.notes() == []
    works, message = OpalHook().test_connection()
    assert (works, "bucket 'no-such-lake' does not exist" in message) == (False, True)
    absent = {**wrong, "host": "s3a://lake/no-such-prefix"}
    monkeypatch.setenv("AIRFLOW_CONN_OPAL_DEFAULT", json.dumps(absent))
    assert not OpalHook().exists("shop.users")
    assert OpalHook().test_connection()[0]


@pytest.mark.parametrize(
    "reported, leads_to",
    [
        ("Spark history: http://history:18080/history/app-1", "http://history:18080/history/app-1"),
        ("Spark UI: http://worker:4040", "http://airflow/dags/d/runs/r/tasks/m"),
        ("", "http://airflow/dags/d/runs/r/tasks/m"),
    ],
)
def test_the_link_to_spark_leads_to_what_stays_after_the_job(
    commands: Commands, reported: str, leads_to: str
) -> None:
    commands.spark_submit(reported, status=1)
    task = MetaGenOperator(task_id="m", table="t")
    with pytest.raises(AirflowException):
        task.execute(context(task))
    [link] = task.operator_extra_links
    log = SimpleNamespace(log_url="http://airflow/dags/d/runs/r/tasks/m")
    assert link.get_link(task, ti_key=log) == leads_to


GET_JAVA = "pip install 'airflow-provider-opal[java]'"
GET_SPARK = "pip install airflow-provider-opal"


@pytest.mark.parametrize(
    "line, said",
    [
        ("JAVA_HOME is not set", "has no Java, and Spark needs"),
        (
            "spark-class: line 97: /no/bin/java: No such file or directory",
            "does not lead to a Java",
        ),
        ("java.lang.UnsupportedClassVersionError: org/apache/spark/launcher/Main", "is too old"),
        ("ModuleNotFoundError: No module named 'pyspark'", "Spark is not complete on"),
        ("Could not find valid SPARK_HOME while searching ['/x']", "Spark is not complete on"),
    ],
)
def test_a_missing_part_of_the_worker_fails_without_a_retry_and_names_the_extra(
    commands: Commands, line: str, said: str
) -> None:
    commands.spark_submit(line, status=1)
    task = MetaGenOperator(task_id="m", table="t", retries=3)
    with pytest.raises(AirflowFailException, match="metagen of t was not submitted") as failed:
        task.execute(context(task))
    last = str(failed.value).splitlines()[-1]
    assert said in last
    assert (GET_SPARK if "Spark is not complete" in said else GET_JAVA) in last


def test_a_worker_without_java_fails_finally_under_spark_s_own_spark_submit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """JAVA_HOME, java on the PATH and the wheel are missing without the extra."""
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("bash", "env", "dirname", "basename", "cat", "uname", "sh"):
        (tools / name).symlink_to(str(shutil.which(name)))
    submit = Path(sys.executable).with_name("spark-submit")
    (tools / "spark-submit").write_text(f'#!/bin/sh\nexec "{submit}" "$@"\n')
    (tools / "spark-submit").chmod(0o755)
    (tools / "python3").symlink_to(sys.executable)
    monkeypatch.setenv("PATH", str(tools))
    monkeypatch.setenv("SPARK_HOME", spark_home())
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setattr("airflow_provider_opal.hooks.submit.java_environment", dict)
    task = MetaGenOperator(task_id="m", table="t", retries=3)
    with pytest.raises(AirflowFailException) as failed:
        task.execute(context(task))
    last = str(failed.value).splitlines()[-1]
    assert last.startswith("the Airflow worker ")
    assert "has no Java" in last
    assert GET_JAVA in last


def spark_home() -> str:
    package = find_spec("pyspark")
    assert package is not None
    assert package.origin is not None
    return str(Path(package.origin).parent)
