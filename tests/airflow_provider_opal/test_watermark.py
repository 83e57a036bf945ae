"""Watermarks of consumers: ranges without a gap, and a ReconcileOperator's finds."""

import json
import shutil
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import DAG
from airflow.sdk.exceptions import (
    AirflowFailException,
    AirflowNotFoundException,
    AirflowSkipException,
)

from airflow_provider_opal import (
    ConsumeOperator,
    Files,
    IngestOperator,
    MetaGenOperator,
    ReconcileOperator,
    ReconcileReportOperator,
    SnapshotTriggerSensor,
)
from airflow_provider_opal.assets import version_key
from airflow_provider_opal.operators.consume import event_version_of
from airflow_provider_opal.operators.reconcile import CONFIRMED
from airflow_provider_opal.templates.pipeline import Consumer
from airflow_provider_opal.watermark import Watermark
from opal_lake.engine.results import keep_result
from opal_lake.result import JobResult
from opal_lake.storage.open import open_storage
from opal_lake.table import Table
from tests.airflow_provider_opal.build import (
    Lake,
    consume,
    done,
    event_of,
    put,
    reconcile,
    seen,
)
from tests.opal_lake.shop import create, rows


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Table:
    monkeypatch.setenv(
        "AIRFLOW_CONN_OPAL_DEFAULT", json.dumps({"conn_type": "opal", "host": str(tmp_path)})
    )
    return create(open_storage(str(tmp_path / "shop" / "users")))


def sensor(**more: Any) -> SnapshotTriggerSensor:
    return SnapshotTriggerSensor(task_id="s", table="shop.users", deferrable=False, **more)


def test_a_sensor_s_ranges_follow_on_from_each_other_and_a_run_keeps_its_own(table: Table) -> None:
    lake, task = Lake(), sensor(start="all")
    first = put(table, "a", 1)
    first_run = lake.run(task, "one")
    assert task.execute(first_run) == {"from": 0, "to": first}
    second = put(table, "b", 2)
    assert task.execute(first_run) == {"from": 0, "to": first}, "a cleared run gets what it had"
    assert task.execute(lake.run(task, "two")) == {"from": first, "to": second}
    assert not task.poke(lake.run(task, "three")).is_done


def test_a_new_sensor_starts_at_its_start(table: Table) -> None:
    first = put(table, "a", 1)
    for start, after in (("head", first), ("all", 0), (1, 1)):
        lake, task = Lake(), sensor(start=start)
        task.poke(lake.run(task))
        assert seen(lake, task, "d.s") == after
    with pytest.raises(ValueError, match="use 'head', 'all' or the number"):
        sensor(start="tail")


def test_a_consumer_by_version_acknowledges_what_it_has_done_and_no_more(table: Table) -> None:
    lake, task, first = Lake(), consume("version"), put(table, "a", 1)
    done(table, task, "one", first)
    context = lake.run(task, "one")
    assert task.execute(context)["version"] == first
    assert seen(lake, task, "d.c") == first
    assert context["task_state_store"]["opal_given"] == {"from": 0, "to": first}
    idle = consume("version").execute(lake.run(task, "two"))
    assert (idle["version"], idle["notes"]) == (first, [f"nothing new after version {first}"])
    second, failing = put(table, "b", 2), lake.run(task, "three")
    with pytest.raises(AirflowFailException, match=r"the Spark connection .+ does not exist"):
        consume("version", spark_conn_id="nowhere").execute(failing)
    assert seen(lake, task, "d.c") == first
    assert failing["task_state_store"]["opal_given"] == {"from": first, "to": second}


def test_an_unfinished_range_is_repeated_unchanged_before_newer_versions(
    table: Table,
) -> None:
    """Give (0, 2] again before (2, 4], so that nothing is counted twice."""
    lake, begun = Lake(), put(table, "a", 1)
    failing, two = lake.run(consume("version"), "one"), lake.run(consume("version"), "two")
    for _ in range(2):
        with pytest.raises(AirflowFailException, match=r"the Spark connection .+ does not exist"):
            consume("version", spark_conn_id="nowhere").execute(failing)
    newest = put(table, "b", 2)
    half_done = consume("version", spark_conn_id="nowhere")
    done(table, half_done, "two", begun)
    with pytest.raises(AirflowFailException, match=r"the Spark connection .+ does not exist"):
        half_done.execute(two)
    assert two["task_state_store"]["opal_given"] == {"from": 0, "begun": begun, "to": newest}
    assert {name: half_done.arguments[name] for name in ("after", "version")} == {
        "after": begun,
        "version": newest,
    }
    assert seen(lake, half_done, "d.c") == begun
    done(table, half_done, "two", newest)
    assert half_done.execute(two)["version"] == newest
    assert lake.assets[half_done.asset]["seen/d.c"] == {
        "table": table.snapshot_at().root.table_id,
        "version": newest,
    }
    done(table, half_done, "one", begun)
    assert half_done.execute(failing)["version"] == begun
    assert seen(lake, half_done, "d.c") == newest, "a cleared run changes nothing"


