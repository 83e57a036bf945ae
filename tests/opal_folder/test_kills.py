"""kill -9 before every step of a run.

Readers see the old master or the new one, and the next run completes it.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SEED = os.environ.get("OPAL_SEED", "1")
ENOUGH, PARTS = 200, 4


def kills(*arguments: str) -> int:
    command = [sys.executable, "-m", "tests.opal_folder.kills", *arguments]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=1800, cwd=Path(__file__).parents[3]
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return int(done.stdout)


def test_a_run_on_local_files_may_be_killed_before_some_of_its_steps(tmp_path: Path) -> None:
    assert kills(str(tmp_path), "--every", "7") >= 6


@pytest.mark.s3
def test_a_run_on_s3_may_be_killed_before_some_of_its_requests(s3_options: dict[str, str]) -> None:
    assert (
        kills(
            "s3://lake/killed-some",
            "--every",
            "31",
            "--first",
            "8",
            "--endpoint",
            s3_options["endpoint_url"],
        )
        >= 2
    )


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_a_run_on_local_files_may_be_killed_before_every_step_and_so_may_the_next_ones(
    tmp_path: Path, part: int
) -> None:
    """Each part has every fourth step."""
    assert kills(str(tmp_path), *part_of(part)) >= ENOUGH / PARTS


@pytest.mark.slow
@pytest.mark.s3
@pytest.mark.parametrize("part", range(PARTS))
def test_a_run_on_s3_may_be_killed_before_every_request_and_so_may_the_next_ones(
    s3_options: dict[str, str], part: int
) -> None:
    assert (
        kills(f"s3://lake/killed-{part}", *part_of(part), "--endpoint", s3_options["endpoint_url"])
        >= ENOUGH / PARTS
    )


def part_of(part: int) -> list[str]:
    return [
        "--every",
        str(PARTS),
        "--first",
        str(part),
        "--random",
        str(160 // PARTS),
        "--seed",
        f"{SEED}/{part}",
    ]
