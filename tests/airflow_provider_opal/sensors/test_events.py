"""Sensors over events: ranges without a gap, partitions, and what a flow gets."""

import asyncio
import copy
import json
from collections import defaultdict
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from airflow.sdk import DAG, TaskGroup
from airflow.sdk.exceptions import (
    AirflowFailException,
    AirflowSensorTimeout,
    AirflowSkipException,
    TaskDeferred,
)
from airflow.serialization.serialized_objects import DagSerialization
from structlog.testing import capture_logs

from airflow_provider_opal import (
    AcknowledgeOperator,
    PartitionTriggerSensor,
    SnapshotTriggerSensor,
    lakechime_asset,
)
from lakechime import ExpiredError, LakeChime, Watermark
from lakechime.triggers.environment import read_variables
from tests.airflow_provider_opal.chime import Run, chime, event, put
from tests.airflow_provider_opal.stand_ins import Store

__all__ = ["chime"]

RAW = ("default", "shop.raw")


def sensor(**more: Any) -> SnapshotTriggerSensor:
    return SnapshotTriggerSensor(
        **{"task_id": "s", "tables": ["shop.raw"], "start": "all", "deferrable": False, **more}
    )


def partition(**more: Any) -> PartitionTriggerSensor:
    return PartitionTriggerSensor(
        **{
            "task_id": "p",
            "table": "shop.raw",
            "partition": ["2026-11-01", 7],
            "deferrable": False,
            "skip_when_empty": True,
            **more,
        }
    )


def test_ranges_of_events_follow_on_from_each_other_and_a_cleared_run_gets_its_own(
    chime: LakeChime,
) -> None:
    first_run, second_run = Run(sensor(), "one"), Run(sensor(), "two")
    put(chime, event("shop.other"), event(snapshot=1))
    first = sensor().execute(first_run.context)
    assert first == {"from": 0, "to": 2}
    assert [handed["snapshot_id"] for handed in first_run.pushed["events"]] == ["1"]
    put(chime, event(snapshot=2), event(snapshot=3))
    assert sensor().execute(first_run.context) == first
    assert sensor().execute(second_run.context) == {"from": 2, "to": 4}
    assert [handed.snapshot_id for handed in read_variables(second_run.pushed["environment"])] == [
        "2",
        "3",
    ]
    with pytest.raises(AirflowSkipException, match="has nothing new"):
        sensor(skip_when_empty=True).execute(Run(sensor(), "three").context)


@pytest.mark.parametrize("start, seen", [("head", 2), ("all", 0), (1, 1)])
def test_a_new_consumer_of_events_starts_at_its_start(
    chime: LakeChime, start: Any, seen: int
) -> None:
    put(chime, event(snapshot=1), event(snapshot=2))
    sensor(start=start, max_events=1).poke(Run(sensor()).context)
    watermark = chime.watermark("d.s", "events")
    assert watermark is not None
    assert watermark.value == (seen if start == "head" else seen + 1)


def test_events_that_cannot_be_handed_over_stay_with_the_consumer(chime: LakeChime) -> None:
    """Fail a run whose XCom is refused; the next one gets the events."""
    put(chime, event(snapshot=1))
    run = Run(sensor(), "one")

    def refuse(**_: Any) -> None:
        raise OSError("the bucket of XCom is gone")

    run.context["ti"].xcom_push = refuse
    with pytest.raises(OSError, match="is gone"):
        sensor().execute(run.context)
    assert sensor().execute(Run(sensor(), "two").context) == {"from": 0, "to": 1}


def test_a_cleared_run_fails_if_its_events_have_expired(chime: LakeChime) -> None:
    put(chime, event(snapshot=1), event(snapshot=2))
    run = Run(sensor())
    assert sensor().execute(run.context) == {"from": 0, "to": 2}
    put(chime, event(snapshot=3))
    chime.put_watermark("d.s", "events", 3, expected=seen(chime).revision)
    chime.expire(2**50)
    with pytest.raises(
        AirflowFailException,
        match=r"had 2 events after seq 0 up to seq 2, but only 0 of them are left"
        r".*Read .* as a whole",
    ):
        sensor().execute(run.context)


