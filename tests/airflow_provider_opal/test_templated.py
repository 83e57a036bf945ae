"""Arguments that a run fills in: templates, outputs, and mapped arguments."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import DAG, task
from airflow.sdk.definitions.mappedoperator import MappedOperator
from airflow.sdk.exceptions import AirflowFailException
from airflow.serialization.serialized_objects import DagSerialization

from airflow_provider_opal import (
    CompactionOperator,
    ConsumeOperator,
    Files,
    IngestOperator,
    Jdbc,
    MaintenanceOperator,
    MetaGenOperator,
    OpalTaskGroup,
    RetentionOperator,
    SnapshotTriggerSensor,
    ZOrderOperator,
    opal_asset,
)
from opal_lake.storage.open import open_storage
from tests.airflow_provider_opal.stand_ins import Commands, commands, context
from tests.opal_lake.shop import create

__all__ = ["commands"]

TABLE = "{{ params.table }}"
PARAMS = {
    "table": "shop.orders",
    "conn": "opal_default",
    "mb": 64,
    "mode": "major",
    "format": "json",
    "function": "m:f",
    "url": "jdbc:x://h/d",
    "yes": True,
    "no": False,
}
ALL = (
    (IngestOperator, {"source": "/in"}),
    (MetaGenOperator, {}),
    (ConsumeOperator, {"function": "m:f"}),
    (CompactionOperator, {}),
    (ZOrderOperator, {"columns": ["a"]}),
    (RetentionOperator, {}),
    (MaintenanceOperator, {}),
    (SnapshotTriggerSensor, {}),
)


@pytest.fixture(autouse=True)
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(
        "AIRFLOW_CONN_OPAL_DEFAULT", json.dumps({"conn_type": "opal", "host": str(tmp_path)})
    )
    return tmp_path


def rendered(made: Any) -> Any:
    """Return a task as a run with PARAMS renders it."""
    made.render_template_fields(
        {**context(made), "params": PARAMS, "dag": SimpleNamespace(dag_id="d"), "task": made}
    )
    return made


@pytest.mark.parametrize("kind, needed", ALL)
def test_a_table_and_a_connection_may_be_templates(kind: Any, needed: dict[str, Any]) -> None:
    with DAG("d", schedule=None, params=PARAMS) as dag:
        made = kind(task_id="t", table=TABLE, opal_conn_id="{{ params.conn }}", **needed)
    DagSerialization.deserialize_dag(DagSerialization.serialize_dag(dag))
    assert (made.outlets, made.inlets) == ([], [])
    done = rendered(made)
    assert (done.table, done.opal_conn_id) == ("shop.orders", "opal_default")
    if kind in (ConsumeOperator, SnapshotTriggerSensor):
        assert done.asset == opal_asset("shop.orders")


def test_an_asset_s_table_may_not_be_one_and_the_error_says_the_way_out() -> None:
    with pytest.raises(
        ValueError,
        match="is a template, but its asset must be known before a run: "
        "write the table's name here",
    ):
        opal_asset(TABLE)


def test_a_group_s_table_may_be_one() -> None:
    with DAG("d", schedule=None, params=PARAMS) as dag:
        group = OpalTaskGroup(
            "g", table=TABLE, source="/in/*.json", create={"keys": ["id"], "delta": "at"}
        )
    DagSerialization.deserialize_dag(DagSerialization.serialize_dag(dag))
    assert group.asset is None
    assert rendered(group.visible).table == "shop.orders"


def job_of(made: Any) -> Any:
    done = rendered(made)
    return {
        name: value
        for name, value in vars(done.job(context(done)).operation).items()
        if value is not None
    }


def executed(made: Any) -> Any:
    return rendered(made).execute(context(made))


def test_a_rendered_template_is_checked_like_other_arguments() -> None:
    made = CompactionOperator(
        task_id="c",
        table="t",
        mode="{{ params.mode }}",
        look_back="{{ 30 }}d",
        target_mb="{{ params.mb }}",
    )
    assert job_of(made) == {
        "mode": "major",
        "look_back": "30d",
        "target_mb": 64,
        "only_if_due": True,
    }
    with pytest.raises(AirflowFailException, match="mode='64' is unknown"):
        job_of(CompactionOperator(task_id="c", table="t", mode="{{ params.mb }}"))
    with pytest.raises(AirflowFailException, match="target_mb must be a whole number of megabytes"):
        job_of(CompactionOperator(task_id="c", table="t", target_mb="{{ params.mode }}"))
    policy: Any = {
        "zorder": ["{{ params.mode }}"],
        "dead_share": "{{ params.mb }}",
        "window": "{{ params.mb }}d",
        "look_back": "{{ 90 }}",
    }
    made = MaintenanceOperator(task_id="m", table="t", **policy)
    assert job_of(made) == {
        "zorder": ["major"],
        "dead_share": 64,
        "window": "64d",
        "look_back": 90,
        "delete": True,
        "dry_run": False,
    }
    consume = ConsumeOperator(task_id="c", table="t", function="{{ params.function }}")
    consume.arguments["after"] = 1  # as its run gives it
    assert job_of(consume)["function"] == "m:f"
    with pytest.raises(AirflowFailException, match="function='major' does not name a function"):
        job_of(ConsumeOperator(task_id="c", table="t", function="{{ params.mode }}"))


@pytest.mark.parametrize(
    "template, due",
    [
        ("{{ params.yes }}", True),
        ("{{ params.no }}", False),
        ("{{ 'true' }}", True),
        ("{{ 'FALSE' }}", False),
    ],
)
def test_a_truth_value_may_be_a_template(template: Any, due: bool) -> None:
    for kind, needed in ((CompactionOperator, {}), (ZOrderOperator, {"columns": ["a"]})):
        assert (
            job_of(kind(task_id="t", table="t", only_if_due=template, **needed))["only_if_due"]
            is due
        )  # type: ignore[operator]
    made = MaintenanceOperator(task_id="t", table="t", delete=template, dry_run=template)
    assert (job_of(made)["delete"], job_of(made)["dry_run"]) == (due, due)


@pytest.mark.parametrize("template", ["{{ params.mode }}", "{{ 1 }}", "{{ none }}", "{{ '' }}"])
def test_a_template_that_is_no_truth_value_is_refused(template: Any) -> None:
    with pytest.raises(
        AirflowFailException, match=r"only_if_due='.*' is a text, neither true nor false"
    ):
        job_of(CompactionOperator(task_id="t", table="t", only_if_due=template))
    with pytest.raises(
        AirflowFailException, match=r"dry_run='.*' is a text, neither true nor false"
    ):
        executed(RetentionOperator(task_id="t", table="t", dry_run=template))


def test_a_text_in_the_place_of_a_truth_value_is_refused_when_the_dag_is_read() -> None:
    wrong: Any = "False"
    with pytest.raises(ValueError, match="dry_run='False' is a text, neither true nor false"):
        RetentionOperator(task_id="t", table="t", dry_run=wrong)


@pytest.mark.parametrize(
    "template, submits", [("{{ params.yes }}", False), ("{{ params.no }}", True)]
)
@pytest.mark.parametrize("kind", [RetentionOperator, MaintenanceOperator])
def test_a_template_decides_whether_a_run_is_a_dry_one(
    kind: Any,
    template: str,
    submits: bool,
    commands: Commands,
    lake: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(
        "AIRFLOW_CONN_SPARK_DEFAULT", json.dumps({"conn_type": "spark", "host": "local[2]"})
    )
    create(open_storage(str(lake / "t")))
    commands.spark_submit(works=True)
    executed(kind(task_id="t", table="t", dry_run=template))
    assert bool(commands.notes()) is submits


@pytest.mark.parametrize(
    "source, job",
    [
        (
            Files("/in/{{ params.table }}", format="{{ params.format }}"),
            {"files": {"paths": ["/in/shop.orders"], "format": "json"}},
        ),
        (
            Jdbc(url="{{ params.url }}", table=TABLE),
            {"jdbc": {"url": "jdbc:x://h/d", "table": "shop.orders"}},
        ),
        ("/in/{{ params.table }}/*.json", {"files": {"paths": ["/in/shop.orders/*.json"]}}),
        (["/a/{{ params.mb }}", "/b"], {"files": {"paths": ["/a/64", "/b"]}}),
        ({"files": "/in/{{ params.mb }}"}, {"files": {"paths": ["/in/64"]}}),
    ],
)
def test_every_field_of_a_source_may_be_a_template(source: Any, job: dict[str, Any]) -> None:
    threshold, reject = "{{ params.mb }}", "{{ 'quarantine' }}"
    more: dict[str, Any] = {
        "metadata": "{{ 'inline' }}",
        "business_snapshot": "2022-07-{{ params.mb }}",
    }
    made = IngestOperator(
        task_id="i",
        table="t",
        source=source,
        on_bad_rows=reject,
        reject_threshold=threshold,
        **more,
    )
    arguments = job_of(made)
    assert arguments["business_snapshot"] == "2022-07-64"
    assert arguments["source"] == job
    assert (arguments["on_bad_rows"], arguments["reject_threshold"], arguments["metadata"]) == (
        "quarantine",
        "64",
        "inline",
    )


@pytest.mark.parametrize(
    "returned, job",
    [
        ("/in/a.json", {"files": {"paths": ["/in/a.json"]}}),
        (["/in/a.json", "/in/b.json"], {"files": {"paths": ["/in/a.json", "/in/b.json"]}}),
        (
            {"paths": ["/in/a"], "format": "csv", "options": {"sep": ";"}},
            {"files": {"paths": ["/in/a"], "format": "csv", "options": {"sep": ";"}}},
        ),
        ({"files": "/in/a.json"}, {"files": {"paths": ["/in/a.json"]}}),
        ({"url": "jdbc:x://h/d", "table": "t"}, {"jdbc": {"url": "jdbc:x://h/d", "table": "t"}}),
    ],
)
def test_a_source_may_be_what_a_task_returns(returned: Any, job: dict[str, Any]) -> None:
    with DAG("d", schedule=None) as dag:

        @task
        def source() -> Any:
            return returned

        made = IngestOperator(task_id="i", table="t", source=source())
    assert made.upstream_task_ids == {"source"}
    DagSerialization.deserialize_dag(DagSerialization.serialize_dag(dag))
    made.arguments["source"] = returned  # as Airflow resolves it
    assert made.job(context(made)).operation.source == job


@pytest.mark.parametrize(
    "returned, said",
    [
        (None, "source=None is not a source; write Files"),
        ({"path": "/in"}, "source 'path' is unknown"),
        ({"paths": ["/in"], "format": "xlsx"}, "format 'xlsx' is unknown"),
        ({"url": "jdbc:x://h/d?password=p4ss", "table": "t"}, "would end up in logs"),
        ([], "give a list of paths"),
    ],
)
def test_a_task_output_that_is_not_a_source_fails_without_a_retry(returned: Any, said: str) -> None:
    made = IngestOperator(task_id="i", table="t", source={"files": "/in"})
    made.arguments["source"] = returned
    with pytest.raises(AirflowFailException, match=said) as failed:
        made.job(context(made))
    assert "p4ss" not in str(failed.value)


def mapped() -> dict[str, MappedOperator]:
    """Return one operator of each kind, mapped over what it can be mapped over."""
    with DAG("d", schedule=None) as dag:

        @task
        def paths() -> list[str]:
            return ["/a/1.json", "/a/2.json"]

        asked = paths()
        tables = ["shop.a", "shop.b"]
        IngestOperator.partial(task_id="sources", table="shop.a").expand(
            source=[Files("/in/1.json"), "/in/2.json"]
        )
        IngestOperator.partial(task_id="returned", table="shop.a", metadata="inline").expand(
            source=asked
        )
        IngestOperator.partial(task_id="kwargs").expand_kwargs(
            [{"table": table, "source": f"/in/{table}.json"} for table in tables]
        )
        MetaGenOperator.partial(task_id="metagens", outlets=[opal_asset("other")]).expand(
            table=tables
        )
        MetaGenOperator.partial(task_id="one_table", table="shop.a").expand(
            partition_key=["a", "b"]
        )
        ConsumeOperator.partial(task_id="consumers", table="shop.a", by="version").expand(
            function=["m:f", "m:g"]
        )
        CompactionOperator.partial(task_id="compactions").expand(table=tables)
        ZOrderOperator.partial(task_id="zorders", columns=["a"]).expand(table=tables)
        RetentionOperator.partial(task_id="retentions").expand(table=tables)
        MaintenanceOperator.partial(task_id="maintenances").expand(table=tables)
        SnapshotTriggerSensor.partial(task_id="sensors", deferrable=False).expand(table=tables)
    DagSerialization.deserialize_dag(DagSerialization.serialize_dag(dag))
    return {made.task_id: made for made in dag.tasks if isinstance(made, MappedOperator)}


def test_operators_may_be_mapped_and_have_their_assets() -> None:
    a, versions, other = (
        opal_asset("shop.a"),
        opal_asset("shop.a", versions=True),
        opal_asset("other"),
    )
    result = mapped()
    assert {name: (made.inlets, made.outlets) for name, made in result.items()} == {
        **dict.fromkeys(result, ([], [])),
        "returned": ([], [a, versions]),
        "metagens": ([], [other]),
        "one_table": ([], [a, versions]),
        "consumers": ([a], []),
    }
    assert result["metagens"].unmap({"table": "shop.a", "outlets": [other]}).outlets == [
        a,
        versions,
        other,
    ]
    assert result["one_table"].unmap({"table": "shop.a", "outlets": [a, versions]}).outlets == [
        a,
        versions,
    ]
    assert result["sensors"].unmap({"table": "shop.a"}).inlets == [a]
    assert result["sources"].unmap({"table": "shop.a", "source": Files("/in/1.json")}).outlets == []
