"""The relay emits each event at least once and in order, also after a failed run.

Its asset events always have a key.
"""

from collections import defaultdict
from datetime import datetime
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException, TaskDeferred
from airflow.serialization.serialized_objects import DagSerialization
from structlog.testing import capture_logs

from airflow_provider_opal import RelayOperator, lakechime_asset, relay_dag
from airflow_provider_opal.events.interest import partition_key
from lakechime import LakeChime
from tests.airflow_provider_opal.chime import Run, chime, event, put

__all__ = ["chime"]


class Relay:
    """Runs of one relay, one after the other; `states` is what Airflow knows of them."""

    def __init__(self, **more: Any) -> None:
        self.more = {
            "task_id": "relay",
            "tables": ["shop.raw", "shop.flat"],
            "start": "all",
            **more,
        }
        self.states: dict[str, str] = {}
        self.returned: dict[str, dict[str, Any]] = {}

    def run(
        self, run_id: str, state: str | None = "success"
    ) -> tuple[dict[str, Any], dict[str, list[str]]]:
        """Run the relay, and return its result and the keys that Airflow gets by asset."""
        task = RelayOperator(**self.more)
        run = Run(task, run_id)
        run.context["ti"].get_task_states = lambda dag_id, task_ids, run_ids: {
            name: {task_ids[0]: self.states[name]} for name in run_ids if name in self.states
        }
        run.context["ti"].xcom_pull = lambda dag_id, task_ids, run_id: self.returned.get(run_id)
        run.context["outlet_events"] = events = _Events()
        returned = task.execute(run.context)
        if state is not None:
            self.states[run_id] = state
        if state == "success":
            self.returned[run_id] = returned
        return returned, {
            outlet.uri.removeprefix("lakechime://"): sorted(events[outlet].keys)
            for outlet in task.outlets
        }


class _Events(defaultdict[Any, Any]):
    def __init__(self) -> None:
        super().__init__(_emission)


def _emission() -> Any:
    made = SimpleNamespace(keys=[], extra={})
    made.add_partitions = made.keys.extend
    return made


def test_partitions_and_snapshots_become_keys_and_an_asset_without_one_has_no_event(
    chime: LakeChime,
) -> None:
    put(
        chime,
        event(snapshot=1, partition=("mon", 7)),
        event(snapshot=1, partition=("tue", 7)),
        event("shop.flat", snapshot=1),
        event("x"),
    )
    returned, emitted = Relay().run("one")
    assert emitted == {
        "default/shop.raw": ["mon/7", "tue/7"],
        "default/shop.raw/snapshots": ["1"],
        "default/shop.flat/snapshots": ["1"],
    }
    assert returned == {"from": 0, "to": 4, "emitted": 4}


@pytest.mark.parametrize(
    "state, seen", [("success", {"tue"}), ("failed", {"mon", "tue"}), (None, {"mon", "tue"})]
)
def test_events_of_an_uncertain_run_are_emitted_again(
    chime: LakeChime, state: str | None, seen: set[str]
) -> None:
    relay = Relay(tables=["shop.raw"])
    put(chime, event(snapshot=1, partition=("mon",)))
    relay.run("one", state)
    put(chime, event(snapshot=2, partition=("tue",)))
    _, emitted = relay.run("two")
    assert set(emitted["default/shop.raw"]) == seen


def test_a_run_that_was_marked_success_by_hand_is_not_believed(chime: LakeChime) -> None:
    """Such a run has no result, and Airflow emitted none of its events."""
    relay = Relay(tables=["shop.raw"])
    put(chime, event(snapshot=1, partition=("mon",)))
    relay.run("one", "failed")
    relay.states["one"] = "success"
    with capture_logs() as logs:
        _, emitted = relay.run("two")
    assert emitted["default/shop.raw"] == ["mon"]
    assert any("unknown whether run one emitted its events" in log["event"] for log in logs)
    with pytest.raises(ValueError, match="do_xcom_push=False does not work for a relay"):
        RelayOperator(**relay.more, do_xcom_push=False)