def test_a_range_that_has_expired_unfinished_goes_on_with_what_is_newer(table: Table) -> None:
    lake, first = Lake(), put(table, "a", 1)
    with pytest.raises(AirflowFailException, match=r"the Spark connection .+ does not exist"):
        consume("version", spark_conn_id="nowhere").execute(lake.run(consume("version"), "one"))
    newest = put(table, "b", 2)
    table.retain(window="0s", grace="0s")
    assert table.snapshot_at().root.oldest_version > first
    two, task = lake.run(consume("version"), "two"), consume("version")
    done(table, task, "two", newest)
    task.execute(two)
    assert two["task_state_store"]["opal_given"] == {"from": 0, "to": newest}


def test_changes_that_have_expired_unfinished_are_not_given_otherwise(table: Table) -> None:
    """Fail, since the function would repeat what it did for them."""
    lake, first = Lake(), put(table, "a", 1)
    task = consume("version", rows="changes", spark_conn_id="nowhere")
    with pytest.raises(AirflowFailException, match=r"the Spark connection .+ does not exist"):
        task.execute(lake.run(task, "one"))
    put(table, "b", 2)
    table.retain(window="0s", grace="0s")
    task = consume("version", rows="changes")
    with pytest.raises(
        AirflowFailException,
        match=f"the last run did not finish the changes up to version {first}, and this",
    ):
        task.execute(lake.run(task, "two"))


def test_a_mapped_consumer_by_version_needs_a_name(table: Table) -> None:
    """Refuse two functions of one name: the first would acknowledge the second's rows."""
    lake, first = Lake(), put(table, "a", 1)
    for name in (None, "one", "other"):
        task = consume("version", consumer=name)
        context = lake.run(task, f"run {name}")
        context["ti"].map_index = 0
        keep_result(
            table.storage,
            JobResult(
                operation="consume",
                table=table.uri,
                token=f"d/run {name}/c/0/0/{first}",
                version=first,
            ),
        )
        if name is None:
            with pytest.raises(
                AirflowFailException,
                match=r"'c' consumes by version and is mapped. "
                r"Give each consumer a name.*expand_kwargs",
            ):
                task.execute(context)
        else:
            assert task.execute(context)["version"] == seen(lake, task, name) == first


def test_a_consumer_by_partition_needs_a_key(table: Table) -> None:
    put(table, "a", 1)
    with pytest.raises(
        AirflowFailException,
        match=r"consumes by partition, and this run has no partition key.*--partition-key",
    ):
        consume("partition").execute(Lake().run(consume("partition")))


def test_a_consumer_by_partition_keeps_the_version_of_its_event(table: Table) -> None:
    """Whatever was ingested in the meantime: it gets the rows of that version."""
    lake, task = Lake(), consume("partition")
    first = put(table, "mon", 1)
    put(table, "mon", 2)
    done(table, task, "one", first)
    context = lake.run(task, "one", **event_of(first))
    assert task.execute(context)["version"] == first
    assert context["task_state_store"]["opal_given"] == {"version": first}
    assert lake.assets[task.asset]["consumed/d.c/mon"]["version"] == first


def test_a_cleared_consumer_gets_what_it_had_whatever_its_events_and_the_table_say_now(
    table: Table,
) -> None:
    lake = Lake()
    for at, by in enumerate(("partition", "version")):
        task, first = consume(by), put(table, "mon", 2 * at)
        context = lake.run(task, by, **event_of(first))
        done(table, task, by, first)
        task.execute(context)
        given = context["task_state_store"]["opal_given"]
        assert given == ({"version": first} if by == "partition" else {"from": 0, "to": first})
        later = put(table, "mon", 2 * at + 1)
        cleared = {**context, **event_of(later)}
        cleared["ti"].id, cleared["ti"].max_tries = 1, cleared["ti"].max_tries + 1
        asked = consume(by, spark_conn_id="nowhere")
        with pytest.raises(
            AirflowFailException, match=r"the Spark connection .+ does not exist"
        ):  # it is really submitted again
            asked.execute(cleared)
        assert cleared["task_state_store"]["opal_given"] == given
        assert {name: asked.arguments.get(name) for name in ("version", "after")} == {
            "version": first,
            "after": given.get("from"),
        }


