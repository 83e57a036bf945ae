"""Writers that are killed or paused.

No other writer is blocked for long, and never do two believe that they created the same file.
"""

from pathlib import Path

import pytest

from tests.opal_lake.storage.build import outcomes


@pytest.mark.parametrize("hard_links", ["true", "false"])
def test_writer_killed_at_any_call_blocks_no_other_writer(hard_links: str, tmp_path: Path) -> None:
    *killed, last = outcomes("killed", tmp_path, hard_links)
    assert last["status"] == 11
    assert len(killed) >= (8 if hard_links == "false" else 4)
    for line in killed:
        assert line["status"] == -9, line
        assert line["created"] is not line["was_there"], line
        assert line["waits"] == 0, line


@pytest.mark.parametrize("hard_links", ["true", "false"])
def test_writer_paused_at_any_call_creates_no_file_of_another_writer(
    hard_links: str, tmp_path: Path
) -> None:
    *slept, last = outcomes("stopped", tmp_path, hard_links)
    assert (last["slept"], last["awake"], last["woken"]) == (False, False, 11)
    assert len(slept) >= (8 if hard_links == "false" else 4)
    for line in slept:
        assert line["woken"] == (10 if line["awake"] else 11), line
    assert {line["awake"] for line in slept} == {True, False}


def test_one_of_three_writers_that_share_a_turn_creates_the_file(
    tmp_path: Path,
) -> None:
    *slept, last = outcomes("takers", tmp_path, "false")
    assert len(slept) >= 9
    assert last["third"] == 10
    assert {line["third"] for line in slept} == {10, 11}, slept


@pytest.mark.parametrize("hard_links", ["true", "false"])
def test_each_of_a_hundred_names_has_one_writer_in_spite_of_kills_and_pauses(
    hard_links: str, tmp_path: Path
) -> None:
    (crowd,) = outcomes("crowd", tmp_path, hard_links)
    assert sorted(crowd["statuses"])[-7:] == [11] * 7