def test_a_relay_fails_if_events_expired_before_it_emitted_them(chime: LakeChime) -> None:
    """A relay that begins with the oldest event misses nothing."""
    relay = Relay(tables=["shop.raw"], max_events=1)
    for number in range(1, 5):
        put(chime, event(snapshot=number, partition=(f"day {number}",)))
    relay.run("one")
    chime.expire(2**50, keep_unseen=False)
    assert Relay(tables=["shop.raw"], consumer="new").run("new")[1]["default/shop.raw"] == ["day 4"]
    with pytest.raises(
        AirflowFailException,
        match="has seen events up to 1, and retention has deleted events up to 3",
    ):
        relay.run("two")


def test_a_relay_of_quiet_tables_does_not_hold_back_retention(chime: LakeChime) -> None:
    chime.register([event("shop.busy", snapshot=number) for number in range(1, 11)])
    with pytest.raises(TaskDeferred) as deferred:
        Relay().run("one")
    assert deferred.value.trigger.serialize()[1]["after"] == 10
    assert chime.expire(2**50) == 9


def test_a_relay_logs_how_many_events_start_no_dag_by_partition(chime: LakeChime) -> None:
    put(
        chime,
        event(snapshot=1, partition=("mon",)),
        event(snapshot=2),
        event(snapshot=3, partition=("x" * 251,)),
    )
    with capture_logs() as logs:
        Relay(tables=["shop.raw"]).run("one")
    assert any("2 events of shop.raw start no DAG by partition" in text(log) for log in logs)


def text(log: Any) -> str:
    positional = log.get("positional_args", ())
    return str(log["event"] % tuple(positional)) if positional else str(log["event"])


def test_a_retry_emits_what_its_first_try_did_and_nothing_is_left_out_in_between(
    chime: LakeChime,
) -> None:
    relay = Relay(tables=["shop.raw"], max_events=2)
    for number in range(1, 6):
        put(chime, event(snapshot=number, partition=(f"day {number}",)))
    keys = [
        relay.run(run_id, state)[1]["default/shop.raw"]
        for run_id, state in (("one", None), ("one", "success"), ("two", "success"))
    ]
    assert keys == [["day 1", "day 2"], ["day 1", "day 2"], ["day 3", "day 4"]]
    assert relay.run("three")[1]["default/shop.raw"] == ["day 5"]
    watermark = chime.watermark("relay.d.relay", "events")
    assert watermark is not None
    assert watermark.value == 4, "the last run has not been seen to succeed"


def test_without_events_it_waits_and_then_skips_so_that_a_changed_dag_has_its_turn(
    chime: LakeChime,
) -> None:
    relay = Relay(longest="2h")
    with pytest.raises(TaskDeferred) as deferred:
        relay.run("one")
    arguments = deferred.value.trigger.serialize()[1]
    assert (arguments["longest_s"], arguments["after"], arguments["poke_interval_s"]) == (
        7200,
        0,
        1.0,
    )
    task = RelayOperator(**relay.more)
    with pytest.raises(AirflowSkipException, match="the next run goes on waiting"):
        task.resume(Run(task).context, {"seq": None})


def test_a_key_says_the_partition_and_what_airflow_cannot_keep_has_none(chime: LakeChime) -> None:
    assert partition_key(["2026-11-01", 7, None, {"a": 1}]) == '2026-11-01/7/null/{"a":1}'
    put(chime, event(snapshot=1, partition=("x" * 251,)), event(snapshot=2, partition=("",)))
    assert Relay().run("one")[1] == {"default/shop.raw/snapshots": ["1", "2"]}


def test_a_relay_s_dag_runs_all_the_time_one_run_after_the_other() -> None:
    dag = relay_dag(
        "relay",
        tables=["shop.raw", ("prod", "shop.rates")],
        start_date=datetime(2026, 11, 1),
        event_tags={"a": "b"},
    )
    assert (dag.max_active_runs, dag.catchup, repr(type(dag.timetable).__name__)) == (
        1,
        False,
        "'ContinuousTimetable'",
    )
    [task] = dag.tasks
    assert lakechime_asset("shop.rates", cluster="prod") in task.outlets
    DagSerialization.to_dict(dag)
    for wrong in ("a b", "{{ x }}", ""):
        with pytest.raises(ValueError, match=r"cannot be named|is a template"):
            lakechime_asset(wrong)