def test_a_consumer_behind_a_metagen_keeps_the_version_of_that(table: Table) -> None:
    lake, first = Lake(), put(table, "mon", 1)
    put(table, "mon", 2)
    with DAG("d", schedule=None):
        task = consume("partition")
        MetaGenOperator(task_id="m", table="shop.users") >> task
    done(table, task, "one", first)
    context = lake.run(task, "one", partition_key="mon")
    context["ti"].xcom_pull = lambda task_ids: {"m": {"version": first}}[task_ids]
    task.execute(context)
    assert context["task_state_store"]["opal_given"] == {"version": first}


def test_a_key_that_was_consumed_meanwhile_is_not_consumed_again_for_a_repeated_event(
    table: Table,
) -> None:
    lake, task, first = Lake(), consume("partition"), put(table, "mon", 1)
    done(table, task, "one", first)
    task.execute(lake.run(task, "one", **event_of(first)))
    idle = consume("partition").execute(lake.run(task, "two", **event_of(first, again=True)))
    assert idle["notes"] == [f"partition key 'mon' was consumed meanwhile, as of version {first}"]
    done(table, task, "three", first)
    assert consume("partition").execute(lake.run(task, "three", **event_of(first)))["repeated"], (
        "a MetaGen's event counts, taken or not"
    )
    assert event_version_of({"triggering_asset_events": None}, task.asset.uri, "mon") == (
        None,
        False,
    )


def test_reconcile_finds_the_keys_that_were_not_taken_and_tells_of_them_once_a_day(
    table: Table,
) -> None:
    lake, task, look = Lake(), consume("partition"), reconcile()
    first, second = put(table, "mon", 1), put(table, "tue", 2)
    done(table, task, "one", first)
    task.execute(lake.run(task, "one", **event_of(first)))
    context = lake.run(look)
    assert look.execute(context) == {"tue": second}
    assert context["outlet_events"][look.emitted].keys == ["tue"]
    with pytest.raises(AirflowSkipException, match="has seen, or got runs for"):
        look.execute(lake.run(look))
    corrected = put(table, "mon", 3)
    assert look.execute(lake.run(look)) == {"mon": corrected}
    assert reconcile(again=timedelta(0), most=1).execute(lake.run(look)) == {"tue": second}, (
        "the oldest first"
    )
    assert reconcile(consumer="d.other").execute(lake.run(look)) == {
        "tue": second,
        "mon": corrected,
    }


def test_reconcile_finds_the_version_that_was_not_taken(table: Table) -> None:
    lake, look = Lake(), reconcile(by="version", look_back=timedelta(0))
    version = put(table, "mon", 1)
    assert look.execute(lake.run(look)) == {version_key(version): version}, "however long ago"
    lake.assets[look.inlets[0]]["seen/d.c"] = {
        "table": table.snapshot_at().root.table_id,
        "version": version,
    }
    with pytest.raises(AirflowSkipException):
        look.execute(lake.run(look))


def test_reconcile_leaves_alone_what_is_young_old_or_not_there_yet(
    table: Table, tmp_path: Path
) -> None:
    put(table, "mon", 1)
    for look in (
        reconcile(grace=timedelta(hours=1)),
        reconcile(look_back=timedelta(0)),
        reconcile(table="shop.none"),
    ):
        with pytest.raises(AirflowSkipException):
            look.execute(Lake().run(look))


@pytest.mark.parametrize("by", ["partition", "version"])
def test_a_paused_consumer_gets_its_event_from_the_first_reconcile_after_the_pause(
    table: Table, by: str
) -> None:
    version, lake, look = put(table, "mon", 1), Lake(), reconcile(by=by)
    key = "mon" if by == "partition" else version_key(version)
    lake.paused["d"] = True
    for _ in range(2):
        context = lake.run(look)
        with pytest.raises(AirflowSkipException, match=r"1 key \(.*\) of shop.users wait"):
            look.execute(context)
        assert context["outlet_events"] == {}
        assert "the DAG 'd' is paused" in lake.reports["k"]["line"]
    lake.paused["d"] = False
    assert look.execute(lake.run(look)) == {key: version}
    with pytest.raises(AirflowSkipException, match="has seen, or got runs for"):
        look.execute(lake.run(look))


