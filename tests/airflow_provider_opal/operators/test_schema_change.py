"""The operator that changes columns runs in the worker, and may stand before each ingest."""

import json
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException

from airflow_provider_opal import CreateTable, SchemaChangeOperator
from opal_lake.storage.open import open_storage
from opal_lake.table import Table
from tests.airflow_provider_opal.stand_ins import Commands, commands, context
from tests.opal_lake.shop import create

__all__ = ["commands"]

SCHEMA = "id BIGINT, amount DECIMAL(10,2), at TIMESTAMP"
CREATE = CreateTable(keys=["id"], delta="at", constraints={"positive": "amount > 0"})


@pytest.fixture(autouse=True)
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, commands: Commands) -> Path:
    """Return a lake with the table `t`; a task that starts Spark would be seen."""
    connection = {"conn_type": "opal", "host": str(tmp_path)}
    monkeypatch.setenv("AIRFLOW_CONN_OPAL_DEFAULT", json.dumps(connection))
    spark = {"conn_type": "spark", "host": "local[2]"}
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps(spark))
    commands.spark_submit()
    create(open_storage(str(tmp_path / "t")))
    return tmp_path


def run(clears: int = 0, **arguments: Any) -> dict[str, Any]:
    """Run the task, as after so many clears."""
    task = SchemaChangeOperator(**{"task_id": "schema", "table": "t", **arguments})
    return task.execute(context(task, clears=clears))


def test_changes_are_committed_without_spark_once_in_a_run(lake: Path, commands: Commands) -> None:
    changes = [{"rename": "price", "to": "amount"}, {"add": "note", "type": "string"}]
    result = run(changes=changes)
    assert (result["counts"], commands.notes()) == ({"renamed": 1, "added": 1}, [])
    assert run(changes=changes)["repeated"]
    assert "amount" in Table.open(str(lake / "t")).read().schema.names
    with pytest.raises(AirflowFailException, match="no column 'price'"):
        run(1, changes=changes)


def test_a_schema_is_applied_in_each_run_and_makes_the_table_first(
    lake: Path, commands: Commands
) -> None:
    made = run(table="new", schema=SCHEMA, create=CREATE)
    assert made["version"] is None
    table = Table.open(str(lake / "new"))
    assert table.snapshot_at().spec.checks
    longer = "id BIGINT, amount DECIMAL(12,2), at TIMESTAMP, note STRING"
    for clears, version in ((1, 1), (2, None)):
        done = run(clears, table="new", schema=longer, create=CREATE)
        assert done["version"] == version
    assert Table.open(str(lake / "new")).read().schema.names == ["id", "amount", "at", "note"]
    assert commands.notes() == []


def test_a_new_constraint_needs_a_job_that_checks_rows(commands: Commands) -> None:
    with pytest.raises(Exception, match="the table has no commit of the job"):
        run(changes=[{"add_constraint": "positive", "check": "price > 0"}])
    [note] = commands.notes()
    assert "add_constraint" in " ".join(note["argv"])


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"table": "nope", "schema": SCHEMA}, "'nope' does not exist; add create="),
        ({"schema": "id STRING"}, "which the schema lacks"),
        ({"changes": [{"drop": "price"}], "schema": SCHEMA}, "give one of them"),
        ({"changes": [{"add_constraint": "positive"}]}, "needs 'check'"),
    ],
)
def test_what_a_retry_cannot_mend_fails_at_once(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(AirflowFailException, match=message):
        run(**arguments)


def test_a_new_table_needs_a_schema() -> None:
    with pytest.raises(ValueError, match="create= needs schema="):
        run(create=CREATE, changes=[{"drop": "price"}])
