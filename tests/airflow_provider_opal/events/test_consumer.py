"""Runs that are killed, overtaken, tried again and cleared share no event."""

from collections.abc import Callable
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowSkipException
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from airflow_provider_opal import SnapshotTriggerSensor
from airflow_provider_opal.events.claims import CLAIMS
from lakechime import LakeChime
from tests.airflow_provider_opal.chime import Run, chime, event, put

__all__ = ["chime"]

STEPS = 9  # one more than a run has that nobody overtakes
Step = tuple[
    str, int, str | None
]  # a run, the step before which it stops, and the run that then overtakes it; None: it is killed


class Killed(BaseException):
    """A death as by SIGKILL: nothing of the run goes on."""


class Steps:
    """The effects of a run as steps, before each of which something may happen."""

    def __init__(self) -> None:
        self.before: Callable[[], None] = lambda: None

    def of(self, effect: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            self.before()
            return effect(*arguments, **named)

        return call


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> Steps:
    steps = Steps()
    monkeypatch.setattr(LakeChime, "put_watermark", steps.of(LakeChime.put_watermark))
    return steps


class World:
    """Runs of one consumer, and what came of each."""

    def __init__(self, client: LakeChime, steps: Steps) -> None:
        self.client, self.steps = client, steps
        self.start = client.head()
        self.runs: dict[str, Run] = {}
        self.done: dict[str, tuple[Any, list[str]]] = {}

    def sensor(self) -> SnapshotTriggerSensor:
        what = {
            "tables": ["shop.raw"],
            "consumer": f"c{self.start}",
            "start": self.start,
            "max_events": 2,
            "skip_when_empty": True,
        }
        return SnapshotTriggerSensor(task_id="s", **what)

    def register(self, count: int) -> None:
        for _ in range(count):
            number = self.client.head() + 1
            put(self.client, event("shop.raw" if number % 3 else "shop.other", snapshot=number))

    def run(self, name: str, at: int = -1, then: str | None = None) -> None:
        """One try. Before its step `at` another run takes what there is, or it is killed."""
        run, outer, left = self._run(name), self.steps.before, at

        def before_step() -> None:
            nonlocal left
            left -= 1
            if left == -1:
                if then is None:
                    raise Killed
                self.run(then)

        run.pushed.clear()  # as Airflow does before a try
        self.steps.before = before_step
        try:
            returned = self.sensor().execute(run.context)  # type: ignore[arg-type]
        except Killed:
            pass
        except AirflowSkipException:
            assert not run.pushed.get("events"), "who takes nothing has nothing"
        else:
            result = returned, [event["snapshot_id"] for event in run.pushed["events"]]
            assert self.done.setdefault(name, result) == result, "a cleared run has what it had"
        finally:
            self.steps.before = outer

    def _run(self, name: str) -> Run:
        if name not in self.runs:
            run = self.runs[name] = Run(self.sensor(), name)
            run.context["ti"].xcom_push = self.steps.of(run.context["ti"].xcom_push)
            run.store.set = self.steps.of(run.store.set)  # type: ignore[method-assign]
        return self.runs[name]

    def check(self) -> None:
        """Check that each event was handed to one run that succeeded."""
        for name in [name for name in self.runs if name not in self.done]:
            self.run(name)
        snapshots = [
            stored.event.snapshot_id
            for stored in self.client.events(["shop.raw"], after=self.start).events
        ]
        for number in range(len(snapshots) // 2 + 1):
            self.run(f"rest {number}")
        assert (
            sorted((snapshot for _, events in self.done.values() for snapshot in events), key=int)
            == snapshots
        )
        claims = self.client.watermark(f"c{self.start}", CLAIMS)
        assert claims is None or claims.value["runs"] == {}  # type: ignore[call-overload, index]


@pytest.mark.slow_but_one
@pytest.mark.parametrize("overtaken", [False, True], ids=["killed", "overtaken"])
@pytest.mark.parametrize(
    "later", [["one"], ["two", "one"], ["two", "three", "one"], ["two", "one", "two", "one"]]
)
def test_each_event_is_in_one_successful_run_wherever_runs_are_killed(
    chime: LakeChime, steps: Steps, later: list[str], overtaken: bool
) -> None:
    for at in range(STEPS):
        world = World(chime, steps)
        world.register(2)
        world.run("one", at, "zero" if overtaken else None)
        world.register(2)
        for name in later:
            world.run(name)
        world.check()


names = st.sampled_from(["one", "two", "three"])
script = st.lists(
    st.integers(0, 3) | st.tuples(names, st.integers(-1, STEPS), names | st.none()), max_size=8
)


@pytest.mark.slow
@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(script=script)
@example(
    script=[1, ("one", 2, None), ("two", -1, None), ("one", -1, None)]
)  # another took the same range
@example(
    script=[1, ("one", 4, None), 1, ("two", -1, None), ("one", -1, None)]
)  # another took what came next
def test_runs_that_are_killed_overtaken_and_cleared_in_any_order_share_the_events(
    chime: LakeChime, steps: Steps, script: list[int | Step]
) -> None:
    world = World(chime, steps)
    for step in script:
        if isinstance(step, int):
            world.register(step)
        elif step[0] != step[2]:  # nobody overtakes itself: Airflow runs one try at a time
            world.run(*step)
    world.check()