def test_the_dag_of_a_consumer_may_have_another_name(table: Table) -> None:
    put(table, "mon", 1)
    lake, look = Lake(), reconcile(consumer="report", consumer_dag_id="reports")
    lake.paused["reports"] = True
    with pytest.raises(AirflowSkipException, match="the DAG 'reports' is paused"):
        look.execute(lake.run(look))


def test_an_event_of_which_no_run_came_is_emitted_again_by_the_next_reconcile(
    table: Table,
) -> None:
    first, lake, look = put(table, "mon", 1), Lake(), reconcile()
    lake.drops = True
    for _ in range(2):
        assert look.execute(lake.run(look)) == {"mon": first}
    lake.drops = False
    assert look.execute(lake.run(look)) == {"mon": first}
    for _ in range(2):
        with pytest.raises(AirflowSkipException, match="has seen, or got runs for"):
            look.execute(lake.run(look))
    notified = lake.assets[look.inlets[0]]["told/d.c"]
    assert (notified["mon"][0], notified["mon"][2]) == (first, CONFIRMED)
    lake.drops, second = True, put(table, "mon", 2)
    for _ in range(2):
        assert look.execute(lake.run(look)) == {"mon": second}, "the run of a version before"


def test_an_event_counts_as_delivered_while_airflow_does_not_list_runs(table: Table) -> None:
    first, lake, look = put(table, "mon", 1), Lake(), reconcile()
    lake.drops = True
    assert look.execute(lake.run(look)) == {"mon": first}
    lake.is_silent = True
    with pytest.raises(AirflowSkipException, match="has seen, or got runs for"):
        look.execute(lake.run(look))
    lake.is_silent = False
    assert look.execute(lake.run(look)) == {"mon": first}


def test_the_report_has_a_line_for_each_consumer_and_fails_only_where_all_failed(
    table: Table,
) -> None:
    version, lake = put(table, "mon", 1), Lake()
    broken = reconcile(task_id="broken", consumer="d.broken", lakechime_conn_id="nowhere")
    works = reconcile(task_id="works")
    with DAG("d", schedule=None):
        report = ReconcileReportOperator(task_id="report")
        [broken, works] >> report
    for _ in range(2):
        with pytest.raises(AirflowNotFoundException):
            broken.execute(lake.run(broken))
    with pytest.raises(AirflowFailException, match="works: no report; see the task's log"):
        report.execute(lake.run(report))
    assert works.execute(lake.run(works)) == {"mon": version}
    lines = report.execute(lake.run(report))
    assert lines["works"] == "d.c: 1 key (mon) of shop.users emitted again"
    assert lines["broken"].startswith("d.broken: AirflowNotFoundException: ")
    with pytest.raises(AirflowSkipException):
        works.execute(lake.run(works))
    assert report.execute(lake.run(report))["works"] == (
        "d.c: nothing to emit: the consumer has seen, or got runs for, all changes of shop.users"
    )


def test_a_consumer_fails_if_its_table_was_deleted_and_created_again(
    table: Table, tmp_path: Path
) -> None:
    lake, task, first = Lake(), consume("version"), put(table, "a", 1)
    done(table, task, "one", first)
    task.execute(lake.run(task, "one"))
    shutil.rmtree(tmp_path / "shop" / "users")
    recreated = create(open_storage(str(tmp_path / "shop" / "users")))
    for at in range(1, 4):
        put(recreated, "a", at)
    with pytest.raises(
        AirflowFailException,
        match=r"has seen version 2 of a table that no longer exists.*\(consumer=\)",
    ):
        task.execute(lake.run(task, "two"))


def test_a_metagen_emits_events_of_the_asset_and_of_its_versions(table: Table) -> None:
    table.ingest(*rows([("a", 1, 1)]))
    task = MetaGenOperator(task_id="m", table="shop.users")
    version = table.metagen(token="d/r/m/-1/0").version
    context = Lake().run(task)
    assert task.execute(context)["version"] == version
    assert context["outlet_events"][task.versions].keys == [f"{version:020d}"]
    assert context["outlet_events"][task.asset].keys == []
    assert context["outlet_events"][task.asset].extra["version"] == version


