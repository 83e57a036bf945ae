"""The operator of SQL statements: what it submits, refuses and finds, without Spark."""

import copy
import json
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowFailException
from airflow.serialization.serialized_objects import DagSerialization

from airflow_provider_opal import SqlOperator, opal_asset
from opal_lake.operations.job_spec import JobSpec
from opal_lake.storage.open import open_storage
from opal_lake.table import Table
from tests.airflow_provider_opal.build import Events
from tests.airflow_provider_opal.stand_ins import Commands, commands, context
from tests.opal_lake.shop import create, rows

__all__ = ["commands"]

SCRIPT = """
UPDATE lake.shop.t SET price = 2 WHERE sku = :sku;
SELECT * FROM lake.shop.t;
DELETE FROM lake.shop.other;
"""
TOKEN = "d/r/sql/-1/0"
ASSETS = {
    name: [opal_asset(name), opal_asset(name, versions=True)] for name in ("shop.t", "shop.other")
}


@pytest.fixture(autouse=True)
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a lake with two tables of one row each."""
    root = tmp_path / "lake"
    connection = {"conn_type": "opal", "host": str(root)}
    monkeypatch.setenv("AIRFLOW_CONN_OPAL_DEFAULT", json.dumps(connection))
    spark = {"conn_type": "spark", "host": "local[2]"}
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps(spark))
    for name in ("t", "other"):
        create(open_storage(str(root / "shop" / name)))
        table(root, name).ingest(*rows([("a", 1, 1)]), metadata="inline")
    return root


def table(root: Path, name: str) -> Table:
    return Table.open(str(root / "shop" / name))


def made(**arguments: Any) -> SqlOperator:
    given = {"task_id": "sql", "sql": SCRIPT, "args": {"sku": "a"}, "lakechime_conn_id": None}
    return SqlOperator(**{**given, **arguments})


def run_context(task: SqlOperator, **more: Any) -> Any:
    return {**context(task, **more), "outlet_events": Events()}


def test_the_script_is_submitted_with_the_folder_of_its_catalog(
    lake: Path, commands: Commands
) -> None:
    commands.spark_submit()
    task = made(limit=5)
    with pytest.raises(Exception, match="the table has no commit of the job"):
        task.execute(run_context(task))
    argv = commands.notes()[0]["argv"]
    spec = JobSpec.from_json(argv[argv.index("--spec") + 1])
    assert (spec.table, spec.token) == (str(lake), TOKEN)
    expected = {
        "sql": [SCRIPT],
        "args": {"sku": "a"},
        "catalogs": {"lake": str(lake)},
        "limit": 5,
    }
    assert spec.operation.to_arguments() == expected


def test_the_results_of_statements_are_found_in_their_tables(
    lake: Path, commands: Commands
) -> None:
    commands.spark_submit()
    task = made()
    table(lake, "t").update({"price": 2}, where="sku = 'a'", token=f"{TOKEN}/1")
    with pytest.raises(Exception, match="the table has no commit of the job"):
        task.execute(run_context(task))
    # This changes no row, and its result is stored apart
    table(lake, "other").delete("sku = 'none'", token=f"{TOKEN}/3")
    events = run_context(task)
    result = task.execute(events)
    assert len(commands.notes()) == 1
    assert (result["repeated"], result["version"]) == (True, None)
    assert result["counts"] == {"statements": 3, "updated": 1, "deleted": 0, "inserted": 0}
    first, second, third = result["statements"]
    expected = {
        "number": 1,
        "line": 2,
        "statement": "UPDATE lake.shop.t SET price = 2 WHERE sku = :sku",
        "table": str(lake / "shop" / "t"),
        "operation": "update",
    }
    assert {name: first[name] for name in expected} == expected
    assert first["version"] == table(lake, "t").snapshot_at().version
    assert second == {"number": 2, "line": 3, "statement": "SELECT * FROM lake.shop.t"}
    assert third["counts"]["deleted"] == 0
    assert task.outlets == ASSETS["shop.t"]
    _, versions = ASSETS["shop.t"]
    assert events["outlet_events"][versions].keys == [f"{first['version']:020d}"]


def test_a_success_of_spark_counts_if_only_queries_follow_the_last_change(
    lake: Path, commands: Commands
) -> None:
    script = SCRIPT.replace("DELETE FROM", "SELECT * FROM")
    table(lake, "t").update({"price": 2}, token=f"{TOKEN}/1")
    commands.spark_submit(status=2)
    task = made(sql=script)
    with pytest.raises(AirflowFailException, match="sql of lake"):
        task.execute(run_context(task))
    commands.spark_submit()
    result = task.execute(run_context(task))
    assert (len(commands.notes()), result["counts"]["updated"]) == (2, 1)
    queries = made(sql="SELECT 1; SHOW TABLES IN lake")
    assert queries.execute(run_context(queries))["counts"] == {"statements": 2}
    assert queries.outlets == []


def test_a_cleared_task_runs_its_statements_again(lake: Path, commands: Commands) -> None:
    commands.spark_submit()
    table(lake, "t").delete("sku = 'a'", token=TOKEN)
    task = made(sql="DELETE FROM lake.shop.t WHERE sku = 'a'")
    assert task.execute(run_context(task))["repeated"]
    with pytest.raises(Exception, match="the table has no commit of the job"):
        task.execute(run_context(task, clears=1))
    argv = commands.notes()[0]["argv"]
    assert JobSpec.from_json(argv[argv.index("--spec") + 1]).token == "d/r/sql/-1/1"


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"sql": "{{ x }}UPDATE lake.t SET"}, "line 1"),
        ({"sql": "SELECT 1; DELETE FROM IDENTIFIER(:sku || 'b'){{ x }}"}, "It is statement 2"),
        ({"sql": "{{ x }}"}, "has no statement"),
        ({"sql": 7}, "is not a script"),
        ({"args": {"day": datetime(2026, 1, 1)}}, "CAST"),
        ({"args": {"a b": 1}}, "name it with letters"),
        ({"args": ["a"]}, "is not a mapping"),
        ({"opal_conn_id": "none"}, "does not exist"),
        ({"sql": f"{{{{ x }}}}SELECT '{'a' * 130_000}'"}, "split them"),
    ],
)
def test_what_a_retry_cannot_mend_fails_before_spark_starts(
    arguments: dict[str, Any], message: str, commands: Commands
) -> None:
    commands.spark_submit()
    with DAG("d", schedule=None) as dag:
        task = made(**arguments)
    task.render_template_fields({"dag": dag, "task": task, "x": ""})
    with pytest.raises(AirflowFailException, match=message):
        task.execute(run_context(task))
    assert commands.notes() == []


def test_a_token_of_another_script_is_refused(lake: Path, commands: Commands) -> None:
    commands.spark_submit()
    table(lake, "t").delete("sku = 'none'", token=f"{TOKEN}/1")
    task = made()
    with pytest.raises(AirflowFailException, match=r"statement 1 .* a delete of another script"):
        task.execute(run_context(task))


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"sql": "UPDATE lake.t SET a"}, "line 1"),
        ({"sql": ["SELECT 1", "SELECT 'a"]}, "text 2 of 2"),
        ({"catalog": "my lake"}, "not a name for a catalog"),
        ({"catalog": "opal"}, "catalog of Spark"),
        ({"limit": -1}, "limit must be"),
        ({"args": {"password": "x"}}, "holds a secret"),
    ],
)
def test_invalid_arguments_are_refused_when_the_dag_is_parsed(
    arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        made(**arguments)


def test_files_are_templates_and_their_tables_are_outlets(tmp_path: Path) -> None:
    (tmp_path / "fix.sql").write_text(
        "{# a comment #}UPDATE lake.shop.t SET price = {{ params.price }} WHERE at = '{{ ds }}';\n"
        "{% if params.more %}DELETE FROM lake.{{ params.name }};{% endif %}\n"
        "INSERT INTO lake.shop.other SELECT * FROM lake.shop.t WHERE sku = :sku\n"
    )
    with DAG("d", start_date=datetime(2026, 1, 1), template_searchpath=str(tmp_path)) as dag:
        task = made(sql="fix.sql", args={"sku": "{{ ds }}"})
    assert task.outlets == []
    dag.resolve_template_files()
    assert task.outlets == [*ASSETS["shop.t"], *ASSETS["shop.other"]]
    params = {"price": 3, "more": False, "name": "x"}
    task.render_template_fields({"dag": dag, "task": task, "ds": "2026-01-01", "params": params})
    assert "SET price = 3 WHERE at = '2026-01-01'" in str(task.sql)
    assert "DELETE" not in str(task.sql)
    assert task.args == {"sku": "2026-01-01"}


def test_a_file_with_a_partition_key_asks_for_one(tmp_path: Path) -> None:
    (tmp_path / "day.sql").write_text("DELETE FROM lake.shop.t WHERE sku = '{{ partition_key }}'")
    with DAG("d", schedule=None, template_searchpath=str(tmp_path)) as dag:
        task = made(sql="day.sql")
    dag.resolve_template_files()
    with pytest.raises(AirflowFailException, match="has no partition key"):
        task.execute(run_context(task))


def test_outlets_are_the_tables_whose_rows_may_change() -> None:
    script = """
    CREATE TABLE IF NOT EXISTS lake.a (id INT PRIMARY KEY) USING opal;
    CREATE TABLE lake.b USING opal TBLPROPERTIES ('keys' = 'id') AS SELECT 1 AS id;
    ALTER TABLE lake.c DROP COLUMN x;
    MERGE INTO opal.`/data/d` AS d USING lake.e AS e ON d.id = e.id WHEN MATCHED THEN DELETE;
    DELETE FROM IDENTIFIER(:table);
    UPDATE lake.`a name` SET x = 1;
    """
    task = made(sql=script, args={"table": "lake.f"}, outlets=[opal_asset("own")])
    known = []
    for name in ("b", "/data/d", "f"):
        known += [opal_asset(name), opal_asset(name, versions=True)]
    assert task.outlets == [*known, opal_asset("own")]


def test_it_can_be_mapped_copied_and_serialized() -> None:
    with DAG("d", start_date=datetime(2026, 1, 1), default_args={"limit": 3}) as dag:
        SqlOperator.partial(task_id="m", sql=SCRIPT).expand(args=[{"sku": "a"}, {"sku": "b"}])
        SqlOperator.partial(task_id="n").expand(sql=["SELECT 1", "SELECT 2"])
        plain = made(sql=["SELECT 1", "SELECT 2"])
    DagSerialization.from_dict(DagSerialization.to_dict(dag))
    assert [*dag.get_task("m").partial_kwargs["outlets"]] == [
        *ASSETS["shop.t"],
        *ASSETS["shop.other"],
    ]
    assert copy.deepcopy(plain).sql == plain.sql
    assert plain.limit == 3
