"""DAGs of YAML files in Airflow's own hands: its DagBag, its DAG processor's parse, its serialization, its database."""

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

ROOT = Path(__file__).parents[4]
DATA = Path(__file__).with_name("yaml")
GOOD = (DATA / "good.opal.yaml").read_text(encoding="utf-8")
LOADER = (ROOT / "dags" / "load_yaml.py").read_text(encoding="utf-8")

ALL_SAID = """\
version: 1
defaults:
  opal_conn_id: lake
  spark_conn_id: spark
  start_date: 2026-03-29
  timezone: Europe/Berlin
dags:
  all:
    description: Says all there is to say
    schedule: "30 2 * * *"
    end_date: 2027-01-01T06:00
    partition_key_format: "%Y%m%d"
    table:
      name: shop.all
      keys: [id]
      delta: at
      tie_break: [seq]
      partition_by: [day]
      file_format: orc
      schema: "id BIGINT, at TIMESTAMP, seq INT, day DATE, op STRING, s STRUCT<a: INT, `b,c`: DECIMAL(10, 2)>"
      properties: {segment_rows: 1000}
      deletes: "op = 'D'"
    source:
      jdbc: {url: "jdbc:postgresql://db/shop", query: "SELECT * FROM t WHERE day = '{{ partition_key }}'", user_env: U, password_env: P}
    consumers:
      beside: {function: "shop.jobs:beside", by: version, arguments: {n: 1}}
      own: {function: "shop.jobs:own", own_dag: true}
    on_bad_rows: quarantine
    reject_threshold: 5%
    on_empty: accept
    business_snapshot: "{{ partition_key }}"
    retries: 5
    retry_delay: 1h30m
    pool: small
    deadline: 2h
    reconcile: "@daily"
    reconcile_look_back: 10d
    reconcile_grace: 2h
    reconcile_again: 6h
    spark: {conf: {spark.sql.shuffle.partitions: 4}, executor_memory: 2g, num_executors: 2}
    maintenance:
      schedule: "0 4 * * *"
      zorder: [day, id]
      window: 2w
      grace: 12h
      look_back: 90d
      target_mb: 128
      small_files: 8
      dead_share: 30
      unclustered_share: 40
      archive_after: 1h30m
      archive_codec: zstd:19
      approve: true
      answer_within: 2d
    tags: [a, b]
    catchup: true
    max_active_runs: 3
    max_active_tasks: 4
    dagrun_timeout: 3h
    is_paused_upon_creation: false
    default_args: {owner: shop, queue: q, priority_weight: 2, execution_timeout: 1h}
  after:
    schedule: {table: shop.all}
    table: shop.after
    source: {files: ["/a/{{ partition_key }}/*.csv", "/b/*.csv"]}
  by_hand:
    schedule: null
    table: shop.by_hand
    source: {files: {paths: /in/x, format: csv, header: false, columns: [id, at], deletes: "del*", order: at, options: {multiLine: true}}}
"""


def folder_of(place: Path, **files: str) -> Path:
    """A DAG folder with a loader in `sub`; `__` stands for a folder."""
    sub = place / "sub"
    sub.mkdir(parents=True)
    (sub / "load_yaml.py").write_text(LOADER)
    for name, text in files.items():
        path = sub / f"{name.replace('__', '/')}.opal.yaml"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    return place


def parsed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> DagFileParsingResult:
    """What Airflow's DAG processor makes of the loader, in the process's own context."""
    monkeypatch.setenv("_AIRFLOW_PROCESS_CONTEXT", "client")
    request = DagFileParseRequest(
        file=str(folder / "sub" / "load_yaml.py"), bundle_path=folder, bundle_name="dags"
    )
    found = _parse_file(request, structlog.get_logger())
    assert found is not None
    return found


def ids(result: DagFileParsingResult) -> list[str]:
    return sorted(dag.dag_id for dag in result.serialized_dags)


def said_of(result: DagFileParsingResult, name: str) -> str:
    """The import error of one file."""
    return (result.import_errors or {})[f"sub/{name}.opal.yaml"]


def bag_of(folder: Path) -> DagBag:
    return DagBag(dag_folder=folder, bundle_path=folder, bundle_name="dags")


def test_broken_files_become_import_errors_of_their_own_and_hide_no_other_dag(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = GOOD.replace("orders", "other").replace("schedule:", "schedul:") + GOOD[
        GOOD.index("  orders:") :
    ].replace("orders", "sound")
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
        "\ndeep/half.opal.yaml:6:5: dags.other.schedul: there is no 'schedul' here; did you mean 'schedule'?"
        in half
    )
    assert "sound" not in half


def test_all_faults_of_a_file_are_in_its_one_import_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    second = GOOD[GOOD.index("  orders:") :].replace("orders", "second").replace("[order_id]", "[]")
    folder = folder_of(tmp_path, two=GOOD.replace("@daily", "@dayly") + second)
    [said] = (parsed(folder, monkeypatch).import_errors or {}).values()
    assert "two.opal.yaml:6:15: dags.orders.schedule" in said
    assert "two.opal.yaml:21:13: dags.second.table.keys" in said


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


