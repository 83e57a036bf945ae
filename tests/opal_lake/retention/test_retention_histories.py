"""Random histories with savepoints and retention among them.

Readable versions are the model's, and the others are gone.
"""

from contextlib import suppress

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from opal_lake.engine.results import read_result
from opal_lake.errors import ConflictError, NotFoundError
from opal_lake.log.version_window import is_readable
from tests.kit.check import check_table
from tests.kit.replay import Replay
from tests.kit.strategies import History, Step, histories
from tests.opal_lake.build import HISTORIES, SEED, new_table
from tests.opal_lake.shop import LISTS_IN_FILES

_SECONDS = st.integers(0, 60)


@pytest.fixture(autouse=True)
def _digests_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every retention writes a digest of the log, and starts from the one before."""
    monkeypatch.setattr("opal_lake.retention.retention.NEW_COMMITS", 1)


@pytest.mark.slow_but_one
@pytest.mark.parametrize("file_format", ["parquet", "orc"])
def test_readable_versions_equal_the_model_after_random_retentions(file_format: str) -> None:
    @seed(SEED)
    @settings(
        max_examples=max(1, HISTORIES // 2),
        deadline=None,
        database=None,
        print_blob=True,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )
    @given(history=histories((file_format,)), draw=st.data())
    def run(history: History, draw: st.DataObject) -> None:
        replay = Replay(open_table=new_table(history.shape, LISTS_IN_FILES), shape=history.shape)
        for position, step in enumerate([*history.steps, Step(verb="reopen")]):
            with suppress(
                ConflictError
            ):  # it was given up: its rows are not there, or still pending
                replay.play(step)
            replay.see_versions()
            keep_or_retain(replay, position, draw)
        compare(replay)

    run()


def keep_or_retain(replay: Replay, position: int, draw: st.DataObject) -> None:
    table, dice = replay.table, draw.draw(st.integers(0, 7))
    root = table.snapshot_at().root
    readable = [version for version in range(root.version + 1) if is_readable(root, version)]
    if dice == 0:
        table.savepoint(f"s{position}", draw.draw(st.sampled_from(readable)))
    elif dice == 1 and root.savepoints:
        table.release(draw.draw(st.sampled_from(sorted(root.savepoints))))
    elif dice in (2, 3):
        table.retain(window=f"{draw.draw(_SECONDS)}s", grace=f"{draw.draw(_SECONDS)}s")
        forget_results(replay)
        replay.see_versions()
        assert table.retain(window="30d", grace="30d").version is None
        if dice == 2:
            compare(replay)
    replay.see_versions()


def forget_results(replay: Replay) -> None:
    """Results that are stored apart from commits expire with the window, too.

    Their jobs run again, and again have nothing to do.
    """
    replay.idle = {
        token: version
        for token, version in replay.idle.items()
        if read_result(replay.table.log.storage, token) is not None
    }


def compare(replay: Replay) -> None:
    root = replay.table.snapshot_at().root
    for version in replay.versions:
        if not is_readable(root, version):
            with pytest.raises(NotFoundError, match=f"version {version} of .* has expired"):
                replay.table.snapshot_at(version)
    replay.versions = [version for version in replay.versions if is_readable(root, version)]
    replay.compare_everywhere()
    replay.compare_read(None, None)
    assert check_table(replay.table) == []
