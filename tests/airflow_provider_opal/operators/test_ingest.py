"""An IngestOperator refuses wrong input before it starts Spark, and leaves the rest to the job."""

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from airflow_provider_opal import CreateTable, Files, IngestOperator
from airflow_provider_opal.operators.spark import token_of
from airflow_provider_opal.operators.worker_place import SparkStart
from opal_lake.storage.open import open_storage
from tests.airflow_provider_opal.stand_ins import Commands, Store, commands, context
from tests.opal_lake.shop import create

__all__ = ["commands"]

NO_FILE = "no file to read: looked for"


@pytest.fixture(autouse=True)
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    connection = {"conn_type": "opal", "host": str(tmp_path / "lake")}
    monkeypatch.setenv("AIRFLOW_CONN_OPAL_DEFAULT", json.dumps(connection))
    set_master(monkeypatch, "local[2]")
    create(open_storage(str(tmp_path / "lake" / "t")))
    return tmp_path / "lake"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Return a folder with the file of one day."""
    folder = tmp_path / "in"
    (folder / "mon").mkdir(parents=True)
    (folder / "mon" / "one.json").write_text('{"sku": "a", "at": 1, "price": 1}')
    return folder


@pytest.fixture
def spark(commands: Commands) -> Commands:
    """Return a Spark whose spark-submit only notes that it was started."""
    commands.spark_submit(status=1)
    (commands.folder.parent / "jars").mkdir()  # so that it is a home of Spark
    return commands


LEADING = ("HADOOP_CONF_DIR", "YARN_CONF_DIR", "SPARK_CONF_DIR", "SPARK_DIST_CLASSPATH")


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SPARK_HOME", *LEADING):
        monkeypatch.delenv(name, raising=False)


def set_master(monkeypatch: pytest.MonkeyPatch, master: str) -> None:
    connection = {"conn_type": "spark", "host": master}
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps(connection))


def ingest(source: Any, **given: Any) -> IngestOperator:
    return IngestOperator(task_id="i", source=source, **{"table": "t", **given})


def refusal(spark: Commands, task: IngestOperator) -> str:
    """Return the error of a task that is refused without Spark."""
    with pytest.raises(AirflowFailException) as refused:
        task.execute(context(task))
    assert spark.notes() == []
    return str(refused.value)


def assert_starts_spark(spark: Commands, task: IngestOperator, **given: Any) -> None:
    before = len(spark.notes())
    with pytest.raises(AirflowException) as failed:
        task.execute(context(task, **given))
    assert NO_FILE not in str(failed.value)
    assert len(spark.notes()) == before + 1


@pytest.mark.parametrize("form", ["{}", "file://{}", "file:{}"])
@pytest.mark.parametrize("path", ["tue", "tue/one.json", "mon/*.csv", "m?n/two.json", "*/*/*"])
def test_a_source_without_a_file_is_refused(
    spark: Commands, source: Path, form: str, path: str
) -> None:
    looked_for = form.format(source / path)
    error = refusal(spark, ingest(Files(looked_for, format="json")))
    assert f"opal: {NO_FILE} {looked_for!r}; correct the paths" in error
    assert "the same command fails again" in error


@pytest.mark.parametrize("path", ["mon", "mon/one.json", "*/one.json", "m?n/*", "m[a-o]n", "{mon}"])
def test_a_source_with_a_file_is_left_to_the_job(spark: Commands, source: Path, path: str) -> None:
    assert_starts_spark(spark, ingest(Files(str(source / path), format="json")))


def test_one_path_with_a_file_is_enough_for_the_look(spark: Commands, source: Path) -> None:
    paths = [str(source / "tue"), str(source / "mon")]
    assert_starts_spark(spark, ingest(Files(paths, format="json")))


def test_an_ingest_that_accepts_an_empty_source_needs_no_file(
    spark: Commands, source: Path
) -> None:
    task = ingest(Files(str(source / "tue"), format="json"), on_empty="accept")
    assert_starts_spark(spark, task)


@pytest.mark.parametrize(
    "master", ["spark://master:7077", "yarn"], ids=["another machine", "a cluster"]
)
def test_paths_of_a_cluster_are_left_to_the_job(
    spark: Commands, source: Path, monkeypatch: pytest.MonkeyPatch, master: str
) -> None:
    set_master(monkeypatch, master)
    assert_starts_spark(spark, ingest(Files(str(source / "tue"), format="json")))


@pytest.mark.parametrize("path", ["hdfs://name/in/*.json", "abfss://in@store/*.json", "in/*.json"])
def test_paths_of_other_stores_are_left_to_the_job(spark: Commands, path: str) -> None:
    assert_starts_spark(spark, ingest(path))


@pytest.mark.parametrize(
    "start",
    [
        {"master": "spark://master:7077"},
        {"binary": "spark3-submit"},
        {"properties_file": "/etc/spark.properties"},
        {"driver_class_path": "/etc/hadoop"},
        {"conf": {"spark.hadoop.fs.defaultFS": "hdfs://name"}},
        {"conf": {"spark.hadoop.fs.default.name": "hdfs://name"}},
        {"conf": {"spark.hadoop.fs.file.impl": "com.example.Files"}},
        {"conf": {"spark.driver.extraClassPath": "/etc/hadoop"}},
        {"conf": {"spark.driver.extraJavaOptions": "-Dspark.hadoop.fs.defaultFS=hdfs://name"}},
        {"environment": {"SPARK_SUBMIT_OPTS": "-Dspark.hadoop.fs.defaultFS=hdfs://name"}},
        {"environment": {"SPARK_HOME": "/nowhere"}},
        {"environment": {"PATH": "/nowhere", "SPARK_HOME": "/nowhere"}},
        *({"environment": {name: "/etc/hadoop"}} for name in LEADING),
    ],
)
@pytest.mark.usefixtures("spark")
def test_settings_of_hadoop_may_lead_paths_elsewhere(start: dict[str, Any]) -> None:
    plain = {"master": "local[*]", "conf": {"spark.log.level": "ERROR"}}
    assert SparkStart(**plain).shares_files
    assert not SparkStart(**{**plain, **start}).shares_files


@pytest.mark.parametrize("name", ["core-site.xml", "spark-defaults.conf", "spark-env.sh"])
@pytest.mark.parametrize("variable", ["", "SPARK_HOME"])
def test_files_in_the_conf_of_spark_may_lead_paths_elsewhere(
    spark: Commands, name: str, variable: str
) -> None:
    home = spark.folder.parent
    start = SparkStart(master="local", environment={variable: str(home)} if variable else {})
    (home / "conf").mkdir()
    (home / "conf" / f"{name}.template").touch()
    assert start.shares_files
    (home / "conf" / name).touch()
    assert not start.shares_files


def test_files_are_not_shared_with_a_wrapper_of_spark_submit(
    spark: Commands, tmp_path: Path
) -> None:
    home = tmp_path / "spark"
    (home / "jars").mkdir(parents=True)
    shutil.copytree(spark.folder, home / "bin")
    start = SparkStart(master="local", environment={"SPARK_HOME": str(home)})
    assert start.shares_files, "the same script may be installed twice"
    with (spark.folder / "spark-submit").open("a") as wrapper:
        wrapper.write("export HADOOP_CONF_DIR=/etc/hadoop\n")
    assert not start.shares_files
    shutil.rmtree(tmp_path / "jars")
    assert not SparkStart(master="local").shares_files, "and it is in no home of Spark"


def test_the_spark_of_pip_is_known(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))  # as for a worker whose environment is not active
    assert SparkStart(master="local").shares_files
    another = {"PYSPARK_DRIVER_PYTHON": "/opt/another/bin/python"}
    assert not SparkStart(master="local", environment=another).shares_files


def test_the_conf_of_a_pip_installed_spark_may_lead_paths_elsewhere(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    script = Path(sys.executable).with_name("spark-submit")
    (tmp_path / "pyspark" / "bin").mkdir(parents=True)
    (tmp_path / "pyspark" / "jars").mkdir()
    (tmp_path / "pyspark" / "__init__.py").touch()
    shutil.copy(script, tmp_path / "pyspark" / "bin")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "pyspark", raising=False)
    assert SparkStart(master="local").shares_files
    (tmp_path / "pyspark" / "conf").mkdir()
    (tmp_path / "pyspark" / "conf" / "core-site.xml").touch()
    assert not SparkStart(master="local").shares_files


@pytest.mark.parametrize(
    "given, extra",
    [
        ({"driver_class_path": "/etc/hadoop"}, {}),
        ({"properties_file": "/dev/null"}, {}),
        ({"conf": {"spark.hadoop.fs.default.name": "hdfs://name"}}, {}),
        ({"env_vars": {"HADOOP_CONF_DIR": "/etc/hadoop"}}, {}),
        ({"spark_binary": "spark3-submit"}, {}),
        ({}, {"spark-binary": "spark3-submit"}),
    ],
)
def test_a_task_that_may_read_elsewhere_is_not_refused_for_a_missing_file(
    spark: Commands,
    source: Path,
    monkeypatch: pytest.MonkeyPatch,
    given: dict[str, Any],
    extra: dict[str, str],
) -> None:
    shutil.copy(spark.folder / "spark-submit", spark.folder / "spark3-submit")
    connection = {"conn_type": "spark", "host": "local[2]", "extra": extra}
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps(connection))
    assert_starts_spark(spark, ingest(Files(str(source / "tue"), format="json"), **given))


def test_a_table_that_is_not_there_and_may_not_be_created_is_refused(
    spark: Commands, source: Path
) -> None:
    error = refusal(spark, ingest(str(source / "*" / "one.json"), table="nowhere"))
    assert "nowhere is not an Opal table" in error
    assert "add create=CreateTable(keys=['id'], delta='updated_at')" in error.splitlines()[-1]


@pytest.mark.parametrize(
    "create, error",
    [
        ({"keys": ["sku"], "delta": "price"}, "t exists already, but"),
        ({"keys": ["colour"], "delta": "at"}, "colour"),
        ({"keys": ["sku"], "delta": "at", "deletes": "price IS"}, "price IS"),
    ],
)
def test_a_table_that_was_made_otherwise_is_refused(
    spark: Commands, source: Path, create: dict[str, Any], error: str
) -> None:
    task = ingest(str(source / "mon" / "one.json"), create=CreateTable(**create))
    assert error in refusal(spark, task)


def test_a_table_that_is_made_as_asked_is_left_to_the_job(spark: Commands, source: Path) -> None:
    made = CreateTable(keys=["sku"], delta="at", deletes="price IS NULL")
    assert_starts_spark(spark, ingest(str(source / "mon" / "one.json"), create=made))


@pytest.mark.parametrize(
    "given, error",
    [
        ({"business_snapshot_column": "day"}, "day"),
        ({"source": {"order": "changed_at"}}, "is not the table's delta column, which is 'at'"),
    ],
)
def test_columns_that_the_table_lacks_are_refused(
    spark: Commands, source: Path, given: dict[str, Any], error: str
) -> None:
    files = Files(str(source / "mon" / "one.json"), **given.pop("source", {}))
    assert error in refusal(spark, ingest(files, **given))


def test_a_job_of_an_earlier_try_that_may_run_on_a_cluster_is_followed(
    spark: Commands, source: Path
) -> None:
    """The job of that try may have moved its files since."""
    task = ingest(Files(str(source / "tue"), format="json"))
    store = Store({f"spark_job_id:{token_of(context(task))}": "application_1_0001"})
    assert_starts_spark(spark, task, store=store)


@pytest.mark.s3
def test_objects_are_looked_for_in_the_bucket_of_the_table_alone(
    monkeypatch: pytest.MonkeyPatch, s3_options: dict[str, str], spark: Commands, tmp_path: Path
) -> None:
    root = f"s3a://lake/{tmp_path.name}"
    connection = {
        "conn_type": "opal",
        "host": root,
        "login": s3_options["aws_access_key_id"],
        "password": s3_options["aws_secret_access_key"],
        "extra": {"endpoint_url": s3_options["endpoint_url"], "region_name": "us-east-1"},
    }
    monkeypatch.setenv("AIRFLOW_CONN_OPAL_DEFAULT", json.dumps(connection))
    create(open_storage(f"{root}/t", s3_options))
    storage = open_storage(f"{root}/in", s3_options)
    assert storage.put_if_absent("mon/one.json", b"{}")
    assert NO_FILE in refusal(spark, ingest(f"{root}/in/tue/*.json"))
    assert NO_FILE in refusal(spark, ingest(f"{root}/in/mon/two.json"))
    assert_starts_spark(spark, ingest(f"{root}/in/mon/*.json"))
    assert_starts_spark(spark, ingest("s3a://another-bucket/in/tue/*.json"))
