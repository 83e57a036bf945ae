"""Writers that are killed or paused: no other writer is blocked for long, and never do two believe that they created the same file."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]


def outcomes(what: str, folder: Path, hard_links: str) -> list[dict[str, Any]]:
    command = [
        sys.executable,
        "-m",
        "tests.opal_lake.storage.killed_writers",
        what,
        str(folder),
        hard_links,
    ]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize("hard_links", ["true", "false"])
def test_a_writer_that_is_killed_at_any_call_keeps_nobody_out(
    hard_links: str, tmp_path: Path
) -> None:
    *killed, last = outcomes("killed", tmp_path, hard_links)
    assert last["status"] == 11
    assert len(killed) >= (8 if hard_links == "false" else 4)
    for one in killed:
        assert one["status"] == -9, one
        assert one["created"] is not one["was_there"], one
        assert one["waits"] == 0, one


@pytest.mark.parametrize("hard_links", ["true", "false"])
def test_a_writer_that_pauses_at_any_call_creates_nothing_that_another_one_created(
    hard_links: str, tmp_path: Path
) -> None:
    *slept, last = outcomes("stopped", tmp_path, hard_links)
    assert (last["slept"], last["awake"], last["woken"]) == (False, False, 11)
    assert len(slept) >= (8 if hard_links == "false" else 4)
    for one in slept:
        assert one["woken"] == (10 if one["awake"] else 11), one
    assert {one["awake"] for one in slept} == {True, False}


def test_of_two_that_take_a_turn_over_and_the_one_who_had_it_one_creates_the_file(
    tmp_path: Path,
) -> None:
    *slept, last = outcomes("takers", tmp_path, "false")
    assert len(slept) >= 9
    assert last["third"] == 10
    assert {one["third"] for one in slept} == {10, 11}, slept


@pytest.mark.parametrize("hard_links", ["true", "false"])
def test_ten_writers_of_a_hundred_names_with_kills_and_pauses(
    hard_links: str, tmp_path: Path
) -> None:
    (told,) = outcomes("crowd", tmp_path, hard_links)
    assert sorted(told["statuses"])[-7:] == [11] * 7
