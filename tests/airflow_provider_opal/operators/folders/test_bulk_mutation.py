"""BulkMutationOperator: what it submits and refuses, and dags/products.py under a real Spark."""

import importlib.util
import json
import os
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowFailException

from airflow_provider_opal import BulkMutationOperator
from opal_folder.mutation import open_master, run_mutation
from opal_lake.operations.job_spec import JobSpec
from tests.airflow_provider_opal.stand_ins import Commands, commands, context
from tests.opal_folder.plain_merge import PlainMerge, fill, job

__all__ = ["commands"]

ROOT = Path(__file__).parents[4]
MASTER = "VR8NCNE7DV,wearables,fitbit,112,88,1427766458\n6QD0BAVS7I,laptop,asus,502,54,1427764070\n"


@pytest.fixture(autouse=True)
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(
        "AIRFLOW_CONN_OPAL_DEFAULT",
        json.dumps({"conn_type": "opal", "host": str(tmp_path / "lake")}),
    )
    monkeypatch.setenv(
        "AIRFLOW_CONN_SPARK_DEFAULT", json.dumps({"conn_type": "spark", "host": "local[2]"})
    )
    return tmp_path


def made(**given: Any) -> BulkMutationOperator:
    return BulkMutationOperator(
        **{"task_id": "t", "master": "/lake/m", "increments": "/lake/incr", "ids": ["id"], **given}
    )


def test_the_given_arguments_are_submitted(commands: Commands) -> None:
    commands.spark_submit()
    task = made(order="at", order_type="timestamp", partition_by=["day"], backups=1)
    with pytest.raises(Exception, match="has no commit of the job"):
        task.execute(context(task))
    argv = commands.notes()[0]["argv"]
    spec = JobSpec.from_json(argv[argv.index("--spec") + 1])
    assert (spec.table, spec.token) == ("/lake/m", "d/r/t/-1/0")
    expected = {
        "increments": ["/lake/incr"],
        "ids": ["id"],
        "order": "at",
        "order_type": "timestamp",
        "partition_by": ["day"],
        "backups": 1,
    }
    assert spec.operation.to_arguments() == expected
    assert argv[argv.index("--spec") - 1].endswith("opal_spark/submit/app.py")


def test_parameters_of_chombo_are_arguments_and_given_arguments_override_them() -> None:
    task = made(
        ids=None,
        delete_prefix="gone",
        properties={"id.field.ordinals": "0,1", "deleted.record.file.prefix": "del"},
    )
    arguments = {name: task.arguments[name] for name in ("ids", "delete_prefix", "order", "header")}
    assert arguments == {
        "ids": ["0", "1"],
        "delete_prefix": "gone",
        "order": "file_suffix",
        "header": False,
    }


def test_an_argument_overrides_its_property_even_with_the_default_value() -> None:
    properties = {
        "id.field.ordinals": "0",
        "temporal.ordering.field.ordinal": "2",
        "temporal.ordering.field.numeric": "false",
        "deleted.op.code": "X",
        "field.delim.regex": ";",
    }
    defaults = {
        "order": "file_position",
        "order_type": "numeric",
        "deleted_op": "D",
        "delimiter": ",",
        "header": True,
    }
    task = made(ids=None, properties=properties)
    assert {name: task.arguments[name] for name in defaults} == {
        "order": "2",
        "order_type": "text",
        "deleted_op": "X",
        "delimiter": ";",
        "header": False,
    }
    task = made(ids=None, properties=properties, **defaults)
    assert {name: task.arguments[name] for name in defaults} == defaults


