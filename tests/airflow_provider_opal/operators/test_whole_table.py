"""The operators that maintain a table need neither a key nor a commit.

Wrong arguments are refused when the DAG is read.
"""

import json
import time
from datetime import datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException
from airflow.sdk.execution_time.context import OutletEventAccessors
from airflow.serialization.serialized_objects import DagSerialization

from airflow_provider_opal import (
    CompactionOperator,
    Files,
    MaintenanceOperator,
    RestoreOperator,
    RetentionOperator,
    ZOrderOperator,
    keyed_schedule,
    opal_dag,
)
from airflow_provider_opal.operators.reconcile import ReconcileOperator
from airflow_provider_opal.operators.spark import app_path, token_of
from airflow_provider_opal.operators.whole_table import WholeTableOperator
from airflow_provider_opal.templates.approval import RetentionApproval, listing
from opal_lake.arguments.values import span_text
from opal_lake.clock import ManualClock
from opal_lake.definition.table_spec import TableLayout, plan_spec
from opal_lake.engine.results import RESULT_KEPT_APART, keep_result
from opal_lake.errors import OpalError
from opal_lake.operations import operation_named
from opal_lake.operations.job_spec import JobSpec
from opal_lake.result import JobResult
from opal_lake.storage.open import open_storage
from opal_lake.table import Table, create_on
from tests.airflow_provider_opal.stand_ins import Commands, commands, context
from tests.kit.clocks import past_store
from tests.opal_lake.compacting import compact
from tests.opal_lake.shop import SCHEMA, create, rows

__all__ = ["commands"]

KINDS = (CompactionOperator, ZOrderOperator, RetentionOperator, MaintenanceOperator)


@pytest.fixture(autouse=True)
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(
        "AIRFLOW_CONN_OPAL_DEFAULT",
        json.dumps({"conn_type": "opal", "host": str(tmp_path / "lake")}),
    )
    monkeypatch.setenv(
        "AIRFLOW_CONN_SPARK_DEFAULT", json.dumps({"conn_type": "spark", "host": "local[2]"})
    )
    create(open_storage(str(tmp_path / "lake" / "t")))
    return tmp_path / "lake"


def made(kind: type[WholeTableOperator], **given: Any) -> Any:
    needed = {"columns": ["price"]} if kind is ZOrderOperator else {}
    return kind(**{"task_id": "t", "table": "t", **needed, **given})


@pytest.mark.slow_but_one
@pytest.mark.parametrize(
    "kind, given, expected",
    [
        (CompactionOperator, {"only_if_due": False}, {"mode": "minor", "only_if_due": False}),
        (
            CompactionOperator,
            {"mode": "major", "look_back": "30d", "target_mb": None, "only_if_due": False},
            {"mode": "major", "look_back": "30d", "only_if_due": False},
        ),
        (
            CompactionOperator,
            {"mode": "major", "look_back": 5},
            {"mode": "major", "look_back": 5, "only_if_due": True},
        ),
        (CompactionOperator, {}, {"mode": "minor", "only_if_due": True}),
        (
            CompactionOperator,
            {"mode": "major", "look_back": "2w"},
            {"mode": "major", "look_back": "2w", "only_if_due": True},
        ),
        (
            CompactionOperator,
            {"archive_after": timedelta(weeks=52), "archive_codec": "zstd:22"},
            {
                "mode": "minor",
                "archive_after": "364d",
                "archive_codec": "zstd:22",
                "only_if_due": True,
            },
        ),
        (
            CompactionOperator,
            {"archive_after": 5},
            {"mode": "minor", "archive_after": 5, "only_if_due": True},
        ),
        (
            ZOrderOperator,
            {"columns": ("sku", "price")},
            {"columns": ["sku", "price"], "only_if_due": True},
        ),
        (RetentionOperator, {}, {"dry_run": False}),
        (
            RetentionOperator,
            {"window": timedelta(days=7), "grace": "1d"},
            {"window": "7d", "grace": "1d", "dry_run": False},
        ),
        (MaintenanceOperator, {}, {"delete": True, "dry_run": False}),
        (
            MaintenanceOperator,
            {
                "zorder": ["price"],
                "window": "1h30m",
                "look_back": "90d",
                "target_mb": 64,
                "small_files": 8,
                "dead_share": 20,
            }
            | {
                "unclustered_share": 0.5,
                "archive_after": "365d",
                "archive_codec": "zstd:19",
                "delete": False,
            },
            {
                "zorder": ["price"],
                "window": "1h30m",
                "look_back": "90d",
                "target_mb": 64,
                "small_files": 8,
                "dead_share": 20,
            }
            | {
                "unclustered_share": 50,
                "archive_after": "365d",
                "archive_codec": "zstd:19",
                "delete": False,
                "dry_run": False,
            },
        ),
    ],
)
def test_the_job_that_is_submitted_says_what_was_given_and_no_more(
    kind: type[WholeTableOperator],
    given: dict[str, Any],
    expected: dict[str, Any],
    commands: Commands,
) -> None:
    commands.spark_submit(works=True)
    task = made(kind, **given)
    result = task.execute(context(task))
    argv = commands.notes()[0]["argv"]
    spec = JobSpec.from_json(argv[argv.index("--spec") + 1])
    assert (spec.operation, spec.token) == (
        operation_named(task.operation).of(expected),
        "d/r/t/-1/0",
    )
    assert task.arguments == expected
    assert task.operation == kind.operation
    assert argv[argv.index("--spec") - 1].endswith("opal_spark/submit/app.py")
    assert (result["counts"], result["version"]) == ({"files": 3}, None)


