"""Processes that run statements at once on one table."""

import os
import random
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.programs.together import Site, frame, run_together, together, update_own_rows

SEED = int(os.environ.get("OPAL_SEED", "0")) or random.SystemRandom().randrange(1, 1 << 32)
PROCESSES = 5
WRITERS = 8


@pytest.mark.slow
@pytest.mark.parametrize("number", range(4))
def test_versions_of_five_processes_are_those_of_their_jobs_in_order(
    tmp_path: Path, number: int
) -> None:
    site = Site(uri=str(tmp_path / "t"), options={}, folder=tmp_path)
    happened = run_together(site, SEED + number, PROCESSES, jobs=30)
    print(f"OPAL_SEED={SEED + number}: {dict(happened)}")


@pytest.mark.slow
@pytest.mark.s3
def test_versions_of_five_processes_on_s3_are_those_of_their_jobs_in_order(
    tmp_path: Path, s3_options: Mapping[str, str]
) -> None:
    site = Site(uri=f"s3://lake/together/{tmp_path.name}", options=s3_options, folder=tmp_path)
    happened = run_together(site, SEED, PROCESSES, jobs=15)
    print(f"OPAL_SEED={SEED}: {dict(happened)}")


@pytest.mark.slow
def test_writers_of_different_rows_of_the_same_files_never_conflict(tmp_path: Path) -> None:
    site = Site(uri=str(tmp_path / "t"), options={}, folder=tmp_path)
    table = site.create()
    table.set_properties({"segment_rows": 1000})
    rows = [{1: key, 2: 1, 3: 0, 4: "a"} for key in range(1000, 1000 + 10 * WRITERS)]
    table.upsert(frame(rows))
    assert len(table.files()) < 20
    times = 10
    arguments = [(site, process, WRITERS, times) for process in range(WRITERS)]
    assert together(update_own_rows, arguments) == [0] * WRITERS
    counts = table.read(where="id >= 1000")["n"].to_pylist()
    assert counts == [times] * len(rows)