@pytest.mark.parametrize("mode", ["any", "all"])
def test_a_consumer_of_quiet_tables_does_not_hold_back_retention(
    chime: LakeChime, mode: str
) -> None:
    what = {"tables": ["shop.raw", "shop.slow"], "mode": mode, "skip_when_empty": True}
    chime.register([event("shop.busy", snapshot=number) for number in range(1, 11)])
    with pytest.raises(AirflowSkipException):
        sensor(**what).execute(Run(sensor(), "one").context)
    assert (seen(chime).value, chime.expire(2**50)) == (10, 9)
    last = put(chime, event(snapshot=1), event("shop.slow", snapshot=1))
    assert sensor(**what).execute(Run(sensor(), "two").context) == {"from": 10, "to": last}


def test_a_consumer_that_waits_for_all_of_its_tables_keeps_events_until_each_table_has_one(
    chime: LakeChime,
) -> None:
    what = {"tables": ["shop.raw", "shop.slow"], "mode": "all", "skip_when_empty": True}
    put(chime, event("shop.busy"), event(snapshot=1), event("shop.busy", snapshot=2))
    with pytest.raises(AirflowSkipException):
        sensor(**what).execute(Run(sensor(), "one").context)
    assert seen(chime).value == 1, "what comes before the first event of one of them"
    put(chime, event("shop.slow"))
    two = Run(sensor(), "two")
    assert sensor(**what).execute(two.context) == {"from": 1, "to": 4}
    assert [handed["table"] for handed in two.pushed["events"]] == ["shop.raw", "shop.slow"]


def test_expired_unseen_events_are_reported_even_if_no_new_event_matches(chime: LakeChime) -> None:
    put(
        chime,
        event(snapshot=1, tags={"done": "yes"}),
        event(snapshot=2, tags={"done": "yes"}),
        event(snapshot=3),
    )
    chime.put_watermark("d.s", "events", 1, expected=None)
    chime.expire(2**50, keep_unseen=False)
    with pytest.raises(AirflowFailException, match="retention has deleted events up to 2"):
        sensor(tags={"done": "yes"}, skip_when_empty=True).execute(Run(sensor()).context)


def seen(client: LakeChime) -> Watermark:
    watermark = client.watermark("d.s", "events")
    assert watermark is not None
    return watermark


def test_any_of_the_tables_is_enough_or_all_of_them_are_needed(chime: LakeChime) -> None:
    both = {"tables": ["shop.raw", ("prod", "shop.raw")], "skip_when_empty": True}
    put(chime, event(snapshot=1), event("shop.other"))
    assert sensor(**both).execute(Run(sensor(), "one").context) == {"from": 0, "to": 2}
    needs = {**both, "mode": "all", "consumer": "all"}
    with pytest.raises(AirflowSkipException):
        sensor(**needs).execute(Run(sensor(), "two").context)
    put(chime, event(snapshot=1, cluster="prod"))
    three = Run(sensor(), "three")
    assert sensor(**needs, max_events=1).execute(three.context) == {"from": 0, "to": 3}
    assert [handed["cluster"] for handed in three.pushed["events"]] == ["default", "prod"]


def test_tags_are_asked_for_and_the_watermark_passes_what_does_not_match(chime: LakeChime) -> None:
    put(
        chime,
        event(snapshot=1),
        event(snapshot=2, tags={"completeness.hourly": "99", "more": "1"}),
        event(snapshot=3),
    )
    run = Run(sensor())
    assert sensor(tags={"completeness.hourly": "99"}).execute(run.context) == {"from": 0, "to": 3}
    assert [handed["snapshot_id"] for handed in run.pushed["events"]] == ["2"]