def test_an_inline_ingest_emits_both_events_and_fails_if_a_batch_try_left_rows_pending(
    table: Table,
) -> None:
    task = IngestOperator(
        task_id="i",
        table="shop.users",
        source=Files("/in/*.json"),
        metadata="inline",
        partition="2026-11-01",
    )
    version = table.ingest(*rows([("a", 1, 1)]), token="d/r/i/-1/0", metadata="inline").version
    context = Lake().run(task)
    assert task.execute(context)["version"] == version
    assert task.asset_events is not None
    assert context["outlet_events"][task.asset_events.versions].keys == [f"{version:020d}"]
    assert context["outlet_events"][task.asset_events.asset].keys == ["2026-11-01"]
    left = IngestOperator(
        task_id="l", table="shop.users", source=Files("/in/*.json"), metadata="inline"
    )
    table.ingest(*rows([("a", 2, 1)]), token="d/r/l/-1/0")
    with pytest.raises(AirflowFailException, match="they are pending; run a metagen"):
        left.execute(Lake().run(left))


@pytest.mark.parametrize("versions", [{"a": 5, "b": 6}, {"a": 6, "b": 5}, {"a": 6, "b": None}])
def test_a_consumer_behind_two_ingests_sees_the_later_one(versions: dict[str, int | None]) -> None:
    with DAG("d", schedule=None):
        tellers = [
            IngestOperator(
                task_id=name, table="shop.users", source=Files("/in/*.json"), metadata="inline"
            )
            for name in "ab"
        ]
        task = ConsumeOperator(task_id="c", table="shop.users", function="m:f")
        tellers >> task
    ti = SimpleNamespace(xcom_pull=lambda task_ids: {"version": versions[task_ids]})
    assert task._upstream_version({"ti": ti}) == 6  # type: ignore[arg-type, typeddict-item]  # a whole run needs a scheduler


def test_changes_are_consumed_by_version() -> None:
    task = consume("version", rows="changes")
    assert task.arguments["rows"] == "changes"
    with pytest.raises(ValueError, match="rows='changes' needs by='version': add it"):
        consume("partition", rows="changes")
    with pytest.raises(ValueError, match="rows='all' is unknown; use one of visible, changes"):
        consume("version", rows="all")
    with pytest.raises(ValueError, match="consumer 'a': rows='changes' needs by='version': add it"):
        Consumer(name="a", function="m:f", rows="changes")


def test_a_watermark_in_lakechime_holds_across_airflow_databases_and_is_shown_in_each(
    table: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path))
    lake, other_lake = Lake(), Lake()
    shared = {"start": "all", "consumer": "c", "lakechime_conn_id": "lakechime_default"}
    first = put(table, "a", 1)
    assert sensor(**shared).execute(lake.run(sensor(**shared), "one")) == {"from": 0, "to": first}
    second = put(table, "b", 2)
    assert sensor(**shared).execute(other_lake.run(sensor(**shared), "two")) == {
        "from": first,
        "to": second,
    }
    assert not sensor(**shared).poke(lake.run(sensor(**shared), "three")).is_done
    assert (seen(lake, sensor(), "c"), seen(other_lake, sensor(), "c")) == (first, second)


def test_a_consumer_that_is_overtaken_never_takes_its_watermark_back(
    table: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two Airflows run one consumer; the slower one acknowledges last."""
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path))
    lake, task = Lake(), consume("version", lakechime_conn_id="lakechime_default", consumer="c")
    first, second = put(table, "a", 1), put(table, "b", 2)
    slow, fast = (
        Watermark.of(lake.run(task, run), "shop.users", "opal_default", "c", "lakechime_default")
        for run in ("one", "two")
    )
    assert slow.seen(lambda: 0) == 0
    fast.advance(second)
    slow.advance(first)
    assert (slow.seen_version, fast.seen_version) == (second, second)
    assert slow.seen(lambda: 0) == second


def test_the_reconcile_reads_what_a_consumer_keeps_in_lakechime(
    table: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path))
    lake, version = Lake(), put(table, "mon", 1)
    look = ReconcileOperator(
        task_id="r",
        table="shop.users",
        consumer="c",
        by="version",
        grace=timedelta(0),
        lakechime_conn_id="lakechime_default",
    )
    assert look.execute(lake.run(look)) == {version_key(version): version}
    consumed = Watermark.of(lake.run(look), "shop.users", "opal_default", "c", "lakechime_default")
    consumed.seen(lambda: 0)
    consumed.advance(version)
    with pytest.raises(AirflowSkipException, match="has seen, or got runs for, all changes"):
        look.execute(lake.run(look))