def test_airflow_tells_its_dag_processor_s_parse_by_the_name_that_is_looked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert 'os.environ["_AIRFLOW_PROCESS_CONTEXT"] = "client"' in inspect.getsource(
        _parse_file_entrypoint
    )
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
    [(name, said)] = bag.import_errors.items()
    assert name == "sub/load_yaml.py"
    assert "other.opal.yaml:6:15: dags.other.schedule" in said
    assert "third.opal.yaml:1:10: version" in said
    (folder / "sub" / "other.opal.yaml").write_text(broken.replace("@dayly", "@daily"))
    (folder / "sub" / "third.opal.yaml").unlink()
    mended = bag_of(folder)
    assert (sorted(mended.dag_ids), mended.import_errors) == (["orders", "other"], {})


def test_of_two_pipelines_with_one_id_the_first_file_counts_and_the_second_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = folder_of(tmp_path, a=GOOD, b=GOOD.replace("shop.orders", "shop.others"))
    result = parsed(folder, monkeypatch)
    assert ids(result) == ["orders"]
    [(name, said)] = (result.import_errors or {}).items()
    assert name == "sub/b.opal.yaml"
    assert (
        "b.opal.yaml:5:3: dags.orders: the DAG 'orders' is made in a.opal.yaml:5 already; choose another id"
        in said
    )


def test_the_dag_of_a_consumer_takes_its_id_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = GOOD.replace(
        '{function: "shop.jobs:revenue"}', '{function: "shop.jobs:revenue", own_dag: true}'
    )
    folder = folder_of(tmp_path, a=own, b=GOOD.replace("  orders:", "  orders.revenue:"))
    result = parsed(folder, monkeypatch)
    assert ids(result) == ["orders", "orders.reconcile", "orders.revenue"]
    assert "the DAG 'orders.revenue' is made in a.opal.yaml:5 already" in said_of(result, "b")


def test_a_pipeline_that_an_operator_refuses_leaves_no_half_made_dag_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = '"/in/orders/{{ partition_key }}/*.json"'
    assert files in GOOD
    speaking = GOOD.replace("orders", "refused").replace(
        files.replace("orders", "refused"),
        '{paths: /in/x.json, options: {proxy: "http://me:pass@host"}}',
    )
    folder = folder_of(tmp_path, good=GOOD, refused=speaking)
    result = parsed(folder, monkeypatch)
    assert ids(result) == ["orders"]
    assert (
        "refused.opal.yaml:5:3: dags.refused: Airflow rejects it: arguments.source.files.options.proxy"
        in said_of(result, "refused")
    )


