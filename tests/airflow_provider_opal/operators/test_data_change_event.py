"""DataChangeEventOperator: each event is in one span of time, and reaches other tasks."""

import shlex
import subprocess
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from time import sleep
from typing import Any

import pytest
from airflow.sdk import DAG, XComArg
from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowSkipException
from airflow.sdk.execution_time import macros
from airflow.sdk.plugins_manager import integrate_macros_plugins

from airflow_provider_opal import DataChangeEventOperator
from airflow_provider_opal.events.macros import decode_events, encode_events
from lakechime import InvalidEventError, LakeChime
from lakechime.triggers.environment import read_variables
from opal_lake.clock import SystemClock
from tests.airflow_provider_opal.chime import Run, chime, event, put

__all__ = ["chime"]


def fetch(**more: Any) -> DataChangeEventOperator:
    what = {
        "task_id": "fetched_events",
        "dataset": "shop.raw",
        "cluster": "prod",
        "start_time": 0,
        "end_time": 1,
        **more,
    }
    return DataChangeEventOperator(**what)


def registered(client: LakeChime, number: int) -> list[int]:
    """Register events one after the other, and return their times."""
    for snapshot in range(1, number + 1):
        put(client, event(snapshot=snapshot, cluster="prod"))
    return [registered.event.event_ts or 0 for registered in client.tail(0).events]


def snapshots(events: list[dict[str, Any]]) -> list[str]:
    return [event["snapshot_id"] for event in events]


def test_each_event_is_in_one_of_successive_spans(chime: LakeChime) -> None:
    times = registered(chime, 20)
    middle, end = times[10], times[-1] + 1
    spans = [(times[0] - 5, middle), (middle, end), (end, end)]
    first, second, third = [
        snapshots(fetch(start_time=begin, end_time=until).execute(Run(fetch()).context))
        for begin, until in spans
    ]
    assert [*first, *second] == [str(number) for number in range(1, 21)]
    assert second[0] == str(times.index(middle) + 1), "an event at a bound is in the later span"
    assert third == []
    assert fetch(cluster="default", end_time=end).execute(Run(fetch()).context) == []


@pytest.mark.parametrize("kind", ["milliseconds", "text", "datetime", "iso"])
def test_a_time_may_have_any_form(chime: LakeChime, kind: str) -> None:
    last = registered(chime, 3)[-1]
    ways: dict[str, Callable[[int], Any]] = {
        "milliseconds": lambda moment: moment,
        "text": str,
        "datetime": lambda moment: datetime.fromtimestamp(moment / 1000, UTC),
        "iso": lambda moment: datetime.fromtimestamp(moment / 1000, UTC).isoformat(
            timespec="milliseconds"
        ),
    }
    events = fetch(start_time=0, end_time=ways[kind](last)).execute(Run(fetch()).context)
    earlier = [event for event in chime.tail(0).events if (event.event.event_ts or 0) < last]
    assert len(events) == len(earlier)


def test_templates_of_the_paper_are_rendered(chime: LakeChime) -> None:
    last = registered(chime, 2)[-1]
    task = fetch(start_time="{{ begin.int_timestamp * 1000 }}", end_time="{{ end }}")
    with DAG("d", schedule=None):
        task.render_template_fields(
            {"begin": type("At", (), {"int_timestamp": 0}), "end": last + 1}
        )
    assert len(task.execute(Run(task).context)) == 2


