"""A MetaGenOperator emits the partition keys with visible rows, whether it had work or not."""

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowException, AirflowFailException
from structlog.testing import capture_logs

from airflow_provider_opal import MetaGenOperator
from airflow_provider_opal.hooks.opal import OpalHook
from airflow_provider_opal.operators.spark import token_of
from lakechime import LakeChime
from lakechime.producers.opal import sync_opal
from opal_lake.errors import OpalError, ReadOnlyError, StorageError
from opal_lake.table import Table, table_on
from opal_lake.write.discard import discard
from tests.airflow_provider_opal.build import Events
from tests.airflow_provider_opal.jobs import SCHEMA, create_table, do_job
from tests.airflow_provider_opal.stand_ins import Commands, Store, commands, context
from tests.kit.failing_store import RefusingStore

__all__ = ["commands"]

FRIDAY, SATURDAY, SUNDAY = "2026-11-06", "2026-11-07", "2026-11-08"
ROW = [{"id": "a", "at": 1, "day": "d"}]


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Table:
    connection = {"conn_type": "opal", "host": str(tmp_path)}
    monkeypatch.setenv("AIRFLOW_CONN_OPAL_DEFAULT", json.dumps(connection))
    return create_table(str(tmp_path / "shop" / "orders"))


@pytest.fixture
def spark(commands: Commands, monkeypatch: pytest.MonkeyPatch) -> Commands:
    """Return a spark-submit that only notes that it was started."""
    monkeypatch.setenv(
        "AIRFLOW_CONN_SPARK_DEFAULT", json.dumps({"conn_type": "spark", "host": "local[2]"})
    )
    commands.spark_submit(status=1)
    return commands


@pytest.fixture
def chime(tmp_path: Path) -> Iterator[LakeChime]:
    with LakeChime.open(f"sqlite:///{tmp_path}/chime.db") as chime:
        yield chime


def ingest(table: Table, key: str | None, token: str, **given: Any) -> None:
    rows = SCHEMA.empty_table() if given.pop("is_empty", False) else rows_of_one()
    table.ingest(rows, partition_key=key, token=token, **given)


def rows_of_one() -> Any:
    return SCHEMA.empty_table().from_pylist(ROW, SCHEMA)


def emitted(run_key: str | None, clears: int = 0, **given: Any) -> list[str | None]:
    """Run a MetaGen, and return the keys of the table's events in Airflow."""
    task = MetaGenOperator(task_id="m", table="shop.orders", lakechime_conn_id=None, **given)
    run = {
        **context(task, clears=clears, partition_key=run_key),
        "outlet_events": Events(),
    }
    spec = task.job(run)
    if Table.open(spec.table).snapshot_at().root.pending:
        do_job(spec)  # otherwise the task has to do without Spark
    result = task.execute(run)
    assert task.versions in task.outlets
    assert run["outlet_events"][task.versions].keys == [f"{result['version']:020}"]
    if task.asset not in task.outlets:
        assert task.asset not in run["outlet_events"]
        return []
    return run["outlet_events"][task.asset].keys or [run_key]


def registered(chime: LakeChime, table: Table) -> list[str]:
    """Return the keys of LakeChime's data-change events."""
    sync_opal(chime, table, "shop.orders")
    events = [registered.event for registered in chime.events(["shop.orders"]).events]
    return [event.partition[0] for event in events if event.partition]


def test_a_key_is_emitted_when_its_rows_become_visible_and_at_each_repeat(table: Table) -> None:
    ingest(table, FRIDAY, "one")
    assert emitted(FRIDAY) == [FRIDAY]
    assert emitted(FRIDAY) == [FRIDAY], "a retry"
    assert emitted(FRIDAY, clears=1) == [FRIDAY], "a clear that has nothing to do"
    assert emitted(SATURDAY, partition_key=FRIDAY, clears=2) == [FRIDAY]


def test_a_day_without_rows_is_emitted(table: Table) -> None:
    ingest(table, FRIDAY, "one", is_empty=True)
    assert emitted(FRIDAY) == [FRIDAY]


@pytest.mark.parametrize("given", [{}, {"partition_key": FRIDAY}, {"all": True}])
def test_a_key_whose_rows_were_discarded_is_not_emitted(
    table: Table, chime: LakeChime, given: dict[str, Any]
) -> None:
    ingest(table, FRIDAY, "one")
    discard(table.log, partition_key=FRIDAY)
    assert emitted(FRIDAY, **given) == []
    assert registered(chime, table) == []


