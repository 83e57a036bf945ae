"""Random histories on the pure core and on the model table.

Every version by every event time agrees.

OPAL_HISTORIES is their number: a few by default, and hundreds or thousands in the slow tests.
"""

from collections.abc import Callable
from datetime import UTC, datetime

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from opal_lake.data import column_read, data_file
from opal_lake.log.tuning import Tuning
from tests.kit.check import check_table
from tests.kit.replay import Replay
from tests.kit.strategies import History, histories
from tests.opal_lake.build import HISTORIES, SEED, play


@pytest.fixture(autouse=True)
def _say_seed() -> None:
    print(f"OPAL_SEED={SEED}")  # pytest shows it with a failure


@pytest.fixture(params=[1, 32], ids=["bases at every checkpoint", "bases now and then"])
def tuning(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Tuning:
    """Fold at every checkpoint, or now and then.

    At every checkpoint, lists and bases are also in as many files as possible, and only the needed
    pages of data files are read.
    """
    if request.param != 1:
        return Tuning(fold_at_logs=request.param)
    monkeypatch.setattr(column_read, "WHOLE_BYTES", 0)
    monkeypatch.setattr(data_file, "INDEXED_BYTES", 0)
    monkeypatch.setattr(data_file, "GROUP_ROWS", 3)
    return Tuning(fold_at_logs=1, small_base_bytes=0, base_merge_ratio=0, inline_bytes=0)


@pytest.mark.parametrize("file_format", ["parquet", "orc"])
def test_table_equals_model_at_every_version_and_event_time(
    file_format: str, tuning: Tuning
) -> None:
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
        replay = play(history, tuning)
        replay.compare_everywhere()
        compare_reads(replay, lambda most: draw.draw(st.integers(0, most)))
        assert check_table(replay.table) == []

    run()


def compare_reads(replay: Replay, choose: Callable[[int], int]) -> None:
    """Compare reads through the public API.

    They are of now, at a version, at an event time, at both, and at a commit's time.
    """
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