@pytest.mark.parametrize(
    "more, said",
    [
        (
            {"start_time": "yesterday"},
            "start_time='yesterday' is not a moment; write milliseconds since 1970",
        ),
        ({"end_time": datetime(2026, 11, 1)}, "has no time zone"),
        ({"end_time": True}, "end_time=True is not a moment"),
    ],
)
def test_an_invalid_moment_is_refused_when_the_dag_is_parsed(
    more: dict[str, Any], said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        fetch(**more)


def test_a_span_must_have_ended_and_be_the_right_way_round(chime: LakeChime) -> None:
    now = datetime.now(UTC)
    with pytest.raises(AirflowException, match="s in the future: no run would see"):
        fetch(end_time=now + timedelta(hours=1)).execute(Run(fetch()).context)
    put(chime, event(cluster="prod"))
    soon = datetime.now(UTC) + timedelta(seconds=0.5)
    assert len(fetch(end_time=soon).execute(Run(fetch()).context)) == 1
    assert datetime.now(UTC) >= soon, "it waited for the end"
    with pytest.raises(AirflowFailException, match="pass the earlier time as start_ts"):
        fetch(start_time=5, end_time=4).execute(Run(fetch()).context)
    with pytest.raises(AirflowFailException, match=r"'\{\{ x \}\}' is not a moment"):
        fetch(start_time="{{ x }}").execute(Run(fetch()).context)


def test_a_database_whose_clock_is_behind_is_waited_for(
    chime: LakeChime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An event that it registers later would have a time of the span."""
    now_us, behind_us = SystemClock.now_us, [20_000_000]
    # SQLite's events have their times from it
    monkeypatch.setattr(SystemClock, "now_us", lambda self: now_us(self) - behind_us[0])
    end, late = datetime.now(UTC), []

    def register_late(seconds: float) -> None:
        late.append(put(chime, event(snapshot=len(late) + 1, cluster="prod")))
        sleep(0 if behind_us[0] else seconds)
        behind_us[0] = 0  # the first wait ends immediately

    monkeypatch.setattr("airflow_provider_opal.operators.data_change_event.sleep", register_late)
    first = fetch(end_time=end).execute(Run(fetch()).context)
    assert len(first) == len(late) == 1
    put(chime, event(snapshot=9, cluster="prod"))
    next_end = datetime.now(UTC) + timedelta(seconds=3)
    second = fetch(start_time=end, end_time=next_end).execute(Run(fetch()).context)
    assert "9" in snapshots(second)
    assert not set(snapshots(first)) & set(snapshots(second))


def test_partitions_and_tags_filter_events_and_a_span_without_events_may_skip(
    chime: LakeChime,
) -> None:
    put(
        chime,
        event(snapshot=1, cluster="prod", partition=("a",)),
        event(snapshot=2, cluster="prod", partition=("b",), tags={"t": "1"}),
    )
    end = datetime.now(UTC)
    for more in ({"partition": ["b"]}, {"tags": {"t": "1"}}):
        events = fetch(end_time=end, **more).execute(Run(fetch()).context)
        assert snapshots(events) == ["2"]
    with pytest.raises(AirflowSkipException, match=r"no events of shop\.raw"):
        fetch(end_time=end, partition=["c"], skip_when_empty=True).execute(Run(fetch()).context)


def test_events_reach_other_tasks_as_variables(chime: LakeChime) -> None:
    put(chime, event(snapshot=1, cluster="prod", tags={"say": 'it\'s "quoted" $HOME'}))
    run, task = Run(fetch()), fetch(end_time=datetime.now(UTC))
    plain = task.execute(run.context)
    assert [event.to_json() for event in read_variables(run.pushed["environment"])] == plain
    assert isinstance(task.environment, XComArg)


def test_too_many_for_a_variable_are_named_and_found_again(chime: LakeChime) -> None:
    chime.register(
        [
            event(snapshot=number, cluster="prod", tags={"long": "x" * 900})
            for number in range(1, 101)
        ]
    )
    put(chime, event(snapshot=1, cluster="prod", table="shop.other"))
    run = Run(fetch())
    plain = fetch(end_time=datetime.now(UTC), tags={"long": "x" * 900}).execute(run.context)
    variables = run.pushed["environment"]
    assert "LAKECHIME_EVENTS" not in variables
    assert [event.to_json() for event in read_variables(variables, chime)] == plain
    argument = encode_events(plain)
    assert len(argument) < 1000
    with pytest.raises(InvalidEventError, match="as reader="):
        decode_events(argument)
    assert [event.to_json() for event in decode_events(argument, chime)] == plain


def test_an_argument_survives_a_shell(chime: LakeChime) -> None:
    put(
        chime,
        event(
            snapshot=1,
            cluster="prod",
            partition=("it's", 7, None),
            tags={"say": '"quoted" $HOME `id` \\ é'},
        ),
    )
    [plain] = fetch(end_time=datetime.now(UTC)).execute(Run(fetch()).context)
    argument = encode_events([plain])
    printed = subprocess.run(
        ["sh", "-c", f"printf %s {argument}"], capture_output=True, text=True, check=True
    ).stdout
    assert printed == shlex.quote(printed) == argument
    assert [event.to_json() for event in decode_events(printed)] == [plain]
    assert decode_events(encode_events(None)) == decode_events(encode_events([])) == ()
    for wrong in ("", "no", argument[:-8], "[]"):
        with pytest.raises(InvalidEventError, match="does not hold events"):
            decode_events(wrong)


def test_the_plugin_has_the_macros() -> None:
    integrate_macros_plugins()
    events = [event().to_json()]
    environment = DAG("d", schedule=None).get_template_env()
    template = environment.from_string("{{ macros.lakechime.encode_events(events) }}")
    rendered = template.render(macros=macros, events=events)
    assert [event.to_json() for event in decode_events(rendered)] == events


def test_a_span_whose_events_expired_fails_instead_of_being_short(chime: LakeChime) -> None:
    times = registered(chime, 3)
    span = {"start_time": times[0], "end_time": times[-1] + 1}
    assert len(fetch(**span).execute(Run(fetch()).context)) == 3
    chime.expire(2**50)
    with pytest.raises(AirflowFailException, match="ms may have expired"):
        fetch(**span).execute(Run(fetch()).context)
    sleep(0.002)
    assert (
        fetch(start_time=times[-1] + 1, end_time=times[-1] + 2).execute(Run(fetch()).context) == []
    )
