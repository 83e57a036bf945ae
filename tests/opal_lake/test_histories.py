"""Random histories on the pure core and on the model table: every version by every event time agrees.

OPAL_HISTORIES says how many: few by themselves, and hundreds or thousands in the slow tests, which set it.
"""

import os
import random
from collections.abc import Callable
from datetime import UTC, datetime

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from opal_lake.clock import ManualClock
from opal_lake.data import column_read, data_file
from opal_lake.definition.table_spec import plan_spec
from opal_lake.log import sections, visibility
from opal_lake.log.commit_log import CommitLog
from opal_lake.storage.memory import MemoryStorage
from opal_lake.table import Table, create_on
from tests.kit.check import check_table
from tests.kit.ids import CountingIds
from tests.kit.replay import Replay
from tests.kit.runs import MemoryRuns
from tests.kit.strategies import History, Shape, histories

HISTORIES = int(os.environ.get("OPAL_HISTORIES", "16"))
SEED = int(os.environ.get("OPAL_SEED", "0")) or random.SystemRandom().randrange(1, 1 << 32)


@pytest.fixture(autouse=True)
def _say_seed() -> None:
    print(f"OPAL_SEED={SEED}")  # pytest shows it beside a failure


@pytest.fixture(params=[1, 32], ids=["bases at every checkpoint", "bases now and then"])
def _fold_at(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """At every checkpoint: also lists and bases in as many files as there can be, and of data files the pages alone that are needed."""
    monkeypatch.setattr(visibility, "FOLD_AT_LOGS", request.param)
    if request.param == 1:
        monkeypatch.setattr(visibility, "SMALL_BASE_BYTES", 0)
        monkeypatch.setattr(visibility, "MERGE_RATIO", 0)
        monkeypatch.setattr(sections, "INLINE_BYTES", 0)
        monkeypatch.setattr(column_read, "WHOLE_BYTES", 0)
        monkeypatch.setattr(data_file, "INDEXED_BYTES", 0)
        monkeypatch.setattr(data_file, "GROUP_ROWS", 3)


@pytest.mark.usefixtures("_fold_at")
@pytest.mark.parametrize("file_format", ["parquet", "orc"])
def test_table_equals_model_at_every_version_and_event_time(file_format: str) -> None:
    @seed(SEED)
    @settings(
        max_examples=max(1, HISTORIES // 4),
        deadline=None,
        database=None,
        print_blob=True,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )
    @given(history=histories((file_format,)), draw=st.data())
    def run(history: History, draw: st.DataObject) -> None:
        replay = play(history)
        replay.compare_everywhere()
        compare_reads(replay, lambda most: draw.draw(st.integers(0, most)))
        assert check_table(replay.table) == []

    run()


def play(history: History) -> Replay:
    replay = Replay(open_table=new_table(history.shape), shape=history.shape)
    for step in history.steps:
        replay.play(step)
    return replay


def new_table(shape: Shape) -> Callable[[], Table]:
    """A new table in memory, and how to open it again with nothing kept."""
    storage, clock, ids = MemoryStorage(), ManualClock(), CountingIds()
    create_on(storage, plan_spec(shape.arrow_schema(), shape.layout()), clock, ids)
    return lambda: Table(
        log=CommitLog(storage=storage, clock=clock, ids=ids), cache=MemoryRuns(storage=storage)
    )


def compare_reads(replay: Replay, choose: Callable[[int], int]) -> None:
    """Through the public face: now, at a version, at an event time, at both, and at a commit's moment."""
    moments, last = replay.moments(), len(replay.versions) - 1
    version, moment = replay.versions[choose(last)], moments[choose(len(moments) - 1)]
    replay.compare_narrowed(
        version,
        replay.versions[choose(replay.versions.index(version))],
        ("2026-11-01", "2026-11-02")[choose(1)],
    )
    replay.compare_changes(*sorted((version, replay.versions[choose(last)])))
    replay.compare_changes(0, replay.versions[last])
    replay.compare_history_changes(*sorted((version, replay.versions[choose(last)])))
    replay.compare_history_changes(0, replay.versions[last])
    replay.compare_history_view(version)
    replay.compare_get(version, None)
    replay.compare_get(version, moment)
    replay.compare_read(None, None)
    replay.compare_read(version, None)
    replay.compare_read(None, moment)
    replay.compare_read(version, moment)
    timestamp_us = replay.table.log.read_commit(version).timestamp_us
    timestamp = datetime.fromtimestamp(timestamp_us // 1_000_000, UTC).replace(
        microsecond=timestamp_us % 1_000_000
    )
    assert replay.table.snapshot_at(timestamp=timestamp).version == version
    replay.compare_read(None, moment, timestamp=timestamp)