@pytest.mark.parametrize("given", [{}, {"partition_key": FRIDAY}, {"all": True}])
def test_a_key_that_was_never_ingested_is_not_emitted(
    table: Table, chime: LakeChime, given: dict[str, Any]
) -> None:
    ingest(table, SATURDAY, "one", metadata="inline")
    assert FRIDAY not in emitted(FRIDAY, **given)
    assert registered(chime, table) == [SATURDAY]


def test_a_visible_key_of_which_later_rows_were_discarded_is_emitted(table: Table) -> None:
    ingest(table, FRIDAY, "one", metadata="inline")
    ingest(table, FRIDAY, "two")
    discard(table.log, token="two")
    assert emitted(FRIDAY) == [FRIDAY]


def test_rows_that_are_held_back_are_emitted_by_the_metagen_that_publishes_them(
    table: Table, chime: LakeChime
) -> None:
    table.set_properties({"drift": "1d"})
    ingest(table, FRIDAY, "one", business_snapshot=FRIDAY)
    assert emitted(FRIDAY, all=True) == [FRIDAY]
    ingest(table, SATURDAY, "two", business_snapshot=SATURDAY)
    assert SATURDAY not in emitted(SATURDAY, clears=1, all=True)
    assert emitted(SATURDAY, clears=2) == []
    assert registered(chime, table) == [FRIDAY]
    table.finish_business_snapshot(FRIDAY)
    ingest(table, SUNDAY, "three", business_snapshot=SUNDAY)
    assert emitted(SUNDAY, clears=3, all=True) == [SATURDAY]
    assert emitted(SATURDAY, clears=4, all=True) == [SATURDAY]
    assert registered(chime, table) == [FRIDAY, SATURDAY]


def test_a_dag_run_without_a_key_emits_the_published_keys_or_else_one_event_without_a_key(
    table: Table,
) -> None:
    ingest(table, FRIDAY, "one")
    ingest(table, None, "two")
    assert emitted(None) == [None]
    assert emitted(None, all=True, clears=1) == [FRIDAY]
    assert emitted(None, partition_key=SATURDAY, clears=2) == []


@pytest.mark.parametrize("seed", range(5))
def test_a_key_is_emitted_if_and_only_if_an_ingest_of_it_is_visible(
    table: Table, chime: LakeChime, seed: int
) -> None:
    chance = random.Random(seed)
    pending: dict[str, set[str]] = {FRIDAY: set(), SATURDAY: set()}
    visible: set[str] = set()
    for step in range(20):
        key = chance.choice([*pending])
        match chance.choice(["ingest", "empty", "inline", "discard", "metagen", "metagen", "all"]):
            case "ingest":
                ingest(table, key, f"t{step}")
                pending[key].add(f"t{step}")
            case "empty" if not pending[key]:
                ingest(table, key, f"t{step}", is_empty=True)
                visible.add(key)
            case "inline":
                ingest(table, key, f"t{step}", metadata="inline")
                visible.add(key)
            case "discard" if pending[key]:
                discard(table.log, partition_key=key)
                pending[key].clear()
            case "metagen":
                visible |= {key} if pending[key] else set()
                pending[key].clear()
                assert emitted(key, clears=step) == ([key] if key in visible else [])
            case "all":
                published = {name for name, tokens in pending.items() if tokens}
                visible |= published
                pending = {name: set() for name in pending}
                keys = {*emitted(key, clears=step, all=True)}
                assert keys >= published | ({key} & visible)
                assert keys <= visible
        assert {*registered(chime, table)} == visible


def metagen(**given: Any) -> MetaGenOperator:
    return MetaGenOperator(
        task_id="m", **{"table": "shop.orders", "lakechime_conn_id": None, **given}
    )


def run_of(task: MetaGenOperator, key: str | None = None, **given: Any) -> Any:
    return {**context(task, partition_key=key, **given), "outlet_events": Events()}


def starts_spark(spark: Commands, task: MetaGenOperator, run: Any) -> bool:
    """Execute the task, and return whether it submitted a job."""
    before = len(spark.notes())
    try:
        task.execute(run)
    except AirflowFailException:
        raise
    except AirflowException:
        assert len(spark.notes()) == before + 1
        return True
    assert len(spark.notes()) == before
    return False


@pytest.mark.parametrize(
    "given", [{}, {"partition_key": SATURDAY}, {"tokens": ["one"]}, {"all": True}]
)
def test_a_metagen_without_work_has_the_result_of_the_job_and_starts_no_spark(
    table: Table, spark: Commands, given: dict[str, Any]
) -> None:
    ingest(table, FRIDAY, "one")
    table.metagen(all=True)
    if not given.get("all"):
        ingest(table, SUNDAY, "stays pending")
    of_job = task_result(table, **given)
    task = metagen(**given)
    with capture_logs() as logs:
        result = task.execute(run_of(task, FRIDAY))
    assert result == {**of_job, "token": "d/r/m/-1/0"}
    assert spark.notes() == []
    version = table.snapshot_at().version
    assert f"nothing to publish at version {version}; no Spark job started" in lines(logs)