def test_a_flow_that_failed_gets_its_events_again_with_what_is_newer(chime: LakeChime) -> None:
    waiting = sensor(acknowledge=False)
    put(chime, event(snapshot=1))
    assert waiting.execute(Run(waiting, "one").context) == {"from": 0, "to": 1}
    put(chime, event(snapshot=2))
    two = Run(waiting, "two")
    assert waiting.execute(two.context) == {"from": 0, "to": 2}
    done = AcknowledgeOperator(task_id="done", sensor="s")
    end = Run(done, "two")
    end.pulled["s"] = {"from": 0, "to": 2}
    assert [done.execute(end.context) for _ in range(2)] == [2, 2]
    end.pulled["s"] = {"from": 0, "to": 1}
    with pytest.raises(AirflowFailException, match="another flow has moved it"):
        done.execute(end.context)
    end.pulled["s"] = None
    with pytest.raises(AirflowFailException, match="returned None, and not a range"):
        done.execute(end.context)


def test_an_acknowledge_operator_takes_consumer_and_connection_from_its_sensor() -> None:
    with DAG("flow", schedule=None) as dag:
        done = AcknowledgeOperator(task_id="done", sensor=sensor(acknowledge=False, consumer="a"))
    assert (done.sensor, done.consumer, done.lakechime_conn_id, done.upstream_task_ids) == (
        "s",
        "a",
        "lakechime_default",
        {"s"},
    )
    copied = DagSerialization.from_dict(DagSerialization.to_dict(copy.deepcopy(dag)))
    assert copied.get_task("done").upstream_task_ids == {"s"}


@pytest.mark.parametrize(
    "of_sensor, given, message",
    [
        ({}, {"consumer": "b"}, "consumer='b' contradicts the sensor 'g.s', which has 'f.g.s'"),
        (
            {"consumer": "a"},
            {"consumer": "b"},
            "contradicts the sensor 'g.s', which has 'a'; leave",
        ),
        ({}, {"lakechime_conn_id": "c"}, "'c' contradicts .*, which has 'lakechime_default'"),
        ({"acknowledge": True}, {}, "moves its watermark itself; .* acknowledge=False"),
        ({"lakechime_conn_id": "c"}, {"lakechime_conn_id": "c"}, None),
        ({}, {"consumer": "f.g.s"}, None),
    ],
)
def test_arguments_that_contradict_the_sensor_are_refused(
    of_sensor: dict[str, Any], given: dict[str, Any], message: str | None
) -> None:
    with DAG("f", schedule=None):
        with TaskGroup("g"):
            waiting = sensor(**{"acknowledge": False, **of_sensor})
        if message is None:
            assert AcknowledgeOperator(task_id="done", sensor=waiting, **given).sensor == "g.s"
            return
        with pytest.raises(ValueError, match=message):
            AcknowledgeOperator(task_id="done", sensor=waiting, **given)
        with pytest.raises(ValueError, match="is not a SnapshotTriggerSensor; give the sensor's"):
            AcknowledgeOperator(task_id="other", sensor=waiting.output)  # type: ignore[arg-type]


def test_an_acknowledged_flow_succeeds_again_after_a_clear_and_an_overtaken_flow_fails(
    chime: LakeChime,
) -> None:
    """Clear two flows; the next run got the events of the second one."""
    waiting, done = sensor(acknowledge=False), AcknowledgeOperator(task_id="done", sensor="s")

    def flow(name: str) -> tuple[Run, Run]:
        run, end = Run(waiting, name), Run(done, name)
        end.pulled["s"] = waiting.execute(run.context)  # type: ignore[arg-type]
        return run, end

    put(chime, event(snapshot=1))
    first, first_end = flow("one")
    assert done.execute(first_end.context) == 1  # type: ignore[arg-type]
    put(chime, event(snapshot=2))
    _, failed_end = flow("two")
    put(chime, event(snapshot=3))
    _, third_end = flow("three")
    assert (third_end.pulled["s"], done.execute(third_end.context)) == ({"from": 1, "to": 3}, 3)  # type: ignore[arg-type]
    assert (waiting.execute(first.context), done.execute(first_end.context)) == (
        {"from": 0, "to": 1},
        1,
    )  # type: ignore[arg-type]
    with pytest.raises(AirflowFailException, match="another flow has moved it"):
        done.execute(failed_end.context)  # type: ignore[arg-type]
    assert seen(chime).value == 3


