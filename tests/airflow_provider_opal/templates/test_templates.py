"""The tasks, dependencies and schedules of the templates, and the errors of wrong arguments."""

import inspect
from datetime import UTC, datetime, timedelta
from typing import Any

import pendulum
import pytest
from airflow.sdk import (
    DAG,
    Asset,
    CronPartitionTimetable,
    PartitionedAssetTimetable,
    PartitionedAtRuntime,
)
from airflow.sdk.definitions.timetables.simple import NullTimetable
from airflow.serialization.serialized_objects import DagSerialization

from airflow_provider_opal import (
    Consumer,
    CreateTable,
    Evolve,
    Files,
    IngestOperator,
    Maintenance,
    OpalTaskGroup,
    consumer_schedule,
    maintenance_dag,
    opal_asset,
    opal_dag,
    reconcile_dag,
)
from airflow_provider_opal.partition_keys import format_of
from airflow_provider_opal.templates.approval import RetentionApproval
from airflow_provider_opal.templates.pipeline import pipeline_of
from airflow_provider_opal.templates.schedule import keyed_schedule
from airflow_provider_opal.templates.short_spans import ShortSpanWarning
from airflow_provider_opal.templates.yaml.loader import registered
from opal_lake.operations.ingest import IngestRules

START = datetime(2026, 11, 1, tzinfo=UTC)
FILES = Files(paths=("/in/{{ partition_key }}/*.json",))


def orders(**more: Any) -> DAG:
    made = CreateTable(keys=["id"], delta="at")
    return opal_dag(
        "orders",
        **{
            "table": "shop.orders",
            "source": FILES,
            "schedule": "@daily",
            "start_date": START,
            "create": made,
            **more,
        },
    )


def wires(dag: DAG) -> dict[str, set[str]]:
    return {task.task_id: task.downstream_task_ids for task in dag.tasks}


def test_a_pipeline_is_ingest_then_metagen_then_consumers() -> None:
    dag = orders(
        consumers=[
            Consumer(name="a", function="m:f"),
            Consumer(name="b", function="m:f", by="version"),
        ]
    )
    assert wires(dag) == {"ingest": {"metagen"}, "metagen": {"a", "b"}, "a": set(), "b": set()}
    assert dag.task_dict["b"].max_active_tis_per_dag == 1
    assert dag.task_dict["a"].consumer == "orders.a"
    assert {asset.uri for asset in dag.task_dict["metagen"].outlets} == {
        "opal://opal_default/shop.orders",
        "opal://opal_default/shop.orders/versions",
    }
    assert (dag.max_active_runs, dag.catchup, dag.tags) == (1, False, {"opal"})
    DagSerialization.to_dict(dag)


def test_a_pipeline_gives_its_table_the_columns_of_its_schema_before_the_ingest() -> None:
    create = CreateTable(keys=["id"], delta="at", schema="id BIGINT, at TIMESTAMP, amount INT")
    evolve = Evolve(renamed={"amount": "total"}, dropped=["op"])
    dag = orders(create=create, evolve=evolve)
    assert wires(dag) == {"schema": {"ingest"}, "ingest": {"metagen"}, "metagen": set()}
    schema: Any = dag.get_task("schema")
    assert schema.arguments == {
        "schema": create.schema,
        "renamed": {"amount": "total"},
        "dropped": ["op"],
    }
    assert schema.create == {"keys": ["id"], "delta": "at"}
    assert "schema" not in orders(create=create).task_dict
    with pytest.raises(ValueError, match="evolve= needs create="):
        orders(evolve=True)


def test_a_scheduled_run_works_on_the_interval_that_just_ended() -> None:
    assert orders().timetable == CronPartitionTimetable(
        "0 0 * * *", timezone="UTC", run_offset=-1, key_format="%Y-%m-%d"
    )
    assert orders(
        timezone="Europe/Berlin", partition_key_format="%d"
    ).timetable == CronPartitionTimetable(
        "0 0 * * *", timezone="Europe/Berlin", run_offset=-1, key_format="%d"
    )
    assert isinstance(keyed_schedule(None, "UTC", None), PartitionedAtRuntime)
    assert isinstance(
        keyed_schedule(opal_asset("a") & opal_asset("b"), "UTC", None), PartitionedAssetTimetable
    )
    own = PartitionedAtRuntime()
    assert keyed_schedule(own, "UTC", None) is own