@pytest.mark.parametrize("kind", KINDS)
def test_a_result_without_a_commit_is_found_first_and_nothing_is_submitted_again(
    kind: type[WholeTableOperator], commands: Commands, lake: Path
) -> None:
    commands.spark_submit(works=True)
    assert kind.operation in RESULT_KEPT_APART
    task = made(kind)
    done = JobResult(
        operation=task.operation,
        table=str(lake / "t"),
        token=token_of(context(task)),
        notes=("done before",),
    )
    keep_result(open_storage(str(lake / "t")), done)
    result = task.execute(context(task))
    assert (result["repeated"], result["notes"]) == (True, ["done before"])
    assert not commands.notes()
    assert task.execute(context(task, clears=1))["notes"] == []
    assert len(commands.notes()) == 1, "a clear really runs again"


@pytest.mark.parametrize("kind", KINDS)
def test_they_wake_nobody_and_run_with_or_without_a_partition_key(
    kind: type[WholeTableOperator],
) -> None:
    with DAG("keyed", schedule=keyed_schedule("@daily")) as dag:
        task = made(kind)
    assert task.outlets == []
    for key in (None, "2026-11-01"):
        task.render_template_fields({"partition_key": key, "dag": dag, "task": task})
    DagSerialization.to_dict(dag)