def test_a_consumer_from_the_head_reports_events_that_expired_before_its_first_look(
    chime: LakeChime,
) -> None:
    """Begin before there is any event, and let some expire."""
    with pytest.raises(AirflowSkipException):
        sensor(start="head", skip_when_empty=True).execute(Run(sensor(), "one").context)
    put(chime, event(snapshot=1), event(snapshot=2))
    chime.expire(2**50, keep_unseen=False)
    with pytest.raises(
        AirflowFailException,
        match="has seen events up to 0, and retention has deleted events up to 1",
    ):
        sensor(start="head").execute(Run(sensor(), "two").context)
    fresh = Run(sensor(), "three")
    assert sensor(consumer="fresh").execute(fresh.context) == {"from": 0, "to": 2}
    assert [handed["snapshot_id"] for handed in fresh.pushed["events"]] == ["2"]


def test_a_sensor_fails_if_unseen_events_expired(chime: LakeChime) -> None:
    put(chime, event(snapshot=1), event(snapshot=2), event(snapshot=3))
    chime.put_watermark("d.s", "events", 1, expected=None)
    chime.expire(2**50, keep_unseen=False)
    put(chime, event(snapshot=4))
    with pytest.raises(
        AirflowFailException,
        match="has seen events up to 1, and retention has deleted events up to 2",
    ):
        sensor().execute(Run(sensor()).context)


def test_progress_is_shown_with_the_table_s_asset(chime: LakeChime) -> None:
    assets: defaultdict[Any, Store] = defaultdict(Store)
    put(chime, event(snapshot=1))
    sensor().execute(Run(sensor(), assets=assets).context)
    assert assets[lakechime_asset("shop.raw")]["seen/d.s"] == {"seq": 1}
    assert sensor().inlets == [lakechime_asset("shop.raw")]


def test_a_partition_is_there_whenever_it_came_if_its_tags_match(chime: LakeChime) -> None:
    with pytest.raises(AirflowSkipException, match="is not registered yet"):
        partition().execute(Run(partition()).context)
    put(
        chime,
        event(snapshot=1, partition=("2026-11-01", 8)),
        event(snapshot=2, partition=("2026-11-01", 7)),
    )
    run = Run(partition())
    [handed] = partition().execute(run.context)
    assert (handed["partition"], handed["snapshot_id"]) == (["2026-11-01", 7], "2")
    assert json.loads(run.pushed["environment"]["LAKECHIME_EVENTS"]) == [handed]
    with pytest.raises(AirflowSkipException):
        partition(tags={"completeness.daily": "100"}).execute(run.context)
    put(chime, event(snapshot=3, partition=("2026-11-01", 7), tags={"completeness.daily": "100"}))
    assert len(partition(tags={"completeness.daily": "100"}).execute(run.context)) == 1
    assert [handed["snapshot_id"] for handed in partition(max_events=1).execute(run.context)] == [
        "3"
    ]


def test_with_a_frequency_a_partition_is_looked_for_once_a_tick(chime: LakeChime) -> None:
    begun = datetime.now(UTC) - timedelta(minutes=90)
    waiting = partition(
        start_timestamp=begun, frequency=1, frequency_unit="hours", skip_when_empty=False
    )
    run = Run(waiting)
    assert not waiting.poke(run.context).is_done
    put(chime, event(snapshot=1, partition=("2026-11-01", 7)))
    assert not waiting.poke(run.context).is_done, "the tick has been looked at"
    assert partition(start_timestamp=begun, frequency=1, frequency_unit="hours").execute(
        Run(waiting, "two").context
    )
    ahead = partition(
        start_timestamp=datetime.now(UTC) + timedelta(hours=1), frequency=1, frequency_unit="DAY"
    )
    assert not ahead.poke(run.context).is_done


