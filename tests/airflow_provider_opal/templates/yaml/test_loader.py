"""DAGs of YAML files in Airflow: its DagBag, its DAG processor, its serialization, its database."""

import inspect
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import structlog
from airflow.dag_processing.dagbag import DagBag
from airflow.dag_processing.processor import (
    DagFileParseRequest,
    DagFileParsingResult,
    _parse_file,
    _parse_file_entrypoint,
)
from airflow.sdk import Asset, CronPartitionTimetable, PartitionedAssetTimetable
from airflow.sdk.definitions._internal.contextmanager import DagContext

from airflow_provider_opal import load_yaml_dags
from airflow_provider_opal.templates.yaml.broken import is_dag_processor
from airflow_provider_opal.templates.yaml.loader import registered
from tests.airflow_provider_opal.templates.yaml.build import ALL_KEYS, GOOD, LOADER, ROOT


def folder_of(folder: Path, **files: str) -> Path:
    """Return a DAG folder with a loader in `sub`; `__` in a name separates folders."""
    sub = folder / "sub"
    sub.mkdir(parents=True)
    (sub / "load_yaml.py").write_text(LOADER)
    for name, text in files.items():
        path = sub / f"{name.replace('__', '/')}.opal.yaml"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    return folder


def parsed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> DagFileParsingResult:
    """Return the result of Airflow's DAG processor for the loader."""
    monkeypatch.setenv("_AIRFLOW_PROCESS_CONTEXT", "client")
    request = DagFileParseRequest(
        file=str(folder / "sub" / "load_yaml.py"), bundle_path=folder, bundle_name="dags"
    )
    result = _parse_file(request, structlog.get_logger())
    assert result is not None
    return result


def ids(result: DagFileParsingResult) -> list[str]:
    return sorted(dag.dag_id for dag in result.serialized_dags)


def import_error(result: DagFileParsingResult, name: str) -> str:
    """Return the import error of one file."""
    return (result.import_errors or {})[f"sub/{name}.opal.yaml"]


def bag_of(folder: Path) -> DagBag:
    return DagBag(dag_folder=folder, bundle_path=folder, bundle_name="dags")