@pytest.mark.parametrize(
    "kind, given, said",
    [
        (CompactionOperator, {"mode": "middle"}, "use one of minor, major"),
        (CompactionOperator, {"look_back": "30d"}, "add mode='major'"),
        (
            CompactionOperator,
            {"mode": "major"},
            "needs look_back, the span that stays readable; add look_back='90d'",
        ),
        (
            CompactionOperator,
            {"mode": "major", "look_back": "30 days"},
            "look_back='30 days' is not a duration; write it as '12h', '30d'",
        ),
        (CompactionOperator, {"mode": "major", "look_back": -1}, "is negative"),
        (
            CompactionOperator,
            {"target_mb": 0},
            "target_mb must be a whole number of megabytes from 1 to 1048576, got 0",
        ),
        (
            ZOrderOperator,
            {"columns": "customer_id"},
            r"columns='customer_id' is not a list of columns; write columns=\['customer_id'",
        ),
        (ZOrderOperator, {"columns": 5}, "columns=5 is not a list of columns"),
        (ZOrderOperator, {"columns": []}, "columns has 0 columns; give 1 to 8"),
        (ZOrderOperator, {"columns": list("abcdefghi")}, "columns has 9 columns; give 1 to 8"),
        (ZOrderOperator, {"columns": ["a", "b", "a"]}, "names a twice"),
        (RetentionOperator, {"window": "30"}, "window='30' is not a duration"),
        (RetentionOperator, {"window": 30}, "window=30 is not a duration"),
        (RetentionOperator, {"grace": timedelta(days=-1)}, "is not a duration"),
        (
            MaintenanceOperator,
            {"dead_share": 1.5},
            "dead_share=1.5 is not a percentage; write a whole number from 1 to 100",
        ),
        (MaintenanceOperator, {"zorder": "a"}, r"write zorder=\['customer_id'"),
        (MaintenanceOperator, {"archive_after": "1y"}, "archive_after='1y' is not a duration"),
        (
            CompactionOperator,
            {"archive_codec": "zstd:19"},
            "has no effect without archive_after; add archive_after='365d'",
        ),
        (
            CompactionOperator,
            {"archive_after": "1d", "archive_codec": "gzip"},
            "archive_codec='gzip' is not a codec",
        ),
        (
            ReconcileOperator,
            {"consumer": "c", "look_back": "a week"},
            "look_back='a week' is not a duration",
        ),
        (
            RetentionApproval,
            {"listed_by": "x", "answer_within": "20"},
            "answer_within='20' is not a duration",
        ),
        (
            MaintenanceOperator,
            {"archive_codec": "gzip"},
            "archive_codec='gzip' is not a codec; write 'zstd:1' to 'zstd:22'",
        ),
        (
            MaintenanceOperator,
            {"small_files": 2.5},
            "small_files must be a whole number of at least 1, got 2.5",
        ),
    ],
)
def test_impossible_arguments_are_refused_when_the_dag_is_parsed(
    kind: type[Any], given: dict[str, Any], said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        made(kind, **given)


@pytest.mark.parametrize(
    "given, text",
    [
        ("2w", "2w"),
        ("1h30m", "1h30m"),
        (timedelta(hours=36), "36h"),
        (timedelta(minutes=90), "90m"),
        (timedelta(0), "0d"),
    ],
)
def test_a_duration_is_shown_as_it_was_written_or_in_one_unit(
    given: str | timedelta, text: str
) -> None:
    assert span_text("window", given) == text


def test_airflow_s_own_spans_are_written_alike() -> None:
    operator = ReconcileOperator(
        task_id="t",
        table="t",
        consumer="c",
        look_back="2w",
        grace="1h30m",
        again=timedelta(hours=1),
    )
    assert (operator.look_back, operator.grace, operator.again) == (
        timedelta(days=14),
        timedelta(minutes=90),
        timedelta(hours=1),
    )
    assert RetentionApproval(
        task_id="a", table="t", listed_by="x", answer_within="1h30m"
    ).response_timeout == timedelta(minutes=90)
    dag = opal_dag(
        "orders",
        table="t",
        source=Files("/in"),
        schedule=None,
        start_date=datetime(2026, 11, 1),
        deadline="1h30m",
        reconcile_grace="2h",
    )
    assert dag.deadline is not None


def test_a_duration_may_be_a_template() -> None:
    task = made(RetentionOperator, window="{{ var.value.window }}")
    assert task.arguments["window"] == "{{ var.value.window }}"


def old_table(root: Path) -> Table:
    """Ten days old, with four small files that are one since."""
    clock = ManualClock(at_us=time.time_ns() // 1000 - 10 * 86_400_000_000)
    layout = TableLayout(keys=["sku"], delta="at", deletes="price IS NULL")
    table = create_on(past_store(str(root / "old"), clock), plan_spec(SCHEMA, layout), clock)
    for number in range(4):
        table.ingest(*rows([(f"sku {number}", number, 1)]))
        table.metagen()
    clock.at_us += 86_400_000_000
    compact(table)
    table.ingest(*rows([("new", 9, 1)]))
    table.metagen()
    return table


def test_a_dry_run_of_retention_needs_no_spark_deletes_nothing_and_lists_what_it_would_delete(
    commands: Commands, lake: Path
) -> None:
    commands.spark_submit()
    table = old_table(lake)
    files = list(table.storage.list(""))
    task = RetentionOperator(task_id="list_old_files", table="old", window="1d", dry_run=True)
    result = task.execute(context(task))
    assert (result["operation"], result["version"], commands.notes()) == ("retain", None, [])
    assert list(table.storage.list("")) == files
    assert result["counts"]["versions"] == table.snapshot_at().version, (
        "all but the newest are older than a day"
    )
    data_files = [file for file in result["examples"] if file["path"].startswith("data/")]
    assert len(data_files) == 4
    assert f"| `{result['examples'][0]['path']}` |" in "\n".join(listing(result))


def test_a_dry_run_of_maintenance_says_what_is_due_and_why(commands: Commands, lake: Path) -> None:
    commands.spark_submit()
    old_table(lake)
    task = MaintenanceOperator(
        task_id="m", table="old", small_files=1, zorder=["price"], window="1d", dry_run=True
    )
    result = task.execute(context(task))
    assert (result["counts"], commands.notes()) == ({"due": 3}, [])
    assert [note.partition(":")[0] for note in result["notes"]] == [
        "compact is due",
        "zorder is due",
        "retain is due",
    ]
    quiet = MaintenanceOperator(task_id="m", table="old", dry_run=True, delete=False)
    assert quiet.execute(context(quiet))["notes"] == ["nothing is due"]


def test_a_dry_run_of_a_restore_counts_changes_and_triggers_no_consumer(
    commands: Commands, lake: Path
) -> None:
    commands.spark_submit()
    table = create(open_storage(str(lake / "twice")))
    for price in (1, 2):
        table.ingest(*rows([("ax", price, price)]), metadata="inline")
    task = RestoreOperator(
        task_id="would_change", table="twice", version="{{ params.version }}", dry_run=True
    )
    task.arguments["version"] = "1"  # as rendered
    result = task.execute(context(task))
    assert (result["version"], result["counts"], commands.notes()) == (
        None,
        {"rows_restored": 1, "rows_removed": 1},
        [],
    )
    assert (task.outlets, table.snapshot_at().version) == ([], 2)


def test_a_restore_triggers_the_consumers_of_its_table() -> None:
    task = RestoreOperator(task_id="restore", table="shop.users", savepoint="good")
    assert [asset.uri for asset in task.outlets] == [
        "opal://opal_default/shop.users",
        "opal://opal_default/shop.users/versions",
    ]
    assert task.arguments == {"savepoint": "good", "business_snapshots": False, "dry_run": False}


@pytest.mark.parametrize("version, changes", [(1, True), (2, False)])
def test_a_restore_emits_events_of_what_it_changed_and_none_where_nothing_had_to(
    version: int, changes: bool, lake: Path
) -> None:
    table = create(open_storage(str(lake / "twice")))
    for price in (1, 2):
        table.ingest(*rows([("ax", price, price)]), metadata="inline")
    task = RestoreOperator(task_id="restore", table="twice", version=version)
    at = {**context(task), "outlet_events": OutletEventAccessors()}
    # As the application does, whose result the task then finds
    table.restore(version=version, token=token_of(at))
    returned = task.execute(at)
    emitted = {asset.uri: at["outlet_events"][asset].extra for asset in task.outlets}
    expected = {"version": 3, "counts": {"rows_restored": 1, "rows_removed": 1}}
    assert returned["version"] == (3 if changes else None)
    assert emitted == (
        dict.fromkeys(("opal://opal_default/twice", "opal://opal_default/twice/versions"), expected)
        if changes
        else {}
    )


def test_a_restore_needs_exactly_one_way_to_name_the_version() -> None:
    for given in ({}, {"version": 1, "savepoint": "good"}):
        with pytest.raises(
            ValueError, match="restore needs one of version, timestamp and savepoint"
        ):
            RestoreOperator(task_id="restore", table="shop.users", **given)  # type: ignore[arg-type]  # wrong on purpose


@pytest.mark.parametrize(
    "task",
    [
        RetentionOperator(task_id="t", table="nowhere", dry_run=True),
        MaintenanceOperator(task_id="t", table="t", zorder=["colour"], dry_run=True),
    ],
)
def test_a_dry_run_that_cannot_be_fails_at_once(task: WholeTableOperator) -> None:
    with pytest.raises(AirflowFailException, match=r"nowhere|colour"):
        task.execute(context(task))


@pytest.mark.parametrize(
    "task",
    [
        CompactionOperator(task_id="t", table="nowhere"),
        RetentionOperator(task_id="t", table="nowhere"),
        ZOrderOperator(task_id="t", table="t", columns=["colour"]),
        ZOrderOperator(task_id="t", table="t", columns=["place"]),
        MaintenanceOperator(task_id="t", table="t", zorder=["colour"]),
        MaintenanceOperator(task_id="t", table="t", zorder=["price", "place"]),
    ],
    ids=lambda task: f"{task.operation} {task.table} {next(iter(task.arguments.values()))}",
)
def test_a_table_or_a_column_that_does_not_fit_fails_before_spark_starts(
    task: WholeTableOperator, commands: Commands, lake: Path
) -> None:
    commands.spark_submit(works=True)
    struct = pa.struct([("street", pa.string())])
    Table.open(str(lake / "t")).add_columns({"place": struct})
    spec = task.job(context(task))
    with pytest.raises(OpalError) as of_job:
        spec.job.run(Table.open(spec.table))
    with pytest.raises(AirflowFailException) as refused:
        task.execute(context(task))
    assert f"opal: {of_job.value}" in str(refused.value).splitlines()
    assert commands.notes() == []


@pytest.mark.parametrize("kind", KINDS)
def test_every_operation_has_its_app(kind: type[WholeTableOperator]) -> None:
    assert Path(app_path()).is_file()


def test_maintenance_of_a_table_that_is_not_there_yet_is_skipped(commands: Commands) -> None:
    commands.spark_submit()
    task = MaintenanceOperator(task_id="m", table="not.yet")
    with pytest.raises(AirflowSkipException, match=r"not\.yet does not exist yet"):
        task.execute(context(task))
    assert not commands.notes()


def test_default_args_reach_them_as_any_task() -> None:
    given = {"retries": 7, "spark_conn_id": "prod", "opal_conn_id": "other"}
    with DAG("own", schedule=None, default_args=given) as dag:
        for kind in KINDS:
            made(kind, task_id=kind.operation)
    assert {(task.retries, task.spark_conn_id, task.opal_conn_id) for task in dag.tasks} == {
        (7, "prod", "other")
    }


def approval(dry_run: JobResult | None) -> Any:
    """Return an approval, and a context with the result of the dry run before it."""
    task = RetentionApproval(task_id="approve", table="shop.orders", listed_by="list_old_files")
    results = {"list_old_files": None if dry_run is None else json.loads(dry_run.to_json())}
    return task, {"ti": SimpleNamespace(xcom_pull=lambda task_ids: results[task_ids])}


@pytest.mark.parametrize(
    "dry_run",
    [
        None,
        JobResult(operation="retain", table="/lake/t", notes=("the readable versions are 0 to 3",)),
    ],
)
def test_the_approval_is_skipped_if_there_is_nothing_to_delete(dry_run: JobResult | None) -> None:
    task, given = approval(dry_run)
    with pytest.raises(AirflowSkipException, match="nothing to delete"):
        task.execute(given)


def test_the_approval_shows_the_counts_and_the_first_files() -> None:
    examples = [
        {"path": f"data/{number}.parquet", "size": 2_000 - number, "why": "no version needs it"}
        for number in range(30)
    ]
    counts = {"versions": 4, "data_files": 30, "bytes": 59_565, "abandoned": 0}
    body = list(
        listing(
            JobResult(
                operation="retain",
                table="/lake/t",
                counts=counts,
                examples=examples,
                notes=("a dry run",),
            ).to_dict()
        )
    )
    assert body[:6] == [
        "`/lake/t`",
        "",
        "- versions: 4",
        "- data files: 30",
        "- bytes: 59,565",
        "- a dry run",
    ]
    assert body[9] == "| `data/0.parquet` | 2,000 | no version needs it |"
    assert len(body) == 9 + 20