@pytest.mark.parametrize(
    "cron, key",
    [
        ("0 0 * * *", "%Y-%m-%d"),
        ("30 6 1 * *", "%Y-%m-%d"),
        ("5 * * * *", "%Y-%m-%dT%H"),
        ("*/5 * * * *", "%Y-%m-%dT%H-%M"),
    ],
)
def test_a_key_says_as_much_as_tells_the_runs_apart(cron: str, key: str) -> None:
    assert format_of(cron) == key
    assert ":" not in key
    assert format_of(cron, "Europe/Berlin") == (key if "T" not in key else f"{key}%z"), (
        "an hour comes twice when summer time ends"
    )


@pytest.mark.parametrize(
    "more, said",
    [
        ({"schedule": [Asset("a")]}, "join the assets instead: schedule=first & second"),
        ({"schedule": "@once"}, "makes no partition keys"),
        ({"schedule": 5}, "is not a schedule"),
        ({"maintenance": {"zorder": "a"}}, r"zorder='a' is not a list of columns"),
        (
            {"maintenance": {"zorders": ["a"]}},
            "maintenance has no argument 'zorders'; use one of schedule, target_mb, zorder",
        ),
        ({"maintenance": {"window": "a month"}}, "window='a month' is not a duration"),
        ({"maintenance": "daily"}, r"write True, or Maintenance\("),
        (
            {"consumers": [Consumer(name="a", function="m:f")] * 2},
            "more than one consumer has the name a",
        ),
        ({"schedule": opal_asset("a"), "partition_key_format": "%Y"}, "needs a cron schedule"),
        (
            {"partition_key_format": "%Y-%m"},
            "the same key '2026-01'; include more of the time, for example '%Y-%m-%d'",
        ),
        (
            {"consumers": [Consumer(name="a", function="f")]},
            "write it as 'package.module:function'",
        ),
        ({"metadata": "later"}, "metadata='later' is unknown"),
        ({"on_bad_rows": "skip"}, "on_bad_rows='skip' is unknown; use one of fail, quarantine"),
        ({"on_empty": "skip"}, "on_empty='skip' is unknown; use one of fail, accept"),
        (
            {"reject_threshold": "many", "on_bad_rows": "quarantine"},
            "reject_threshold='many' is not a threshold",
        ),
        ({"reject_threshold": "5%"}, "add on_bad_rows='quarantine'"),
        ({"maintenance": {"grace": "a while"}}, "grace='a while' is not a duration"),
        ({"source": 7}, "write Files"),
        ({"consumers": Consumer(name="a", function="m:f")}, "is not a list of Consumer objects"),
        ({"consumers": [{"name": "a", "function": "m:f"}]}, "is not a list of Consumer objects"),
        ({"start_date": "2026-11-01"}, "write datetime"),
        ({"timezone": "Europe/Berlim"}, "unknown time zone 'Europe/Berlim'"),
    ],
)
def test_an_invalid_argument_is_refused_with_a_correction(more: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        orders(**more)


def test_a_consumer_with_an_unknown_by_or_a_reserved_name_is_refused() -> None:
    with pytest.raises(ValueError, match="use one of partition, version"):
        Consumer(name="a", function="m:f", by="day")
    with pytest.raises(ValueError, match="the pipeline itself uses the name"):
        Consumer(name="reconcile", function="m:f")
    with pytest.raises(ValueError, match="is not a text; write a text such as 'shop_jobs:revenue'"):
        Consumer(name="a", function=print)  # type: ignore[arg-type]  # what a user may try


def test_the_first_and_the_last_partition_are_those_of_start_and_end() -> None:
    """Airflow's bounds are those of the runs, which come a day later."""
    dag = orders(
        start_date=datetime(2026, 11, 1), end_date=datetime(2026, 11, 3), timezone="Europe/Berlin"
    )
    zone = pendulum.timezone("Europe/Berlin")
    assert (dag.start_date, dag.end_date) == (
        datetime(2026, 11, 2, tzinfo=zone),
        datetime(2026, 11, 4, tzinfo=zone),
    )
    assert orders(start_date=datetime(2026, 11, 1, 5, tzinfo=UTC)).start_date == datetime(
        2026, 11, 3, tzinfo=UTC
    )
    assert orders(schedule=None).start_date == START


def test_inline_metadata_need_no_metagen_and_tell_by_the_ingest() -> None:
    dag = orders(
        metadata="inline",
        consumers=[
            Consumer(name="a", function="m:f"),
            Consumer(name="b", function="m:f", own_dag=True),
        ],
    )
    assert {task.task_id: sorted(task.upstream_task_ids) for task in dag.tasks} == {
        "ingest": [],
        "a": ["ingest"],
    }
    assets = [opal_asset("shop.orders"), opal_asset("shop.orders", versions=True)]
    ingest = dag.get_task("ingest")
    assert isinstance(ingest, IngestOperator)
    assert ingest.outlets == assets
    assert ingest.arguments["metadata"] == "inline"
    with DAG("own", schedule=None, start_date=START):
        group = OpalTaskGroup("users", table="shop.users", source=FILES, metadata="inline")
    assert (group.metagen, group.visible, group.asset) == (
        None,
        group.ingest,
        opal_asset("shop.users"),
    )
    assert IngestOperator(task_id="batch", table="shop.users", source=FILES).outlets == []


def test_default_args_hold_for_missing_arguments() -> None:
    given = {"retries": 7, "spark_conn_id": "prod", "opal_conn_id": "other"}
    for task in orders(default_args=given).tasks:
        assert (task.retries, task.spark_conn_id, task.opal_conn_id) == (7, "prod", "other")
        assert task.retry_delay == timedelta(minutes=1)
    with DAG("own", schedule=None, start_date=START, default_args=given):
        group = OpalTaskGroup("users", table="shop.users", source=FILES)
    assert group.metagen is group.visible
    assert (group.visible.retries, group.visible.opal_conn_id) == (7, "other")
    assert group.asset == opal_asset("shop.users", opal_conn_id="other")


def test_a_pipeline_whose_rows_would_reach_nobody_without_a_key_asks_for_one() -> None:
    by_hand = orders(
        schedule=None,
        source=Files("/in/*.json"),
        consumers=[Consumer(name="a", function="m:f", own_dag=True)],
    )
    assert all(task.keyed for task in by_hand.tasks)
    assert not any(task.keyed for task in orders(schedule=None, source=Files("/in/*.json")).tasks)


@pytest.mark.parametrize(
    "wrong, said",
    [
        ({"keys": "id", "delta": "at"}, r"give a list: keys=\['id'\]"),
        ({"keys": ["at"], "delta": "at"}, "is also a key"),
        ({"keys": ["id"], "delta": "at", "file_format": "csv"}, "use one of parquet, orc"),
    ],
)
def test_a_table_that_cannot_be_is_refused_when_the_dag_is_read(
    wrong: dict[str, Any], said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        CreateTable(**wrong)


def test_an_argument_that_nothing_takes_is_an_error() -> None:
    with pytest.raises(TypeError, match="on_bad_row"):
        orders(on_bad_row="fail")


def test_retries_pool_deadline_and_spark_settings_reach_every_task() -> None:
    dag = orders(
        retries=5,
        retry_delay=timedelta(seconds=7),
        pool="spark",
        spark={"executor_memory": "2g"},
        deadline=timedelta(hours=1),
    )
    for task in dag.tasks:
        assert (task.retries, task.retry_delay, task.pool, task._executor_memory) == (
            5,
            timedelta(seconds=7),
            "spark",
            "2g",
        )
    assert dag.deadline is not None
    DagSerialization.to_dict(dag)


def test_a_group_has_the_pipeline_s_tasks_and_its_asset() -> None:
    with DAG("own", schedule=None, start_date=START) as dag:
        group = OpalTaskGroup(
            "users",
            table="shop.users",
            source=FILES,
            consumers=[Consumer(name="mail", function="m:f")],
            tooltip="users",
        )
    assert wires(dag) == {
        "users.ingest": {"users.metagen"},
        "users.metagen": {"users.mail"},
        "users.mail": set(),
    }
    assert group.asset == opal_asset("shop.users")
    assert group.consumers["mail"].consumer == "own.users.mail"
    with (
        pytest.raises(ValueError, match="own_dag=True, which only opal_dag supports"),
        DAG("own", schedule=None, start_date=START),
    ):
        OpalTaskGroup(
            "users",
            table="shop.users",
            source=FILES,
            consumers=[Consumer(name="mail", function="m:f", own_dag=True)],
        )


def test_consumers_of_their_own_come_with_a_dag_that_tells_them_again() -> None:
    dag = reconcile_dag(
        "again",
        table="shop.orders",
        consumers={"a": "partition", "b": "version", "c": "version"},
        start_date=START,
    )
    report = dag.task_dict["report"]
    assert (report.trigger_rule, report.upstream_task_ids) == ("all_done", {"a", "b", "c"})
    assert {task.task_id: task.by for task in dag.tasks if task is not report} == {
        "a": "partition",
        "b": "version",
        "c": "version",
    }
    assert [asset.uri for asset in dag.task_dict["b"].outlets] == [
        "opal://opal_default/shop.orders/told/b"
    ]
    heard = repr(consumer_schedule("shop.orders", consumer="b", by="version").asset_condition)
    assert "opal://opal_default/shop.orders/told/b" in heard
    with pytest.raises(ValueError, match="instead of 'partition' or 'version'"):
        reconcile_dag("again", table="shop.orders", consumers={"a": "day"}, start_date=START)


def made(**more: Any) -> dict[str, DAG]:
    """All DAGs that a pipeline comes with."""
    with registered() as dags_made:
        orders(**more)
    return {dag.dag_id: dag for dag in dags_made}


@pytest.mark.parametrize("schedule", ["@daily", None, opal_asset("shop.raw")])
@pytest.mark.parametrize("given", [True, {}, Maintenance()])
def test_maintenance_is_a_dag_beside_the_pipeline_with_a_schedule_and_no_keys_of_its_own(
    schedule: Any, given: Any
) -> None:
    dags = made(
        schedule=schedule, maintenance=given, consumers=[Consumer(name="a", function="m:f")]
    )
    assert set(dags) == {"orders", "orders.maintenance"}
    assert wires(dags["orders"]) == {"ingest": {"metagen"}, "metagen": {"a"}, "a": set()}
    dag = dags["orders.maintenance"]
    assert wires(dag) == {"maintain": set()}
    maintain: Any = dag.get_task("maintain")
    assert (maintain.table, maintain.arguments, maintain.outlets) == (
        "shop.orders",
        {"delete": True, "dry_run": False},
        [],
    )
    assert (dag.catchup, dag.max_active_runs, dag.start_date, dag.tags) == (
        False,
        1,
        START,
        {"opal"},
    )
    assert getattr(dag.timetable, "expression", None) == "0 0 * * *"
    assert not isinstance(dag.timetable, CronPartitionTimetable)
    DagSerialization.to_dict(dag)


@pytest.mark.parametrize("given", [Maintenance(schedule=None), {"schedule": None}])
def test_maintenance_by_hand_has_no_schedule(given: Any) -> None:
    assert isinstance(made(maintenance=given)["orders.maintenance"].timetable, NullTimetable)


@pytest.mark.parametrize("given", [None, False])
def test_without_maintenance_there_is_no_such_dag(given: Any) -> None:
    assert set(made(maintenance=given)) == {"orders"}


def test_maintenance_takes_what_all_tasks_of_the_pipeline_take() -> None:
    more = {
        "retries": 5,
        "pool": "spark",
        "spark": {"executor_memory": "2g"},
        "opal_conn_id": "other",
        "tags": ["shop"],
    }
    more |= {"is_paused_upon_creation": False, "catchup": True, "max_active_runs": 4}
    dag = made(maintenance={"schedule": "@weekly", "approve": True}, **more)["orders.maintenance"]
    for name in ("maintain", "list_old_files", "retain"):
        task: Any = dag.get_task(name)
        assert (task.retries, task.pool, task._executor_memory, task.opal_conn_id) == (
            5,
            "spark",
            "2g",
            "other",
        )
    assert (dag.tags, dag.is_paused_upon_creation, dag.catchup, dag.max_active_runs) == (
        {"shop"},
        False,
        False,
        1,
    )
    assert dag.get_task("approve").pool == "default_pool"


def test_with_approve_nothing_is_deleted_before_somebody_has_seen_the_list() -> None:
    dag = maintenance_dag(
        "maintain",
        table="shop.orders",
        start_date=START,
        maintenance=Maintenance(window="3d", approve=True),
    )
    assert wires(dag) == {
        "maintain": {"list_old_files"},
        "list_old_files": {"approve"},
        "approve": {"retain"},
        "retain": set(),
    }
    tasks: dict[str, Any] = dag.task_dict
    assert tasks["maintain"].arguments == {"window": "3d", "delete": False, "dry_run": False}
    assert (tasks["list_old_files"].arguments, tasks["retain"].arguments) == (
        {"window": "3d", "dry_run": True},
        {"window": "3d", "dry_run": False},
    )
    approve = tasks["approve"]
    assert isinstance(approve, RetentionApproval)
    assert (approve.listed_by, approve.response_timeout, approve.defaults) == (
        "list_old_files",
        timedelta(hours=20),
        ["Reject"],
    )
    DagSerialization.to_dict(dag)


def test_a_group_s_maintenance_is_a_dag_beside_that_of_the_group() -> None:
    with (
        registered() as dags_made,
        DAG(
            "own",
            schedule=keyed_schedule("@daily"),
            start_date=START,
            default_args={"retries": 4},
            tags=["t"],
        ),
    ):
        OpalTaskGroup("users", table="shop.users", source=FILES, maintenance={"zorder": ["id"]})
    dags = {dag.dag_id: dag for dag in dags_made}
    assert set(dags) == {"own", "own.users.maintenance"}
    assert wires(dags["own"]) == {"users.ingest": {"users.metagen"}, "users.metagen": set()}
    dag = dags["own.users.maintenance"]
    maintain: Any = dag.get_task("maintain")
    assert (maintain.arguments["zorder"], maintain.retries, dag.start_date, dag.tags) == (
        ["id"],
        4,
        START,
        {"t"},
    )


def test_the_spans_of_a_reconcile_are_arguments_of_its_pipeline() -> None:
    own = Consumer(name="own", function="m:f", own_dag=True)
    given = {"reconcile_look_back": "2d", "reconcile_grace": "5m", "reconcile_again": "6h"}
    for options, spans in (
        ({}, (timedelta(days=7), timedelta(minutes=30), timedelta(days=1))),
        (given, (timedelta(days=2), timedelta(minutes=5), timedelta(hours=6))),
    ):
        look: Any = made(consumers=[own], **options)["orders.reconcile"].get_task("orders.own")
        assert (look.look_back, look.grace, look.again) == spans
    shown = inspect.signature(opal_dag).parameters
    assert [shown[name].default for name in given] == ["7d", "30m", "1d"]
    with pytest.raises(
        ValueError, match=r"^reconcile_again='1 day' is not a duration; write it as"
    ):
        orders(reconcile_again="1 day")
    again: Any = reconcile_dag(
        "again", table="shop.orders", consumers={"a": "partition"}, start_date=START, again="6h"
    ).get_task("a")
    assert again.again == timedelta(hours=6)


def test_a_reconcile_that_looks_back_less_warns_of_shorter_spans_only(
    recwarn: pytest.WarningsRecorder,
) -> None:
    follow = Consumer(name="follow", function="m:f", by="version", own_dag=True)
    for window in ("2d", "1d"):
        orders(consumers=[follow], maintenance={"window": window}, reconcile_look_back="36h")
    [message] = [
        str(warning.message) for warning in recwarn if warning.category is ShortSpanWarning
    ]
    assert message.startswith(
        "orders: maintenance: window: 1d is shorter than the look-back of a reconcile, 36h"
    )


def test_maintenance_that_takes_away_what_consumers_may_have_missed_is_warned_of(
    recwarn: pytest.WarningsRecorder,
) -> None:
    follow = Consumer(name="follow", function="m:f", by="version", own_dag=True)
    orders(consumers=[follow], maintenance={"window": timedelta(days=2), "look_back": "12h"})
    messages = [str(warning.message) for warning in recwarn if warning.category is ShortSpanWarning]
    assert [
        text.partition(" is shorter than the look-back of a reconcile, 7d")[0] for text in messages
    ] == [
        "orders: maintenance: window: 2d",
        "orders: maintenance: look_back: 12h",
    ]
    assert {warning.filename for warning in recwarn if warning.category is ShortSpanWarning} == {
        __file__
    }
    recwarn.clear()
    for maintenance in (
        True,
        {"window": "1w"},
        {"window": "7d", "look_back": 1000},
        {"window": "{{ var.value.window }}"},
    ):
        orders(consumers=[follow], maintenance=maintenance)
    orders(consumers=[follow], maintenance={"window": "2d"}, reconcile=None)
    orders(maintenance={"window": "2d"})
    assert not [warning for warning in recwarn if warning.category is ShortSpanWarning]


def test_a_pipeline_takes_the_arguments_of_an_ingest_and_no_others() -> None:
    shown = inspect.signature(pipeline_of).parameters
    assert IngestRules.fields().keys() <= shown.keys()
    made = pipeline_of(table="shop.t", source="/in/*.csv", on_new_columns="add")
    assert (made.ingest["on_new_columns"], made.ingest["metadata"]) == ("add", "batch")
    with pytest.raises(TypeError, match="unexpected keyword argument 'on_new_column'"):
        pipeline_of(table="shop.t", source="/in/*.csv", on_new_column="add")