def lines(logs: list[Any]) -> list[str]:
    return [log["event"] for log in logs]


def task_result(table: Table, **given: Any) -> dict[str, Any]:
    """Return what the job of a MetaGen returns under a token of its own."""
    own = given or {"partition_key": FRIDAY}
    result: dict[str, Any] = json.loads(table.metagen(**own, token="job").to_json())
    return result


def test_a_retry_returns_the_result_of_the_first_look_though_rows_came_meanwhile(
    table: Table, spark: Commands
) -> None:
    task = metagen()
    first = task.execute(run_of(task, FRIDAY))
    ingest(table, FRIDAY, "one")
    again = task.execute(run_of(task, FRIDAY))
    assert again == {**first, "repeated": True}
    assert table.snapshot_at().root.pending == 1
    assert starts_spark(spark, task, run_of(task, FRIDAY, clears=1)), "a clear looks again"


@pytest.mark.parametrize(
    "given, starts",
    [
        ({}, True),
        ({"partition_key": SATURDAY}, False),
        ({"tokens": ["one"]}, True),
        ({"all": True}, True),
    ],
)
def test_only_pending_rows_that_are_asked_for_are_left_to_spark(
    table: Table, spark: Commands, given: dict[str, Any], starts: bool
) -> None:
    ingest(table, FRIDAY, "one")
    task = metagen(**given)
    assert starts_spark(spark, task, run_of(task, FRIDAY)) is starts
    assert table.snapshot_at().root.pending == 1, "the worker publishes nothing"


def test_rows_that_are_held_back_start_spark_once_their_drift_time_is_over(
    table: Table, spark: Commands
) -> None:
    table.set_properties({"drift": "1d"})
    ingest(table, FRIDAY, "one", business_snapshot=FRIDAY)
    table.metagen(all=True)
    ingest(table, SATURDAY, "two", business_snapshot=SATURDAY)
    task = metagen(all=True)
    result = task.execute(run_of(task, SATURDAY))
    assert any("are held back" in note for note in result["notes"])
    assert spark.notes() == []
    table.set_properties({"drift": "0s"})
    assert starts_spark(spark, task, run_of(task, SATURDAY, clears=1))


@pytest.mark.parametrize("given", [{"table": "shop.nowhere"}, {"tokens": ["unknown"]}])
def test_input_that_the_job_would_refuse_fails_before_spark_starts(
    table: Table, spark: Commands, given: dict[str, Any]
) -> None:
    task = metagen(**given)
    spec = task.job(run_of(task))
    with pytest.raises(OpalError) as of_job:
        spec.job.run(Table.open(spec.table))
    with pytest.raises(AirflowFailException) as refused:
        task.execute(run_of(task))
    assert f"opal: {of_job.value}" in str(refused.value).splitlines()
    assert spark.notes() == []


class RefusedHook(OpalHook):
    """Opens tables whose store raises an error at each put."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error

    def table(self, table: str) -> Table:
        return table_on(RefusingStore(super().table(table).storage, self.error))


class RefusedMetaGen(MetaGenOperator):
    """A MetaGen on a worker whose writes fail."""

    error: Exception

    @property
    def opal(self) -> OpalHook:
        return RefusedHook(self.error)


@pytest.mark.parametrize(
    "error, level",
    [
        (ReadOnlyError("the store may only be read"), "info"),
        (StorageError("the store is away"), "info"),
        (KeyError("a bug in the look"), "warning"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else value,
)
def test_a_look_that_fails_leaves_the_job_to_spark_and_a_bug_is_a_warning(
    table: Table, spark: Commands, error: Exception, level: str
) -> None:
    task = RefusedMetaGen(task_id="m", table="shop.orders", lakechime_conn_id=None)
    task.error = error
    with capture_logs() as logs:
        assert starts_spark(spark, task, run_of(task))
    [log] = [log for log in logs if "before Spark starts" in log["event"]]
    assert log["event"] == f"this worker could not check the table before Spark starts: {error}"
    assert log["log_level"] == level
    assert bool(log.get("exc_info")) == (level == "warning")


def test_a_job_of_an_earlier_try_that_may_run_on_a_cluster_is_not_passed_by(
    table: Table, spark: Commands
) -> None:
    task = metagen()
    store = Store({f"spark_job_id:{token_of(run_of(task))}": "application_1_0001"})
    assert starts_spark(spark, task, run_of(task, store=store))
