"""OpalSparkOperator on clusters: its commands, their ends, and kills."""

import itertools
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from airflow.providers.apache.spark.hooks import spark_submit
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from airflow_provider_opal import Files, IngestOperator, MetaGenOperator
from airflow_provider_opal.hooks.submit import OpalSubmitHook
from airflow_provider_opal.operators.spark import OpalSparkOperator, app_path
from opal_lake.storage.open import open_storage
from tests.airflow_provider_opal.stand_ins import (
    Cluster,
    Commands,
    Store,
    cluster,
    commands,
    context,
    pod,
    yarn_report,
)
from tests.opal_lake.shop import create, create_with_pending

__all__ = ["cluster", "commands"]

SUBMITTED_TO_YARN = "INFO YarnClientImpl: Submitted application application_1_0007"
SUBMITTED_TO_K8S = (
    "INFO LoggingPodStatusWatcherImpl: State changed, new state:  "
    "pod name: opal-metagen-1a2b3c-driver"
)
POD = "/api/v1/namespaces/lake/pods/opal-metagen-1a2b3c-driver"
YARN_APP = "/ws/v1/cluster/apps/application_1_0007"
PACKED = {
    "archives": "environment.tar.gz#environment",
    "conf": {"spark.pyspark.python": "./environment/bin/python"},
}
NO_PYTHON = ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON")


def spark_connection(monkeypatch: pytest.MonkeyPatch, host: str, **extra: str) -> None:
    monkeypatch.setenv(
        "AIRFLOW_CONN_SPARK_DEFAULT",
        json.dumps({"conn_type": "spark", "host": host, "extra": extra}),
    )


@pytest.fixture(autouse=True)
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(
        "AIRFLOW_CONN_OPAL_DEFAULT",
        json.dumps({"conn_type": "opal", "host": str(tmp_path / "lake")}),
    )
    for name in NO_PYTHON:
        monkeypatch.delenv(name, raising=False)
    create_with_pending(open_storage(str(tmp_path / "lake" / "pending")))
    create(open_storage(str(tmp_path / "lake" / "t")))


