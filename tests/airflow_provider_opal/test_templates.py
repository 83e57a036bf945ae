"""What the templates make: tasks, wires, schedules, and the errors of those that cannot be."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from airflow.sdk import DAG, Asset, CronPartitionTimetable, PartitionedAssetTimetable, PartitionedAtRuntime
from airflow.serialization.serialized_objects import DagSerialization

from airflow_provider_opal import Consumer, Files, OpalTaskGroup, Table, opal_asset, opal_dag, reconcile_dag
from airflow_provider_opal.templates.schedule import format_of, timetable_of

START = datetime(2026, 11, 1, tzinfo=UTC)
FILES = Files(paths=("/in/{{ partition_key }}/*.json",))


def orders(**more: Any) -> DAG:
    made = Table(keys=["id"], delta="at")
    return opal_dag(
        "orders", **{"table": "shop.orders", "source": FILES, "schedule": "@daily", "start_date": START, "create": made, **more}
    )


def wires(dag: DAG) -> dict[str, set[str]]:
    return {task.task_id: task.downstream_task_ids for task in dag.tasks}


def test_a_pipeline_is_ingest_then_metagen_then_consumers() -> None:
    dag = orders(consumers=[Consumer(name="a", function="m:f"), Consumer(name="b", function="m:f", by="version")])
    assert wires(dag) == {"ingest": {"metagen"}, "metagen": {"a", "b"}, "a": set(), "b": set()}
    assert dag.task_dict["b"].max_active_tis_per_dag == 1
    assert dag.task_dict["a"].consumer == "orders.a"
    assert {asset.uri for asset in dag.task_dict["metagen"].outlets} == {
        "opal://opal_default/shop.orders",
        "opal://opal_default/shop.orders/versions",
    }
    assert (dag.max_active_runs, dag.catchup, dag.tags) == (1, False, {"opal"})
    DagSerialization.to_dict(dag)


def test_a_scheduled_run_works_on_the_interval_that_just_ended() -> None:
    assert orders().timetable == CronPartitionTimetable("0 0 * * *", timezone="UTC", run_offset=-1, key_format="%Y-%m-%d")
    assert orders(timezone="Europe/Berlin", key_format="%d").timetable == CronPartitionTimetable(
        "0 0 * * *", timezone="Europe/Berlin", run_offset=-1, key_format="%d"
    )
    assert isinstance(timetable_of(None, "UTC", None), PartitionedAtRuntime)
    assert isinstance(timetable_of(opal_asset("a") & opal_asset("b"), "UTC", None), PartitionedAssetTimetable)
    own = PartitionedAtRuntime()
    assert timetable_of(own, "UTC", None) is own


@pytest.mark.parametrize(
    "cron, key", [("0 0 * * *", "%Y-%m-%d"), ("30 6 1 * *", "%Y-%m-%d"), ("5 * * * *", "%Y-%m-%dT%H"), ("*/5 * * * *", "%Y-%m-%dT%H-%M")]
)
def test_a_key_says_as_much_as_tells_the_runs_apart(cron: str, key: str) -> None:
    assert format_of(cron) == key
    assert ":" not in key


@pytest.mark.parametrize(
    "more, said",
    [
        ({"schedule": [Asset("a")]}, "join them: schedule=a & b"),
        ({"schedule": "@once"}, "makes no partitions"),
        ({"schedule": 5}, "is no schedule"),
        ({"maintenance": {"zorder": ["a"]}}, "this version does not have yet"),
        ({"consumers": [Consumer(name="a", function="m:f")] * 2}, "the name a is given to more than one task"),
        ({"consumers": [Consumer(name="metagen", function="m:f")]}, "the name metagen is given to more than one task"),
        ({"consumers": [Consumer(name="a", function="f")]}, "write it as 'package.module:function'"),
        ({"metadata": "later"}, "metadata='later' is unknown"),
    ],
)
def test_what_cannot_be_says_what_to_write(more: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        orders(**more)


def test_a_consumer_goes_by_what_there_is() -> None:
    with pytest.raises(ValueError, match="use one of partition, version"):
        Consumer(name="a", function="m:f", by="day")


def test_an_argument_that_nothing_takes_is_an_error() -> None:
    with pytest.raises(TypeError, match="on_bad_row"):
        orders(on_bad_row="fail")


def test_retries_pool_deadline_and_spark_settings_reach_every_task() -> None:
    dag = orders(retries=5, retry_delay=timedelta(seconds=7), pool="spark", spark={"executor_memory": "2g"}, deadline=timedelta(hours=1))
    for task in dag.tasks:
        assert (task.retries, task.retry_delay, task.pool, task._executor_memory) == (5, timedelta(seconds=7), "spark", "2g")
    assert dag.deadline is not None
    DagSerialization.to_dict(dag)


def test_a_group_has_the_pipeline_s_tasks_and_its_asset() -> None:
    with DAG("own", schedule=None, start_date=START) as dag:
        group = OpalTaskGroup("users", table="shop.users", source=FILES, consumers=[Consumer(name="mail", function="m:f")], tooltip="users")
    assert wires(dag) == {"users.ingest": {"users.metagen"}, "users.metagen": {"users.mail"}, "users.mail": set()}
    assert group.asset == opal_asset("shop.users")
    assert group.consumers["mail"].consumer == "own.users.mail"
    with pytest.raises(ValueError, match="own_dag=True, which only opal_dag makes"), DAG("own", schedule=None, start_date=START):
        OpalTaskGroup("users", table="shop.users", source=FILES, consumers=[Consumer(name="mail", function="m:f", own_dag=True)])


def test_consumers_of_their_own_come_with_a_dag_that_tells_them_again() -> None:
    dag = reconcile_dag("again", table="shop.orders", consumers={"a": "partition", "b": "version", "c": "version"}, start_date=START)
    assert {task.task_id: task.consumers for task in dag.tasks} == {"partitions": ["a"], "versions": ["b", "c"]}
    assert [asset.uri for asset in dag.task_dict["versions"].outlets] == ["opal://opal_default/shop.orders/versions"]
