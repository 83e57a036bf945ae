"""A share of `make stress NAME=crash`.

Jobs that are killed are run again, and the table is what the model says, sound, and without
left-overs.
"""

import os
import random
from pathlib import Path

import pytest

from tests.crash.__main__ import crash, crash_at_every_call, report
from tests.crash.site import STORES
from tests.crash.spark_bootstrap import crash_bootstraps
from tests.crash.statements import STATEMENTS
from tests.crash.story import Tally

SEED = os.environ.get("OPAL_SEED") or str(random.SystemRandom().randrange(1, 1 << 32))


@pytest.mark.slow
def test_killed_upserts_can_be_repeated(tmp_path: Path) -> None:
    tally = crash(tmp_path, 2, "7", ["local"], ["inline", "metagen"])
    assert sum(tally.kills.values()) == 2
    assert tally.failures == []


@pytest.mark.slow
@pytest.mark.parametrize("operation", STATEMENTS)
def test_a_statement_killed_at_every_call_to_its_store_applies_once(
    tmp_path: Path, operation: str
) -> None:
    """Without a token it applies once or not at all."""
    tally = crash_at_every_call(tmp_path, operation)
    print(report(tally, ["local"]))
    assert tally.failures == []
    assert sum(tally.kills.values()) > 20


@pytest.mark.slow
@pytest.mark.s3
def test_any_job_that_is_killed_anywhere_can_be_repeated(tmp_path: Path) -> None:
    print(f"OPAL_SEED={SEED}")
    tally = crash(tmp_path, 16, SEED, STORES)
    print(report(tally, STORES))
    assert tally.failures == []


@pytest.mark.slow
def test_a_bootstrap_whose_driver_is_killed_can_be_repeated(tmp_path: Path) -> None:
    print(f"OPAL_SEED={SEED}")
    tally = Tally()
    crash_bootstraps(tmp_path, 1, ["no-links"], random.Random(SEED), tally)
    assert tally.failures == []