@pytest.mark.parametrize(
    "given, said",
    [
        ({"ids": None}, "add ids="),
        ({"order_type": "number"}, "use one of numeric, text, timestamp"),
        ({"backups": -1}, "at least 0"),
        ({"delete_prefix": ""}, "would read every file as deletes"),
        ({"properties": {"order": "1"}}, "id.field.ordinals=0"),
    ],
)
def test_invalid_arguments_are_refused_when_the_dag_is_parsed(
    given: dict[str, Any], said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        made(**given)


def test_a_path_with_a_partition_key_asks_for_one() -> None:
    with DAG("d", schedule=None) as dag:
        task = made(increments="/lake/incr/{{ partition_key }}/*.csv")
    with pytest.raises(AirflowFailException, match="has no partition key"):
        task.execute(context(task))
    task.render_template_fields({"partition_key": "2026-11-01", "dag": dag, "task": task})
    assert task.arguments["increments"] == ["/lake/incr/2026-11-01/*.csv"]


def test_a_try_that_was_done_is_not_submitted_again_and_a_clear_is(
    lake: Path, commands: Commands
) -> None:
    commands.spark_submit()
    fill(lake / "m", {"a.csv": "a,1\n"})
    fill(lake / "incr", {"1.csv": "a,2\n"})
    task = made(master=str(lake / "m"), increments=str(lake / "incr"), ids=["0"], header=False)
    merged = job(str(lake / "incr"), token="d/r/t/-1/0")
    run_mutation(open_master(str(lake / "m")), merged, PlainMerge())
    result = task.execute(context(task))
    assert (result["repeated"], result["version"], result["counts"]["files"]) == (True, 1, 1)
    assert not commands.notes()
    with pytest.raises(Exception, match="has no commit of the job"):
        task.execute(context(task, clears=1))
    assert len(commands.notes()) == 1


def test_xcom_has_some_of_many_files_and_the_path_of_the_report(
    lake: Path, commands: Commands
) -> None:
    commands.spark_submit()
    fill(lake / "incr", {f"{number:03}.csv": f"{number},2\n" for number in range(60)})
    task = made(master=str(lake / "m"), increments=str(lake / "incr"), ids=["0"], header=False)
    merged = job(str(lake / "incr"), token="d/r/t/-1/0")
    run_mutation(open_master(str(lake / "m")), merged, PlainMerge())
    result = task.execute(context(task))
    assert (result["counts"]["files"], len(result["examples"])) == (60, 50)
    assert len(json.loads(Path(result["report"]).read_text())["examples"]) == 60


def products() -> Any:
    spec = importlib.util.spec_from_file_location("products", ROOT / "dags" / "products.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def executed(task: BulkMutationOperator, folder: Path, **more: Any) -> dict[str, Any]:
    task.render_template_fields(
        {"var": {"value": {"product_folder": str(folder)}}, "dag": task.dag, "task": task}
    )
    return task.execute(context(task, **more))


@pytest.mark.slow
def test_the_example_counts_and_merges_the_paper_s_products(
    lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """XCom has the report; after a correction a clear merges the file."""
    monkeypatch.setenv("PATH", f"{ROOT / '.venv' / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "spark_apps"))
    fill(lake / "master", {"part-r-00000": MASTER})
    fill(
        lake / "incr",
        {
            "products": "VR8NCNE7DV,wearables,fitbit,112,82,1428415316\n",
            "del_products": "6QD0BAVS7I\nVOA31MCU9I\n",
        },
    )
    module = products()
    assert [task.task_id for task in module.count.downstream_list] == ["merge"]
    counted = executed(module.count, lake)
    assert (counted["version"], counted["counts"]["updates"], counted["counts"]["deletes"]) == (
        None,
        1,
        1,
    )
    assert (lake / "master" / "part-r-00000").read_text() == MASTER
    merged = executed(module.merge, lake)
    assert {name: merged["counts"][name] for name in counted["counts"]} == counted["counts"]
    assert merged["counts"]["deletes_of_unknown"] == 1
    assert [Path(file["file"]).name for file in merged["examples"]] == ["del_products", "products"]
    texts = [path.read_text() for path in (lake / "master").glob("*.csv")]
    assert "".join(texts) == "VR8NCNE7DV,wearables,fitbit,112,82,1428415316\n"


@pytest.mark.slow
def test_a_bad_file_fails_for_good_and_a_clear_after_its_correction_merges_it(
    lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", f"{ROOT / '.venv' / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "spark_apps"))
    fill(lake / "master", {"part-r-00000": MASTER})
    fill(lake / "incr", {"products": "VR8NCNE7DV,wearables,fitbit,112,82,yesterday\n"})
    with pytest.raises(
        AirflowFailException,
        match="products, line 1: field '_c5', the order, is not a valid number",
    ):
        executed(products().merge, lake)
    fill(lake / "incr", {"products": "VR8NCNE7DV,wearables,fitbit,112,82,1428415316\n"})
    assert executed(products().merge, lake, clears=1)["counts"]["updates"] == 1
