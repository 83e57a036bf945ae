"""The provider as Airflow and its users see it before anything runs."""

import json
import re
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path
from urllib.parse import urlsplit

import airflow
import jsonschema
import pytest
from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowFailException

import airflow_provider_opal
from airflow_provider_opal.assets import asset_uri, normalised, opal_asset
from airflow_provider_opal.get_provider_info import get_provider_info
from airflow_provider_opal.hooks.opal import Lake, OpalHook
from airflow_provider_opal.operators.folders.bulk_mutation import BulkMutationOperator
from opal_lake.storage.open import open_storage
from tests.opal_lake.shop import create, rows

LIGHT = """
import sys
from datetime import datetime
from airflow.sdk import DAG
from airflow_provider_opal import *
with DAG("light", schedule=None, start_date=datetime(2026, 1, 1)):
    made = CreateTable(keys=["id"], delta="at")
    source = Files(paths=("/in/*.json",))
    ingest = IngestOperator(task_id="i", table="shop.t", source=source, create=made)
    metagen = MetaGenOperator(task_id="m", table="shop.t")
    ingest >> metagen >> SnapshotTriggerSensor(task_id="s", table="shop.t")
libraries = ("pyspark", "py4j", "pyarrow", "numpy", "pandas", "boto3")
heavy = [name for name in libraries if name in sys.modules]
assert not heavy, heavy
"""


def test_the_provider_s_info_fits_airflow_s_schema() -> None:
    schema = json.loads((Path(airflow.__file__).parent / "provider_info.schema.json").read_text())
    jsonschema.validate(get_provider_info(), schema)


def test_the_provider_s_info_fits_the_strict_schema_of_airflow_s_own_providers() -> None:
    schema = json.loads((Path(airflow.__file__).parent / "provider.yaml.schema.json").read_text())
    jsonschema.validate(get_provider_info(), schema)


def test_airflow_finds_the_provider_by_its_entry_point() -> None:
    [entry_point] = [
        point for point in entry_points(group="apache_airflow_provider") if "opal" in point.value
    ]
    assert entry_point.load()() == get_provider_info()


def test_all_modules_that_the_info_names_are_there() -> None:
    info = get_provider_info()
    names = [
        name
        for kind in ("operators", "sensors", "hooks", "triggers")
        for part in info[kind]
        for name in part["python-modules"]
    ]
    for name in names:
        __import__(name)
    for path in [
        *info["extra-links"],
        info["connection-types"][0]["hook-class-name"],
        info["asset-uris"][0]["handler"],
    ]:
        module, _, name = path.rpartition(".")
        assert hasattr(__import__(module, fromlist=[name]), name)


def test_the_info_names_the_module_of_every_exported_operator_and_sensor() -> None:
    info = get_provider_info()
    named = {
        name
        for kind in ("operators", "sensors")
        for part in info[kind]
        for name in part["python-modules"]
    }
    exported = (getattr(airflow_provider_opal, name) for name in airflow_provider_opal.__all__)
    tasks = [kind for kind in exported if isinstance(kind, type) and issubclass(kind, BaseOperator)]
    assert {kind.__module__ for kind in tasks} <= named
    assert BulkMutationOperator in tasks


def test_the_info_names_no_host() -> None:
    urls = re.findall(r"https?://[^\s\"']+", json.dumps(get_provider_info()))
    assert set(urls) <= {"http://host:8765"}  # a placeholder of a connection's form


def test_a_dag_file_pays_for_no_spark_and_no_arrow() -> None:
    done = subprocess.run([sys.executable, "-c", LIGHT], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_every_public_name_is_there_and_others_are_not() -> None:
    for name in airflow_provider_opal.__all__:
        assert getattr(airflow_provider_opal, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'IngestOperater'"):
        _ = airflow_provider_opal.IngestOperater


def test_an_asset_has_one_name_and_one_uri_however_the_table_is_written() -> None:
    asset = opal_asset("shop.orders")
    assert asset.name == asset.uri == "opal://opal_default/shop.orders"
    assert (
        asset_uri("s3a://bucket/lake/t", "prod", versions=True)
        == "opal://prod/s3a/bucket/lake/t/versions"
    )
    assert normalised(urlsplit("opal://prod//shop.orders/")).geturl() == "opal://prod/shop.orders"
    for wrong in ("", "a b", "ü", "a?b"):
        with pytest.raises(ValueError, match="cannot be named in an asset"):
            asset_uri(wrong)


def test_a_table_lies_below_the_root_unless_it_has_a_path_of_its_own() -> None:
    lake = Lake(root="s3a://bucket/lake/", options={}, spark_conn_id="spark_default")
    assert lake.uri("shop.orders") == "s3a://bucket/lake/shop/orders"
    assert lake.uri("/data/t") == "/data/t"
    assert lake.uri("s3a://other/t.x") == "s3a://other/t.x"
    with pytest.raises(ValueError, match="needs the root of the lake"):
        Lake(root="", options={}, spark_conn_id="s").uri("shop.orders")


@pytest.fixture
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(
        "AIRFLOW_CONN_OPAL_DEFAULT", json.dumps({"conn_type": "opal", "host": str(tmp_path)})
    )
    return tmp_path


def test_the_hook_reads_tables_without_spark(lake: Path) -> None:
    hook = OpalHook()
    assert hook.test_connection() == (True, f"{lake} can be listed")
    assert hook.find_result("shop.users", "ingest", "t") is None
    table = create(open_storage(str(lake / "shop" / "users")))
    table.ingest(*rows([("a", 1, 1)]), token="t")
    assert hook.versions_after("shop.users", 0) is None
    table.metagen(token="m")
    table.ingest(*rows([("a", 2, 1)]))
    table.metagen()
    assert hook.head("shop.users") == 4
    assert hook.versions_after("shop.users", 0) == (0, 4)
    assert hook.versions_after("shop.users", 0, most=1) == (0, 2)
    assert hook.versions_after("shop.users", 4) is None
    with pytest.raises(
        AirflowFailException,
        match=r"has seen version 5 of .*, but the newest is 4: the table was created again",
    ):
        hook.versions_after("shop.users", 5)
    result = hook.find_result("shop.users", "metagen", "m")
    assert result is not None
    assert (result.version, result.repeated) == (2, True)


def test_a_connection_that_does_not_work_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(
        "AIRFLOW_CONN_OPAL_DEFAULT", json.dumps({"conn_type": "opal", "host": "ftp://nowhere/lake"})
    )
    works, message = OpalHook().test_connection()
    assert not works
    assert "scheme 'ftp'" in message
    monkeypatch.setenv(
        "AIRFLOW_CONN_OPAL_DEFAULT", json.dumps({"conn_type": "opal", "host": "/nowhere/lake"})
    )
    works, message = OpalHook().test_connection()
    assert not works
    assert message.startswith("the lake's root /nowhere/lake does not exist on")
    monkeypatch.setenv("AIRFLOW_CONN_OPAL_DEFAULT", json.dumps({"conn_type": "fs", "host": "/"}))
    assert OpalHook().test_connection()[1].endswith("name another with opal_conn_id=")
