"""kill -9 before every step of a run: readers see the old master or the new one, and the next run completes it."""

import subprocess
import sys
from pathlib import Path

import pytest


def kills(*arguments: str) -> int:
    command = [sys.executable, "-m", "tests.opal_lake.mutate.kills", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, cwd=Path(__file__).parents[3])
    assert done.returncode == 0, done.stdout + done.stderr
    return int(done.stdout)


def test_a_run_on_local_files_may_be_killed_before_some_of_its_steps(tmp_path: Path) -> None:
    assert kills(str(tmp_path), "7") >= 6


@pytest.mark.s3
def test_a_run_on_s3_may_be_killed_before_some_of_its_requests(s3_options: dict[str, str]) -> None:
    assert kills("s3://lake/killed-some", "31", "8", s3_options["endpoint_url"]) >= 2


@pytest.mark.slow
@pytest.mark.parametrize("turn", range(3))
def test_a_run_on_local_files_may_be_killed_before_every_step(tmp_path: Path, turn: int) -> None:
    assert kills(str(tmp_path), "1") >= 40


@pytest.mark.slow
@pytest.mark.s3
def test_a_run_on_s3_may_be_killed_before_every_request(s3_options: dict[str, str]) -> None:
    assert kills("s3://lake/killed-every", "1", "0", s3_options["endpoint_url"]) >= 60