@pytest.mark.parametrize("deferrable", [True, False])
def test_with_a_frequency_events_are_looked_for_once_a_tick(
    chime: LakeChime, deferrable: bool
) -> None:
    what = {"frequency": "{{ 1 }}", "frequency_unit": "hours", "start": "head"}
    begun, ahead = (datetime.now(UTC) + timedelta(minutes=minutes) for minutes in (-90, 90))
    waiting = sensor(start_timestamp=begun, **what)
    waiting.frequency = "1"  # as its template has it
    run = Run(waiting)
    assert not waiting.poke(run.context).is_done
    put(chime, event(snapshot=1))
    assert not waiting.poke(run.context).is_done, "the tick has been looked at"
    run.context["ti"].try_number += 1
    assert waiting.poke(run.context).xcom_value == {"from": 0, "to": 1}
    later = sensor(
        start_timestamp=ahead, deferrable=deferrable, timeout=0, consumer="later", **what
    )
    later.frequency = 1
    with pytest.raises((AirflowSensorTimeout, TaskDeferred)):
        later.execute(Run(later).context)
    watermark = chime.watermark("later", "events")
    assert watermark is not None
    assert watermark.value == 1, "a new consumer begins with its task, in every mode"


def test_with_a_frequency_a_rescheduled_sensor_looks_once_a_tick_too(chime: LakeChime) -> None:
    """Each of its looks is in a process of its own. Another try looks at once."""
    begun = datetime.now(UTC) - timedelta(minutes=90)
    what = {
        "start_timestamp": begun,
        "frequency": 1,
        "frequency_unit": "hour",
        "skip_when_empty": False,
        "mode": "reschedule",
    }
    run = Run(partition(**what))
    assert not partition(**what).poke(run.context).is_done
    put(chime, event(snapshot=1, partition=("2026-11-01", 7)))
    assert not partition(**what).poke(run.context).is_done, "the tick has been looked at"
    run.context["ti"].try_number += 1
    assert partition(**what).poke(run.context).is_done


def test_a_partition_sensor_returns_all_its_events_or_logs_that_max_events_cut_them(
    chime: LakeChime,
) -> None:
    for first in range(0, 1200, 600):
        chime.register(
            [
                event(snapshot=first + number, partition=("2026-11-01", 7))
                for number in range(1, 601)
            ]
        )
    assert len(partition().execute(Run(partition()).context)) == 1200
    with capture_logs() as logs:
        assert len(partition(max_events=5).execute(Run(partition()).context)) == 5
    assert any("of them are returned" in log["event"] for log in logs)


@pytest.mark.parametrize("of", ["events", "partition"])
def test_a_sensor_that_is_woken_for_nothing_waits_for_what_is_left_of_its_timeout(
    chime: LakeChime, of: str
) -> None:
    def waiting() -> Any:
        what = {"deferrable": True, "skip_when_empty": False, "timeout": 100}
        return sensor(**what) if of == "events" else partition(**what)

    run = Run(waiting())
    with pytest.raises(TaskDeferred) as deferred:
        waiting().execute(run.context)
    first = deferred.value
    assert first.kwargs is not None
    deadline = first.kwargs["deadline_s"]
    with pytest.raises(TaskDeferred) as deferred:
        waiting().resume(run.context, {"seq": 1}, deadline_s=deadline - 60)
    assert deferred.value.kwargs == {"deadline_s": deadline - 60}
    assert deferred.value.timeout < timedelta(seconds=41)
    with pytest.raises(AirflowSensorTimeout, match="within its timeout of 100 s"):
        waiting().resume(run.context, {"seq": 1}, deadline_s=deadline - 100)