@pytest.fixture
def kubernetes(cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """Airflow's own client of Kubernetes, led to the stand-in."""
    pytest.importorskip(
        "airflow.providers.cncf.kubernetes.kube_client",
        reason="needs apache-airflow-providers-cncf-kubernetes",
    )
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "c",
        "clusters": [{"name": "c", "cluster": {"server": cluster.url}}],
        "users": [{"name": "u", "user": {}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
    }
    (tmp_path / "kube.json").write_text(json.dumps(config))
    monkeypatch.setenv("AIRFLOW__KUBERNETES_EXECUTOR__IN_CLUSTER", "False")
    monkeypatch.setenv("AIRFLOW__KUBERNETES_EXECUTOR__CONFIG_FILE", str(tmp_path / "kube.json"))
    spark_connection(
        monkeypatch, "k8s://https://kube:6443", **{"deploy-mode": "cluster", "namespace": "lake"}
    )
    return cluster


@pytest.fixture
def yarn(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """Set a connection to YARN whose resource manager is the stand-in."""
    spark_connection(
        monkeypatch,
        "yarn",
        **{"deploy-mode": "cluster", "yarn_resourcemanager_webapp_address": cluster.url},
    )
    return cluster


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Airflow's hook asks clusters every ten seconds or more; here without a pause."""

    class Quick:
        monotonic = staticmethod(time.monotonic)

        @staticmethod
        def sleep(seconds: float) -> None:
            time.sleep(min(seconds, 0.05))

    monkeypatch.setattr(spark_submit, "time", Quick)


def metagen(**more: Any) -> MetaGenOperator:
    return MetaGenOperator(task_id="m", table="pending", **more)


def ingest(**more: Any) -> IngestOperator:
    return IngestOperator(task_id="i", table="t", source=Files(paths=("/in/*.json",)), **more)


def command_of(task: OpalSparkOperator) -> tuple[OpalSubmitHook, list[str]]:
    hook = task._watched_hook(context(task))
    hook.check_master()
    return hook, hook._build_spark_submit_command(app_path())


def option(command: list[str], name: str) -> list[str]:
    return [value for flag, value in itertools.pairwise(command) if flag == name]


# The command


@pytest.mark.parametrize(
    "host,extra,expected",
    [
        ("local[2]", {}, {"--master": ["local[2]"], "--deploy-mode": []}),
        ("local", {}, {"--master": ["local"], "--deploy-mode": []}),
        ("spark://h:7077", {}, {"--master": ["spark://h:7077"], "--deploy-mode": []}),
        (
            "spark://h:7077,i:7077",
            {"deploy-mode": "client"},
            {"--master": ["spark://h:7077,i:7077"], "--deploy-mode": ["client"]},
        ),
        ("yarn", {"queue": "q"}, {"--master": ["yarn"], "--queue": ["q"], "--deploy-mode": []}),
        (
            "yarn",
            {"queue": "q", "deploy-mode": "cluster"},
            {"--master": ["yarn"], "--queue": ["q"], "--deploy-mode": ["cluster"]},
        ),
    ],
)
def test_the_connection_says_master_and_deploy_mode(
    host: str,
    extra: dict[str, str],
    expected: dict[str, list[str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spark_connection(monkeypatch, host, **extra)
    hook, command = command_of(metagen())
    assert {name: option(command, name) for name in expected} == expected
    assert hook.is_client == (extra.get("deploy-mode") != "cluster")


def test_the_connection_says_namespace_and_deploy_mode_of_kubernetes(kubernetes: Cluster) -> None:
    hook, command = command_of(metagen(conf={"spark.kubernetes.container.image": "opal:1"}))
    assert option(command, "--master") == ["k8s://https://kube:6443"]
    assert option(command, "--deploy-mode") == ["cluster"]
    assert {"spark.kubernetes.namespace=lake", "spark.kubernetes.container.image=opal:1"} <= set(
        option(command, "--conf")
    )
    assert not hook.is_client


@pytest.mark.parametrize(
    "host,mode",
    [("local[2]", "client"), ("spark://h:7077", "client"), ("yarn", "client"), ("yarn", "cluster")],
)
def test_arguments_of_the_user_reach_spark_submit(
    host: str, mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spark_connection(monkeypatch, host, **{"deploy-mode": mode} if host != "local[2]" else {})
    own = tmp_path / "own.properties"
    given = {
        "archives": "e.tar.gz#e",
        "py_files": "p.zip",
        "files": "f.txt",
        "jars": "j.jar",
        "packages": "g:a:1",
        "principal": "me@REALM",
        "keytab": "/k.tab",
        "properties_file": str(own),
        "executor_memory": "4g",
        "driver_memory": "2g",
        "executor_cores": 2,
    }
    _, command = command_of(metagen(conf={"spark.x": "1"}, **given))
    assert {name: option(command, f"--{name.replace('_', '-')}") for name in given} == {
        name: [str(value)] for name, value in given.items()
    }
    assert "spark.x=1" in option(command, "--conf")


def test_the_app_is_the_last_word_and_may_lie_in_the_image(
    kubernetes: Cluster, commands: Commands
) -> None:
    commands.spark_submit(SUBMITTED_TO_K8S, "exit code: 1", status=1)
    task = metagen(app="local:///opt/opal/app.py")
    with pytest.raises(AirflowException):
        task.execute(context(task))
    assert commands.notes()[0]["argv"][-3:-1] == ["local:///opt/opal/app.py", "--spec"]


@pytest.mark.parametrize(
    "host,mode,expected",
    [
        (
            "local[2]",
            None,
            {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable},
        ),
        ("spark://h:7077", None, {"PYSPARK_DRIVER_PYTHON": sys.executable}),
        ("yarn", "client", {"PYSPARK_DRIVER_PYTHON": sys.executable}),
        ("yarn", "cluster", {}),
    ],
)
def test_this_machine_s_python_is_named_only_to_what_runs_on_it(
    host: str,
    mode: str | None,
    expected: dict[str, str],
    commands: Commands,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Expect the variables that YARN carries to its nodes; the user's env_vars stay.

    Executors take the driver's word for their Python.
    """
    spark_connection(monkeypatch, host, **{"deploy-mode": mode} if mode else {})
    commands.spark_submit(status=1)
    task = metagen(env_vars={"OWN": "1"})
    with pytest.raises(AirflowException):
        task.execute(context(task))
    environment = commands.notes()[0]["environment"]
    assert {name: environment[name] for name in NO_PYTHON if name in environment} == expected
    assert environment["OWN"] == "1"


@pytest.mark.parametrize(
    "mode,driver", [("client", [f"spark.pyspark.driver.python={sys.executable}"]), ("cluster", [])]
)
def test_beside_a_packed_python_the_driver_here_keeps_its_own(
    mode: str, driver: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    spark_connection(monkeypatch, "yarn", **{"deploy-mode": mode})
    _, command = command_of(metagen(**PACKED))
    conf = option(command, "--conf")
    assert "spark.pyspark.python=./environment/bin/python" in conf
    assert [line for line in conf if line.startswith("spark.pyspark.driver.python")] == driver


# Masters that cannot be


@pytest.mark.parametrize(
    "host",
    [
        "spark://local[2]",
        "",
        "h",
        "spark://h",
        "yarn-cluster",
        "yarn://",
        "k8s://",
        "local[2",
        "mesos://h:5050",
    ],
)
def test_a_master_that_spark_does_not_know_is_refused_before_it_is_submitted_to(
    host: str, commands: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    if host == "k8s://":
        pytest.importorskip("airflow.providers.cncf.kubernetes.kube_client")
    spark_connection(monkeypatch, host)
    commands.spark_submit()
    task = metagen()
    with pytest.raises(
        AirflowFailException,
        match=r"which Spark does not know. Set the connection's host to local\[2\]",
    ):
        task.execute(context(task))
    assert not commands.notes()


def test_a_connection_uri_of_which_airflow_would_make_yarn_is_refused(
    commands: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", "spark://local[2]")
    commands.spark_submit()
    task = metagen()
    with pytest.raises(AirflowException):
        task.execute(context(task))
    assert not commands.notes()


@pytest.mark.parametrize("host", ["spark://h:7077", "local[2]"])
def test_a_python_driver_inside_a_standalone_cluster_is_refused_as_spark_refuses_it(
    host: str, commands: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    spark_connection(monkeypatch, host, **{"deploy-mode": "cluster"})
    commands.spark_submit()
    task = metagen()
    with pytest.raises(AirflowFailException, match="the deploy mode client"):
        task.execute(context(task))
    assert not commands.notes()


def test_kubernetes_without_airflow_s_provider_for_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delattr(spark_submit, "kube_client", raising=False)
    spark_connection(monkeypatch, "k8s://https://kube:6443", **{"deploy-mode": "cluster"})
    task = metagen()
    with pytest.raises(
        AirflowFailException, match="pip install apache-airflow-providers-cncf-kubernetes"
    ):
        task.execute(context(task))


# What the cluster may lack


@pytest.mark.parametrize(
    "host,given,warned",
    [
        ("local[2]", {}, False),
        ("spark://h:7077", {}, True),
        ("yarn", {}, True),
        ("yarn", PACKED, False),
        ("yarn", {"py_files": "p.zip"}, False),
        ("yarn", {"conf": {"spark.archives": "hdfs:///e.tar.gz#environment"}}, False),
        ("yarn", {"properties_file": "/own.properties"}, False),
    ],
)
def test_a_cluster_that_is_given_no_packages_is_warned_about(
    host: str, given: dict[str, Any], warned: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    spark_connection(monkeypatch, host)
    task = metagen(**given)
    assert [
        "opal pack" in doubt for doubt in task._watched_hook(context(task)).doubts("/submit/app.py")
    ] == [True] * warned


@pytest.mark.parametrize(
    "application,conf,warned",
    [
        ("/site-packages/opal_spark/submit/app.py", {}, True),
        (
            "/site-packages/opal_spark/submit/app.py",
            {"spark.kubernetes.file.upload.path": "s3a://b/up"},
            False,
        ),
        ("local:///opt/opal/app.py", {}, False),
    ],
)
def test_a_pod_that_cannot_see_its_app_is_warned_about(
    kubernetes: Cluster, application: str, conf: dict[str, str], warned: bool
) -> None:
    task = metagen(conf={"spark.kubernetes.container.image": "opal:1", **conf})
    assert ["app=" in doubt for doubt in task._watched_hook(context(task)).doubts(application)] == [
        True
    ] * warned


def test_the_warning_is_in_the_task_s_log(
    commands: Commands, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    spark_connection(monkeypatch, "spark://h:7077")
    commands.spark_submit(status=1)
    task = metagen()
    with pytest.raises(AirflowException):
        task.execute(context(task))
    assert "opal pack" in "".join(capfd.readouterr())


# YARN


def test_on_yarn_spark_submit_leaves_and_the_resource_manager_tells_the_end(
    commands: Commands, yarn: Cluster
) -> None:
    yarn.reports = [yarn_report("FINISHED", "SUCCEEDED")]
    commands.spark_submit(SUBMITTED_TO_YARN, works=True)
    task, store = ingest(**PACKED), Store()
    result = task.execute(context(task, store=store))
    assert result["version"] == 1
    assert "spark.yarn.submit.waitAppCompletion=false" in option(
        commands.notes()[0]["argv"], "--conf"
    )
    assert store["spark_job_id:d/r/i/-1/0"] == "application_1_0007"


@pytest.mark.parametrize(
    "report",
    [
        yarn_report("FINISHED", "SUCCEEDED"),
        yarn_report("FINISHED", "FAILED", "User application exited with status 3"),
        yarn_report("KILLED", "KILLED"),
    ],
)
def test_without_a_result_a_yarn_application_may_be_tried_again_whatever_its_state(
    report: dict[str, Any], commands: Commands, yarn: Cluster
) -> None:
    yarn.reports = [report]
    commands.spark_submit(SUBMITTED_TO_YARN)
    task = metagen(**PACKED)
    with pytest.raises(
        AirflowException, match="yarn logs -applicationId application_1_0007"
    ) as caught:
        task.execute(context(task))
    assert not isinstance(caught.value, AirflowFailException)


def test_with_a_result_a_yarn_application_has_succeeded_though_yarn_says_it_failed(
    commands: Commands, yarn: Cluster
) -> None:
    yarn.reports = [yarn_report("FAILED", "FAILED", "the last container was lost")]
    commands.spark_submit(SUBMITTED_TO_YARN, works=True)
    task = ingest(**PACKED)
    assert task.execute(context(task))["version"] == 1


def test_wrong_input_is_final_in_yarn_too(commands: Commands, yarn: Cluster) -> None:
    yarn.reports = [yarn_report("FINISHED", "FAILED", "User application exited with status 2")]
    commands.spark_submit(SUBMITTED_TO_YARN)
    task = metagen(**PACKED)
    with pytest.raises(AirflowFailException, match="the same command fails again"):
        task.execute(context(task))


def test_a_retry_joins_the_yarn_application_of_the_try_before_and_returns_its_result(
    commands: Commands, yarn: Cluster, quick: None, tmp_path: Path
) -> None:
    """Kill an application after a reconnect.

    Airflow's operator would return nothing then, and forget the application: a kill did nothing.
    """
    yarn.reports = [
        yarn_report("RUNNING"),
        yarn_report("RUNNING"),
        yarn_report("FINISHED", "SUCCEEDED"),
    ]
    commands.spark_submit()
    task, store = ingest(**PACKED), Store({"spark_job_id:d/r/i/-1/0": "application_1_0007"})
    finder = task.opal.__class__.find_result
    asked: list[str] = []

    def finishing(opal: Any, table: str, operation: str, token: str) -> Any:
        """Commit as the application does while the task waits for it."""
        if asked:
            from opal_lake.table import Table
            from tests.opal_lake.shop import rows

            Table.open(table).ingest(*rows([("a", 1, 1)]), token=token)
        asked.append(token)
        return finder(opal, table, operation, token)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(task.opal.__class__, "find_result", finishing)
        result = task.execute(context(task, store=store))
    assert result["version"] == 1
    assert not commands.notes()
    assert isinstance(task._hook, OpalSubmitHook)
    assert task._hook._yarn_application_id == "application_1_0007"


def test_a_yarn_application_that_succeeded_without_a_result_is_submitted_again(
    commands: Commands, yarn: Cluster
) -> None:
    yarn.reports = [yarn_report("FINISHED", "SUCCEEDED")]
    commands.spark_submit(SUBMITTED_TO_YARN, works=True)
    task = ingest(**PACKED)
    assert (
        task.execute(context(task, store=Store({"spark_job_id:d/r/i/-1/0": "application_1_0001"})))[
            "version"
        ]
        == 1
    )
    assert len(commands.notes()) == 1


def test_a_clear_submits_an_application_again_that_succeeded(
    commands: Commands, yarn: Cluster
) -> None:
    """Airflow's operator would find the finished application, and do nothing."""
    yarn.reports = [yarn_report("FINISHED", "SUCCEEDED")]
    commands.spark_submit(SUBMITTED_TO_YARN, works=True)
    task, store = ingest(**PACKED), Store()
    versions = [
        task.execute(context(task, clears=clears, store=store))["version"] for clears in (0, 0, 1)
    ]
    assert versions == [1, 1, 2]
    assert len(commands.notes()) == 2


def test_a_clear_submits_a_new_application_and_does_not_join_the_earlier_one(
    commands: Commands, yarn: Cluster
) -> None:
    yarn.reports = [yarn_report("FINISHED", "SUCCEEDED")]
    commands.spark_submit(SUBMITTED_TO_YARN, works=True)
    task, store = (
        ingest(**PACKED),
        Store(
            {"spark_job_id:d/r/i/-1/0": "application_1_0001", "spark_job_id": "application_1_0001"}
        ),
    )
    assert task.execute(context(task, clears=1, store=store))["version"] == 1
    assert store["spark_job_id:d/r/i/-1/1"] == "application_1_0007"
    assert store["spark_job_id:d/r/i/-1/0"] == store["spark_job_id"] == "application_1_0001"


def test_a_resource_manager_that_is_not_known_means_that_spark_submit_waits(
    commands: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Airflow's operator alone refuses to start."""
    spark_connection(monkeypatch, "yarn", **{"deploy-mode": "cluster"})
    commands.spark_submit(SUBMITTED_TO_YARN, works=True)
    task = ingest(**PACKED)
    assert task.execute(context(task))["version"] == 1
    assert not [
        line
        for line in option(commands.notes()[0]["argv"], "--conf")
        if "waitAppCompletion" in line
    ]
    insisting = metagen(durable=True, **PACKED)
    with pytest.raises(AirflowFailException, match="yarn_track_via_rm_api=True"):
        insisting.execute(context(insisting))


# Kubernetes


def test_a_pod_that_vanished_is_no_success_without_a_result(
    commands: Commands, kubernetes: Cluster
) -> None:
    """Airflow's hook takes it for one."""
    kubernetes.reports = [None]
    commands.spark_submit(SUBMITTED_TO_K8S)
    task = metagen(track_driver_via_k8s_api=True, **PACKED)
    with pytest.raises(AirflowException, match="the table has no commit of the job") as caught:
        task.execute(context(task))
    assert not isinstance(caught.value, AirflowFailException)


def test_a_pod_that_vanished_is_a_success_with_a_result(
    commands: Commands, kubernetes: Cluster
) -> None:
    kubernetes.reports = [None]
    commands.spark_submit(SUBMITTED_TO_K8S, works=True)
    task = ingest(track_driver_via_k8s_api=True, **PACKED)
    assert task.execute(context(task))["version"] == 1


@pytest.mark.parametrize("code,final", [(2, True), (3, False), (137, False)])
def test_the_exit_code_of_a_pod_decides_whether_to_try_again(
    code: int, final: bool, commands: Commands, kubernetes: Cluster
) -> None:
    kubernetes.reports = [pod("Failed", code)]
    commands.spark_submit(SUBMITTED_TO_K8S)
    task = metagen(track_driver_via_k8s_api=True, **PACKED)
    with pytest.raises(
        AirflowException, match="kubectl logs opal-metagen-1a2b3c-driver --namespace lake"
    ) as caught:
        task.execute(context(task))
    assert isinstance(caught.value, AirflowFailException) == final


def test_the_exit_code_is_read_from_spark_submit_where_it_waits_for_the_pod(
    commands: Commands, kubernetes: Cluster
) -> None:
    commands.spark_submit(SUBMITTED_TO_K8S, "\t exit code: 2", status=2)
    task = metagen(**PACKED)
    with pytest.raises(AirflowFailException, match="the same command fails again"):
        task.execute(context(task))


def test_a_retry_after_a_clear_does_not_believe_in_a_pod_of_the_run_before(
    commands: Commands, kubernetes: Cluster, quick: None
) -> None:
    """Wait for the pod that runs after one that succeeded.

    Airflow's operator keeps `Succeeded` permanently, whatever job it asks about, and would not
    wait.
    """
    kubernetes.reports = [pod("Succeeded", 0)]
    commands.spark_submit(SUBMITTED_TO_K8S, works=True)
    task, store = ingest(track_driver_via_k8s_api=True, **PACKED), Store()
    assert task.execute(context(task, store=store))["version"] == 1
    store.set(
        "spark_job_id:d/r/i/-1/1", "lake:opal-ingest-4d5e6f-driver"
    )  # of a try whose worker died at once
    kubernetes.reports = [pod("Running"), pod("Running"), pod("Failed", 3)]
    with pytest.raises(AirflowException, match="exit_code=3"):
        task.execute(context(task, clears=1, store=store))
    assert len(commands.notes()) == 1


# Kills


def killed(task: OpalSparkOperator, until: Callable[[], object]) -> None:
    """Run the task, and kill it once the job is on its way, by its on_kill."""
    failures: list[Exception] = []

    def run() -> None:
        try:
            task.execute(context(task))
        except AirflowException as error:
            failures.append(error)

    thread = Thread(target=run)
    thread.start()
    end = time.monotonic() + 20
    while not until():
        assert time.monotonic() < end, "the job did not start"
        time.sleep(0.05)
    started = time.monotonic()
    task.on_kill()
    assert time.monotonic() - started < 5, "Airflow sends SIGKILL after five seconds"
    thread.join(20)
    assert not thread.is_alive()
    assert failures


def is_gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def test_a_kill_of_a_driver_here_ends_spark_submit(
    commands: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    spark_connection(monkeypatch, "spark://h:7077")
    commands.spark_submit(pause_s=60)
    killed(metagen(), commands.notes)
    assert is_gone(commands.notes()[0]["pid"])


def test_a_kill_reaches_yarn_by_its_command_while_spark_submit_waits(
    commands: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    spark_connection(monkeypatch, "yarn", **{"deploy-mode": "cluster"})
    commands.spark_submit(SUBMITTED_TO_YARN, pause_s=60)
    commands.plain("yarn")
    task = metagen(**PACKED)
    killed(task, lambda: task._hook is not None and task._hook._yarn_application_id)
    assert commands.notes("yarn") == [{"argv": "application -kill application_1_0007"}]
    assert is_gone(commands.notes()[0]["pid"])


@pytest.mark.parametrize("rejoined", [False, True])
def test_a_kill_reaches_yarn_by_its_resource_manager(
    rejoined: bool, commands: Commands, yarn: Cluster, quick: None
) -> None:
    yarn.reports = [yarn_report("RUNNING")]
    commands.spark_submit(SUBMITTED_TO_YARN)
    task = metagen(**PACKED)
    if rejoined:
        store = Store({"spark_job_id:d/r/m/-1/0": "application_1_0007"})
        task.retries = 0
        execute = task.execute
        task.__dict__["execute"] = lambda context: execute({**context, "task_state_store": store})
    killed(task, lambda: task._hook is not None and task._hook._yarn_application_id)
    assert yarn.asked == [(f"PUT {YARN_APP}/state", '{"state": "KILLED"}')]
    assert bool(commands.notes()) != rejoined


@pytest.mark.parametrize("tracked", [False, True])
def test_a_kill_deletes_the_driver_s_pod(
    tracked: bool, commands: Commands, kubernetes: Cluster, quick: None
) -> None:
    kubernetes.reports = [pod("Running")]
    commands.spark_submit(SUBMITTED_TO_K8S, pause_s=0 if tracked else 60)
    task = metagen(track_driver_via_k8s_api=tracked, **PACKED)
    killed(task, lambda: task._hook is not None and task._hook._kubernetes_driver_pod)
    # Airflow's hook asks twice where spark-submit has not ended yet
    assert {what for what, _ in kubernetes.asked} == {f"DELETE {POD}"}


def test_a_kill_before_anything_was_submitted_does_nothing() -> None:
    metagen().on_kill()
