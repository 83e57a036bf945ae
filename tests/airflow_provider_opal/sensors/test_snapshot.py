"""A SnapshotTriggerSensor before its table is there."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.exceptions import TaskDeferred
from structlog.testing import capture_logs

from airflow_provider_opal import SnapshotTriggerSensor
from airflow_provider_opal.triggers.snapshot import SnapshotTrigger
from opal_lake.storage.open import open_storage
from tests.airflow_provider_opal.build import Lake, put, seen
from tests.opal_lake.shop import create


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(
        "AIRFLOW_CONN_OPAL_DEFAULT", json.dumps({"conn_type": "opal", "host": str(tmp_path)})
    )
    return tmp_path


def sensor(**more: Any) -> SnapshotTriggerSensor:
    return SnapshotTriggerSensor(
        **{"task_id": "s", "table": "shop.users", "deferrable": False, **more}
    )


@pytest.mark.parametrize("start, after", [("head", 0), ("all", 0), (2, 2)])
def test_it_waits_says_so_once_and_takes_all_that_the_table_then_has(
    root: Path, start: Any, after: int
) -> None:
    lake, waiting = Lake(), sensor(start=start)
    with capture_logs() as logs:
        assert [waiting.poke(lake.run(waiting, run)).is_done for run in ("one", "one", "two")] == [
            False
        ] * 3
    assert ["does not exist yet" in log["event"] for log in logs] == [True]
    table = create(open_storage(str(root / "shop" / "users")))
    put(table, "a", 1)
    last = put(table, "b", 2)
    assert sensor(start=start).execute(lake.run(waiting, "two")) == {"from": after, "to": last}
    assert seen(lake, waiting, "d.s") == last


def test_it_waits_deferred_too(root: Path) -> None:
    lake, waiting = Lake(), sensor(deferrable=True)
    with pytest.raises(TaskDeferred) as deferred:
        waiting.execute(lake.run(waiting, "one"))
    path, arguments = deferred.value.trigger.serialize()
    assert (path.rpartition(".")[2], arguments["after"]) == ("SnapshotTrigger", 0)

    async def fired() -> Any:
        events = SnapshotTrigger(**{**arguments, "poke_interval_s": 0.01}).run()
        wait = asyncio.ensure_future(anext(events))
        await asyncio.sleep(0.1)
        assert not wait.done()
        table = create(open_storage(str(root / "shop" / "users")))
        put(table, "a", 1)
        return (await asyncio.wait_for(wait, 20)).payload

    event = asyncio.run(fired())
    assert waiting.resume(lake.run(waiting, "one"), event) == event
    assert event["from"] == 0


def test_versions_are_looked_for_at_ticks_in_every_mode(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = create(open_storage(str(root / "shop" / "users")))
    put(table, "a", 1)
    lake = Lake()
    pace = {"start_timestamp": 0, "frequency": 1, "frequency_unit": "hour"}
    here, deferred = sensor(**pace), sensor(**pace, deferrable=True)
    run, other = lake.run(here, "one"), lake.run(deferred, "two")
    assert not here.poke(run).is_done
    with pytest.raises(TaskDeferred) as waits:
        deferred.execute(other)
    last = put(table, "b", 2)
    assert not here.poke(run).is_done, "the tick has been looked at"
    run["ti"].try_number += 1
    assert here.poke(run).is_done
    monkeypatch.setattr("lakechime.triggers.schedule._FIXED_MS", {"HOUR": 500})
    trigger = SnapshotTrigger(**waits.value.trigger.serialize()[1])

    async def fired() -> Any:
        return (await asyncio.wait_for(anext(trigger.run()), 20)).payload

    assert asyncio.run(fired())["to"] == last


def test_its_mode_may_be_airflow_s() -> None:
    modes = {
        mode: SnapshotTriggerSensor(task_id="t", tables=["a.b", "a.c"], mode=mode)
        for mode in ("any", "all", "poke", "reschedule")
    }
    assert {mode: (sensor.mode, sensor.tables_mode) for mode, sensor in modes.items()} == {
        "any": ("poke", "any"),
        "all": ("poke", "all"),
        "poke": ("poke", "any"),
        "reschedule": ("reschedule", "any"),
    }
    assert modes["reschedule"].reschedule
    with pytest.raises(ValueError, match="mode='each' is unknown; use 'any'"):
        SnapshotTriggerSensor(task_id="t", tables=["a.b"], mode="each")