def test_broken_files_become_import_errors_of_their_own_and_hide_no_other_dag(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sound = GOOD[GOOD.index("  orders:") :].replace("orders", "sound")
    other = GOOD.replace("orders", "other").replace("schedule:", "schedul:") + sound
    folder = folder_of(
        tmp_path, good=GOOD, broken="version: 1\ndags: [", deep__half=other, empty=""
    )
    result = parsed(folder, monkeypatch)
    assert ids(result) == ["orders", "sound"]
    assert result.import_errors is not None
    assert sorted(result.import_errors) == [
        "sub/broken.opal.yaml",
        "sub/deep/half.opal.yaml",
        "sub/empty.opal.yaml",
    ]
    assert (
        "\nbroken.opal.yaml:2:8: the file ends within brackets or braces; close them"
        in result.import_errors["sub/broken.opal.yaml"]
    )
    half = result.import_errors["sub/deep/half.opal.yaml"]
    assert (
        "\ndeep/half.opal.yaml:6:5: dags.other.schedul: the key 'schedul' is unknown here; "
        "did you mean 'schedule'?"
    ) in half
    assert "sound" not in half


def test_all_faults_of_a_file_are_in_its_one_import_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    second = GOOD[GOOD.index("  orders:") :].replace("orders", "second").replace("[order_id]", "[]")
    folder = folder_of(tmp_path, two=GOOD.replace("@daily", "@dayly") + second)
    [error] = (parsed(folder, monkeypatch).import_errors or {}).values()
    assert "two.opal.yaml:6:15: dags.orders.schedule" in error
    assert "two.opal.yaml:21:13: dags.second.table.keys" in error


def test_after_the_mend_the_error_is_gone_and_the_dag_is_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = folder_of(
        tmp_path, good=GOOD, other=GOOD.replace("orders", "other").replace("@daily", "@dayly")
    )
    assert ids(parsed(folder, monkeypatch)) == ["orders"]
    (folder / "sub" / "other.opal.yaml").write_text(GOOD.replace("orders", "other"))
    result = parsed(folder, monkeypatch)
    assert (ids(result), result.import_errors) == (["orders", "other"], {})


def test_airflow_marks_its_dag_processor_by_the_expected_variable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source = inspect.getsource(_parse_file_entrypoint)
    assert 'os.environ["_AIRFLOW_PROCESS_CONTEXT"] = "client"' in source
    assert not is_dag_processor()
    monkeypatch.setenv("_AIRFLOW_PROCESS_CONTEXT", "client")
    assert is_dag_processor()


def test_a_dag_bag_outside_of_the_dag_processor_names_the_faults_and_keeps_the_dags(
    tmp_path: Path,
) -> None:
    broken = GOOD.replace("orders", "other").replace("@daily", "@dayly")
    folder = folder_of(tmp_path, good=GOOD, other=broken, third="version: 9")
    bag = bag_of(folder)
    assert bag.dag_ids == ["orders"]
    [(name, error)] = bag.import_errors.items()
    assert name == "sub/load_yaml.py"
    assert "other.opal.yaml:6:15: dags.other.schedule" in error
    assert "third.opal.yaml:1:10: version" in error
    (folder / "sub" / "other.opal.yaml").write_text(broken.replace("@dayly", "@daily"))
    (folder / "sub" / "third.opal.yaml").unlink()
    mended = bag_of(folder)
    assert (sorted(mended.dag_ids), mended.import_errors) == (["orders", "other"], {})


def test_of_two_pipelines_with_one_id_the_second_is_an_import_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = folder_of(tmp_path, a=GOOD, b=GOOD.replace("shop.orders", "shop.others"))
    result = parsed(folder, monkeypatch)
    assert ids(result) == ["orders"]
    [(name, error)] = (result.import_errors or {}).items()
    assert name == "sub/b.opal.yaml"
    assert (
        "b.opal.yaml:5:3: dags.orders: the DAG 'orders' is already made in a.opal.yaml:5; "
        "choose another id"
    ) in error


def test_the_dag_of_a_consumer_takes_its_id_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = GOOD.replace(
        '{function: "shop.jobs:revenue"}', '{function: "shop.jobs:revenue", own_dag: true}'
    )
    folder = folder_of(tmp_path, a=own, b=GOOD.replace("  orders:", "  orders.revenue:"))
    result = parsed(folder, monkeypatch)
    assert ids(result) == ["orders", "orders.reconcile", "orders.revenue"]
    assert "the DAG 'orders.revenue' is already made in a.opal.yaml:5" in import_error(result, "b")


def test_a_pipeline_that_an_operator_refuses_leaves_no_half_made_dag_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = '"/in/orders/{{ partition_key }}/*.json"'
    assert files in GOOD
    with_password = GOOD.replace("orders", "refused").replace(
        files.replace("orders", "refused"),
        '{paths: /in/x.json, options: {proxy: "http://me:pass@host"}}',
    )
    folder = folder_of(tmp_path, good=GOOD, refused=with_password)
    result = parsed(folder, monkeypatch)
    assert ids(result) == ["orders"]
    assert (
        "refused.opal.yaml:5:3: dags.refused: Airflow rejects the pipeline ("
        "arguments.source.files.options.proxy"
    ) in import_error(result, "refused")


def test_every_key_arrives_in_the_dags(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = folder_of(tmp_path, all=ALL_KEYS)
    result = parsed(folder, monkeypatch)
    assert result.import_errors == {}
    assert ids(result) == ["after", "all", "all.maintenance", "all.own", "all.reconcile", "by_hand"]
    monkeypatch.delenv("_AIRFLOW_PROCESS_CONTEXT")
    dags = bag_of(folder).dags
    dag = dags["all"]
    assert isinstance(dag.timetable, CronPartitionTimetable)
    assert dag.timetable.expression == "30 2 * * *"
    assert (dag.timetable.run_offset, dag.timetable.key_format) == (-1, "%Y%m%d")
    assert str(dag.timetable.timezone) == "Europe/Berlin"
    assert dag.start_date is not None
    assert dag.end_date is not None
    assert dag.start_date.isoformat() == "2026-03-30T00:30:00+00:00"
    assert dag.end_date.isoformat() == "2027-01-02T01:30:00+00:00"
    assert dag.description == "Says all there is to say"
    assert (sorted(dag.tags), dag.catchup, dag.max_active_runs) == (["a", "b"], True, 3)
    assert dag.deadline
    task: Any = dag.get_task("ingest")
    assert (task.opal_conn_id, task.spark_conn_id) == ("lake", "spark")
    assert (task.pool, task.retries, task.owner) == ("small", 5, "shop")
    assert task.retry_delay.total_seconds() == 5_400
    assert task.execution_timeout.total_seconds() == 3_600
    assert task.arguments["on_bad_rows"] == "quarantine"
    assert task.arguments["reject_threshold"] == "5%"
    assert task.arguments["business_snapshot"] == "{{ partition_key }}"
    reconcile: Any = dags["all.reconcile"].get_task("all.own")
    spans = (reconcile.look_back, reconcile.grace, reconcile.again)
    assert [span.total_seconds() / 3_600 for span in spans] == [240, 2, 6]
    assert task.arguments["create"]["schema"].startswith("id BIGINT")
    assert task.arguments["create"]["properties"] == {"segment_rows": 1000}
    assert task.arguments["source"]["jdbc"]["password_env"] == "P"
    assert set(dag.task_ids) == {"ingest", "metagen", "beside"}
    check_maintenance(dags["all.maintenance"])
    after = dags["after"]
    assert isinstance(after.timetable, PartitionedAssetTimetable)
    assert isinstance(after.timetable.asset_condition, Asset)
    assert after.timetable.asset_condition.uri == "opal://lake/shop.all"


def test_maintenance_by_hand_has_no_schedule(tmp_path: Path) -> None:
    by_hand = ALL_KEYS.replace(
        "    table: shop.by_hand\n", "    table: shop.by_hand\n    maintenance: {schedule: null}\n"
    )
    daily = by_hand.replace("maintenance: {schedule: null}", "maintenance: {}")
    expressions = []
    for name, text in {"null": by_hand, "absent": daily}.items():
        dag = bag_of(folder_of(tmp_path / name, all=text)).dags["by_hand.maintenance"]
        expressions.append(getattr(dag.timetable, "expression", None))
    assert expressions == [None, "0 0 * * *"]


def check_maintenance(dag: Any) -> None:
    """Assert that the maintenance of ALL_KEYS arrives in its DAG."""
    assert dag.timetable.expression == "0 4 * * *"
    assert str(dag.timetable.timezone) == "Europe/Berlin"
    assert (dag.max_active_runs, dag.catchup) == (1, False)
    assert dag.get_task("maintain").arguments == {
        "zorder": ["day", "id"],
        "window": "14d",
        "grace": "12h",
        "look_back": "90d",
        "target_mb": 128,
        "small_files": 8,
        "dead_share": 30,
        "unclustered_share": 40,
        "archive_after": "90m",
        "archive_codec": "zstd:19",
        "delete": False,
        "dry_run": False,
    }
    assert [dag.get_task(name).arguments for name in ("list_old_files", "retain")] == [
        {"window": "14d", "grace": "12h", "dry_run": True},
        {"window": "14d", "grace": "12h", "dry_run": False},
    ]
    assert dag.get_task("approve").response_timeout.days == 2
    for task in dag.tasks:
        if task.task_id != "approve":
            assert (task.opal_conn_id, task.spark_conn_id) == ("lake", "spark")
            assert (task.pool, task.retries, task.owner) == ("small", 5, "shop")


def test_a_worker_gets_only_the_pipeline_of_its_dag(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = folder_of(tmp_path, all=ALL_KEYS, broken="version: 2", good=GOOD)
    for only_id, ids_made in (
        ("all.maintenance", {"all", "all.own", "all.reconcile", "all.maintenance"}),
        ("orders", {"orders"}),
        ("nobody", set()),
    ):
        monkeypatch.setenv("_AIRFLOW_PARSING_CONTEXT_DAG_ID", only_id)
        with registered() as dags:
            main_dags = load_yaml_dags(folder / "sub" / "load_yaml.py")
        assert {dag.dag_id for dag in dags} == ids_made
        assert {dag.dag_id for dag in main_dags} == {name for name in ids_made if "." not in name}


def test_a_folder_may_be_named_instead_of_the_loader_s_file(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, good=GOOD)
    assert [dag.dag_id for dag in load_yaml_dags(folder)] == ["orders"]
    assert DagContext.autoregistered_dags == set()


LIGHT = """
import sys
sys.path.insert(0, {folder!r})
import load_yaml
heavy = {{"pyspark", "py4j", "pyarrow", "numpy", "pandas", "boto3"}} & sys.modules.keys()
assert not heavy, heavy
"""


def test_a_loader_imports_neither_spark_nor_arrow_nor_numpy(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, all=ALL_KEYS, broken="version: 2")
    done = subprocess.run(
        [sys.executable, "-c", LIGHT.format(folder=str(folder / "sub"))],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


HASHES = """
import json, os, sys
from airflow.dag_processing.dagbag import DagBag
from airflow.models.serialized_dag import SerializedDagModel
from airflow.serialization.serialized_objects import DagSerialization
from pathlib import Path
bag = DagBag(dag_folder=sys.argv[1], bundle_path=Path(sys.argv[1]))
assert not bag.import_errors, bag.import_errors
hashes = {}
for name, dag in sorted(bag.dags.items()):
    hashes[name] = SerializedDagModel.hash(DagSerialization.to_dict(dag))
Path(sys.argv[2]).write_text(json.dumps(hashes))
"""


@pytest.mark.slow
def test_two_processes_make_the_same_dags_to_the_byte(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, all=ALL_KEYS, good=GOOD)
    shutil.copy(ROOT / "dags" / "shop.opal.yaml", folder / "sub")
    hashes = []
    for seed in ("1", "2"):
        answer = tmp_path / f"{seed}.json"
        env = {**os.environ, "PYTHONHASHSEED": seed}
        done = subprocess.run(
            [sys.executable, "-c", HASHES, str(folder), str(answer)],
            capture_output=True,
            text=True,
            env=env,
        )
        assert done.returncode == 0, done.stderr
        hashes.append(json.loads(answer.read_text()))
    assert len(hashes[0]) == 12
    assert hashes[0] == hashes[1]


IN_THE_DATABASE = """
import os, sys
from pathlib import Path
import structlog
from airflow.utils.db import initdb
initdb()
from airflow.dag_processing.bundles.manager import DagBundlesManager
from airflow.dag_processing.collection import update_dag_parsing_results_in_db
from airflow.dag_processing.processor import DagFileParseRequest, _parse_file
from airflow.models.dag import DagModel
from airflow.models.errors import ParseImportError
from airflow.utils.session import create_session
from sqlalchemy import select

bundle, loader = "dags-folder", "sub/load_yaml.py"
folder = Path(os.environ["AIRFLOW__CORE__DAGS_FOLDER"])
DagBundlesManager().sync_bundles_to_db()

def round():
    os.environ["_AIRFLOW_PROCESS_CONTEXT"] = "client"
    request = DagFileParseRequest(file=str(folder / loader), bundle_path=folder, bundle_name=bundle)
    result = _parse_file(request, structlog.get_logger())
    os.environ["_AIRFLOW_PROCESS_CONTEXT"] = "server"
    errors = {(bundle, name): error for name, error in result.import_errors.items()}
    with create_session() as session:  # as DagFileProcessorManager.persist_parsing_result
        update_dag_parsing_results_in_db(
            bundle_name=bundle,
            bundle_version=None,
            dags=result.serialized_dags,
            import_errors=errors,
            parse_duration=1.0,
            warnings=set(),
            session=session,
            files_parsed={(bundle, loader), *errors},
        )
    with create_session() as session:
        models = session.scalars(select(DagModel))
        dags = {dag.dag_id: (dag.is_stale, dag.has_import_errors) for dag in models}
        return dags, [error.filename for error in session.scalars(select(ParseImportError))]

for _ in range(2):
    dags, errors = round()
    assert dags == {"orders": (False, False)}, dags
    assert errors == ["sub/other.opal.yaml"], errors
other = folder / "sub" / "other.opal.yaml"
other.write_text(other.read_text().replace("@dayly", "@daily"))
dags, errors = round()
assert dags == {"orders": (False, False), "other": (False, False)}, dags
"""


def test_airflow_s_database_has_the_error_of_the_yaml_file_and_live_dags(tmp_path: Path) -> None:
    folder = folder_of(
        tmp_path / "dags",
        good=GOOD,
        other=GOOD.replace("orders", "other").replace("@daily", "@dayly"),
    )
    env = {
        **os.environ,
        "AIRFLOW_HOME": str(tmp_path / "home"),
        "AIRFLOW__CORE__DAGS_FOLDER": str(folder),
    }
    done = subprocess.run(
        [sys.executable, "-c", IN_THE_DATABASE], capture_output=True, text=True, env=env
    )
    assert done.returncode == 0, done.stderr[-3000:]


def test_the_shop_s_example_makes_its_dags(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = folder_of(
        tmp_path, shop=(ROOT / "dags" / "shop.opal.yaml").read_text(encoding="utf-8")
    )
    result = parsed(folder, monkeypatch)
    assert result.import_errors == {}
    assert ids(result) == [
        "shop_customers",
        "shop_orders",
        "shop_orders.maintenance",
        "shop_orders.reconcile",
        "shop_orders.revenue",
    ]