@pytest.mark.parametrize(
    "more, said",
    [
        ({"partition": "2026-11-01"}, "is not a list of values"),
        ({"partition": []}, "is not a list of values"),
        ({"frequency": 1}, "give all three"),
        (
            {"start_timestamp": "tomorrow", "frequency": 1, "frequency_unit": "hour"},
            "is not a moment; write",
        ),
        (
            {"start_timestamp": 0, "frequency": 0, "frequency_unit": "hour"},
            "frequency must be a whole number of at least 1",
        ),
        (
            {"start_timestamp": 0, "frequency": 1, "frequency_unit": "fortnight"},
            "use one of minute, hour, day, week, month",
        ),
        ({"tags": {"a": 1}}, "is not a mapping of names to texts"),
    ],
)
def test_an_invalid_partition_sensor_is_refused_with_a_correction(
    more: dict[str, Any], said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        partition(**more)


@pytest.mark.parametrize(
    "more, said",
    [
        ({"tables": "shop.raw"}, "is not a list of tables"),
        ({"tables": []}, "is not a list of tables"),
        ({"tables": [5]}, "5 is not a table"),
        ({"table": "shop.raw"}, "give one of the two"),
        ({"mode": "some"}, "use 'any' .* or 'all'"),
        (
            {"table": "shop.raw", "tables": None, "acknowledge": False},
            "acknowledge=False does not apply to versions",
        ),
    ],
)
def test_an_invalid_snapshot_sensor_is_refused_with_a_correction(
    more: dict[str, Any], said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        sensor(**more)


def fired(deferred: TaskDeferred) -> Any:
    path, arguments = deferred.trigger.serialize()
    arguments = json.loads(json.dumps(arguments))
    module, _, name = path.rpartition(".")
    trigger = getattr(__import__(module, fromlist=[name]), name)(**arguments)
    return asyncio.wait_for(anext(trigger.run()), 20)


def test_a_deferred_sensor_wakes_for_its_events_and_takes_what_is_there_then(
    chime: LakeChime,
) -> None:
    waiting = sensor(deferrable=True, poke_interval=0.05)
    run = Run(waiting)
    with pytest.raises(TaskDeferred) as deferred:
        waiting.execute(run.context)

    async def wake() -> Any:
        wait = asyncio.ensure_future(fired(deferred.value))
        await asyncio.sleep(0.3)
        assert not wait.done()
        put(chime, event("shop.other"))
        await asyncio.sleep(0.3)
        assert not wait.done()
        put(chime, event(snapshot=1))
        return (await wait).payload

    assert asyncio.run(wake()) == {"seq": 2}
    put(chime, event(snapshot=2))
    assert waiting.resume(run.context, {"seq": 2}) == {"from": 0, "to": 3}


def test_a_deferred_sensor_whose_events_another_run_took_waits_on(chime: LakeChime) -> None:
    waiting = sensor(deferrable=True)
    run = Run(waiting)
    for _ in range(2):
        with pytest.raises(TaskDeferred) as deferred:
            waiting.resume(run.context, {"seq": 1})
    assert deferred.value.trigger.serialize()[1]["after"] == 0


def test_a_deferred_partition_sensor_wakes_for_its_partition_alone(chime: LakeChime) -> None:
    waiting = partition(deferrable=True, skip_when_empty=False, poke_interval=0.05)
    with pytest.raises(TaskDeferred) as deferred:
        waiting.execute(Run(waiting).context)

    async def wake() -> Any:
        wait = asyncio.ensure_future(fired(deferred.value))
        await asyncio.sleep(0.3)
        put(
            chime,
            event(snapshot=1, partition=("2026-11-01", 8)),
            event(snapshot=2, partition=("2026-11-01", 7.0)),
        )
        await asyncio.sleep(0.3)
        assert not wait.done()
        put(chime, event(snapshot=3, partition=("2026-11-01", 7)))
        return (await wait).payload

    assert asyncio.run(wake()) == {"seq": 3}
    assert len(waiting.resume(Run(waiting).context, {"seq": 3})) == 1


def test_a_deferred_partition_sensor_looks_at_its_ticks(
    chime: LakeChime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "lakechime.triggers.schedule._FIXED_MS",
        dict.fromkeys(("MINUTE", "HOUR", "DAY", "WEEK"), 300),
    )
    waiting = partition(
        deferrable=True,
        skip_when_empty=False,
        start_timestamp=0,
        frequency=1,
        frequency_unit="minute",
    )
    with pytest.raises(TaskDeferred) as deferred:
        waiting.execute(Run(waiting).context)

    async def wake() -> Any:
        wait = asyncio.ensure_future(fired(deferred.value))
        await asyncio.sleep(0.7)
        assert not wait.done()
        put(chime, event(snapshot=1, partition=("2026-11-01", 7)))
        return (await wait).payload

    assert asyncio.run(wake()) == {"seq": 1}


def test_deferred_sensors_of_events_look_at_their_ticks(
    chime: LakeChime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "lakechime.triggers.schedule._FIXED_MS",
        dict.fromkeys(("MINUTE", "HOUR", "DAY", "WEEK"), 600),
    )
    waiting = sensor(
        deferrable=True,
        tables=["shop.raw", "shop.slow"],
        mode="all",
        start_timestamp=0,
        frequency=1,
        frequency_unit="minute",
        poke_interval=0.01,
    )
    run = Run(waiting)
    with pytest.raises(TaskDeferred) as deferred:
        waiting.execute(run.context)

    async def wake() -> Any:
        wait = asyncio.ensure_future(fired(deferred.value))
        put(chime, event(snapshot=1))
        await asyncio.sleep(1)
        assert not wait.done(), "one of the tables has no event"
        put(chime, event("shop.slow"))
        payload = (await wait).payload
        since_tick_s = datetime.now(UTC).timestamp() % 0.6
        return payload, since_tick_s

    payload, since_tick_s = asyncio.run(wake())
    assert payload == {"seq": 2}
    assert since_tick_s < 0.5, "it looks at the tick, not between two of them"
    assert waiting.resume(run.context, payload) == {"from": 0, "to": 2}


def test_a_consumer_of_other_tables_or_tags_is_refused_under_the_same_name(
    chime: LakeChime,
) -> None:
    """Refuse a watermark that has passed events of other tables."""
    put(chime, event(snapshot=1), event("shop.other"))
    assert sensor(consumer="c").execute(Run(sensor(), "one").context) == {"from": 0, "to": 2}
    for other in ({"tables": ["shop.other"]}, {"tags": {"done": "yes"}}):
        with pytest.raises(AirflowFailException, match="another name"):
            sensor(consumer="c", **other).execute(Run(sensor(), "two").context)
    put(chime, event(snapshot=2))
    assert sensor(consumer="c").execute(Run(sensor(), "three").context) == {"from": 2, "to": 3}


def test_a_partition_that_expired_fails_its_sensor(chime: LakeChime) -> None:
    put(chime, event(partition=("2026-11-01", 7)), event(snapshot=2, partition=("2026-11-02", 7)))
    chime.expire(2**50)
    for more in ({}, {"skip_when_empty": False, "deferrable": True}):
        with pytest.raises(ExpiredError, match="was registered, and its events up to seq 1 have"):
            partition(**more).execute(Run(partition()).context)
    with pytest.raises(AirflowSkipException, match="is not registered yet"):
        partition(partition=["2026-11-03", 7]).execute(Run(partition()).context)
    put(chime, event(snapshot=3, partition=("2026-11-01", 7)))
    assert len(partition().execute(Run(partition()).context)) == 1


def test_a_partition_whose_tags_may_have_expired_warns_and_waits_on(
    chime: LakeChime, caplog: pytest.LogCaptureFixture
) -> None:
    put(
        chime,
        event(partition=("2026-11-01", 7), tags={"completeness.hourly": "50"}),
        event(snapshot=2, partition=("2026-11-02", 7)),
    )
    chime.expire(2**50)
    waiting = partition(tags={"completeness.hourly": "99"})
    with capture_logs() as logs, pytest.raises(AirflowSkipException):
        waiting.execute(Run(waiting).context)
    messages = [*(str(entry["event"]) for entry in logs), *caplog.messages]
    assert any(
        "up to seq 1 have expired. One of them may have had the tags" in text for text in messages
    )