def test_everything_that_can_be_said_comes_out_in_the_dags(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = folder_of(tmp_path, all=ALL_SAID)
    result = parsed(folder, monkeypatch)
    assert result.import_errors == {}
    assert ids(result) == ["after", "all", "all.maintenance", "all.own", "all.reconcile", "by_hand"]
    monkeypatch.delenv("_AIRFLOW_PROCESS_CONTEXT")
    dags = bag_of(folder).dags
    dag = dags["all"]
    assert isinstance(dag.timetable, CronPartitionTimetable)
    assert (dag.timetable.expression, dag.timetable.run_offset, dag.timetable.key_format) == (
        "30 2 * * *",
        -1,
        "%Y%m%d",
    )
    assert str(dag.timetable.timezone) == "Europe/Berlin"
    assert dag.start_date is not None
    assert dag.end_date is not None
    assert (dag.start_date.isoformat(), dag.end_date.isoformat()) == (
        "2026-03-30T00:30:00+00:00",
        "2027-01-02T01:30:00+00:00",
    )
    assert (dag.description, sorted(dag.tags), dag.catchup, dag.max_active_runs) == (
        "Says all there is to say",
        ["a", "b"],
        True,
        3,
    )
    assert dag.deadline
    task: Any = dag.get_task("ingest")
    assert (task.opal_conn_id, task.spark_conn_id, task.pool, task.retries, task.owner) == (
        "lake",
        "spark",
        "small",
        5,
        "shop",
    )
    assert (task.retry_delay.total_seconds(), task.execution_timeout.total_seconds()) == (
        5_400,
        3_600,
    )
    assert (task.arguments["on_bad_rows"], task.arguments["reject_threshold"]) == (
        "quarantine",
        "5%",
    )
    assert task.arguments["business_snapshot"] == "{{ partition_key }}"
    look: Any = dags["all.reconcile"].get_task("all.own")
    assert [span.total_seconds() / 3_600 for span in (look.look_back, look.grace, look.again)] == [
        240,
        2,
        6,
    ]
    assert task.arguments["create"]["schema"].startswith("id BIGINT")
    assert task.arguments["create"]["properties"] == {"segment_rows": 1000}
    assert task.arguments["source"]["jdbc"]["password_env"] == "P"
    assert set(dag.task_ids) == {"ingest", "metagen", "beside"}
    said_of_maintenance(dags["all.maintenance"])
    after = dags["after"]
    assert isinstance(after.timetable, PartitionedAssetTimetable)
    assert isinstance(after.timetable.asset_condition, Asset)
    assert after.timetable.asset_condition.uri == "opal://lake/shop.all"


def test_maintenance_by_hand_has_no_schedule(tmp_path: Path) -> None:
    by_hand = ALL_SAID.replace(
        "    table: shop.by_hand\n", "    table: shop.by_hand\n    maintenance: {schedule: null}\n"
    )
    daily = by_hand.replace("maintenance: {schedule: null}", "maintenance: {}")
    expressions = [
        getattr(
            bag_of(folder_of(tmp_path / name, all=text)).dags["by_hand.maintenance"].timetable,
            "expression",
            None,
        )
        for name, text in {"null": by_hand, "absent": daily}.items()
    ]
    assert expressions == [None, "0 0 * * *"]


def said_of_maintenance(dag: Any) -> None:
    """That of ALL_SAID."""
    assert (dag.timetable.expression, str(dag.timetable.timezone), dag.max_active_runs, dag.catchup) == (
        "0 4 * * *", "Europe/Berlin", 1, False,
    )  # fmt: skip
    assert dag.get_task("maintain").arguments == {
        "zorder": ["day", "id"], "window": "14d", "grace": "12h", "look_back": "90d", "target_mb": 128, "small_files": 8, "dead_share": 30,
        "unclustered_share": 40, "archive_after": "90m", "archive_codec": "zstd:19", "delete": False, "dry_run": False,
    }  # fmt: skip
    assert [dag.get_task(name).arguments for name in ("would_go", "retain")] == [
        {"window": "14d", "grace": "12h", "dry_run": True},
        {"window": "14d", "grace": "12h", "dry_run": False},
    ]
    assert dag.get_task("approve").response_timeout.days == 2
    assert {
        (task.opal_conn_id, task.spark_conn_id, task.pool, task.retries, task.owner)
        for task in dag.tasks
        if task.task_id != "approve"
    } == {("lake", "spark", "small", 5, "shop")}


def test_a_worker_gets_only_the_pipeline_of_its_dag(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = folder_of(tmp_path, all=ALL_SAID, broken="version: 2", good=GOOD)
    for expected, made in (
        ("all.maintenance", {"all", "all.own", "all.reconcile", "all.maintenance"}),
        ("orders", {"orders"}),
        ("nobody", set()),
    ):
        monkeypatch.setenv("_AIRFLOW_PARSING_CONTEXT_DAG_ID", expected)
        with registered() as found:
            main = load_yaml_dags(folder / "sub" / "load_yaml.py")
        assert {dag.dag_id for dag in found} == made
        assert {dag.dag_id for dag in main} == {one for one in made if "." not in one}


def test_a_folder_may_be_named_instead_of_the_loader_s_file(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, good=GOOD)
    assert [dag.dag_id for dag in load_yaml_dags(folder)] == ["orders"]
    assert DagContext.autoregistered_dags == set()


LIGHT = """
import sys
sys.path.insert(0, {folder!r})
import load_yaml
heavy = [name for name in ("pyspark", "py4j", "pyarrow", "numpy", "pandas", "boto3") if name in sys.modules]
assert not heavy, heavy
"""


def test_a_loader_pays_for_no_spark_no_arrow_and_no_numpy(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, all=ALL_SAID, broken="version: 2")
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
found = {name: SerializedDagModel.hash(DagSerialization.to_dict(dag)) for name, dag in bag.dags.items()}
Path(sys.argv[2]).write_text(json.dumps(dict(sorted(found.items()))))
"""


@pytest.mark.slow
def test_two_processes_make_the_same_dags_to_the_byte(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, all=ALL_SAID, good=GOOD)
    shutil.copy(ROOT / "dags" / "shop.opal.yaml", folder / "sub")
    found = []
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
        found.append(json.loads(answer.read_text()))
    assert len(found[0]) == 12
    assert found[0] == found[1]


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
    errors = {(bundle, name): said for name, said in result.import_errors.items()}
    with create_session() as session:  # as DagFileProcessorManager.persist_parsing_result
        update_dag_parsing_results_in_db(
            bundle_name=bundle, bundle_version=None, dags=result.serialized_dags, import_errors=errors, parse_duration=1.0,
            warnings=set(), session=session, files_parsed={(bundle, loader), *errors},
        )
    with create_session() as session:
        dags = {dag.dag_id: (dag.is_stale, dag.has_import_errors) for dag in session.scalars(select(DagModel))}
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
