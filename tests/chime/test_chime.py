"""Short runs of `make stress NAME=chime`: consumers process each event once."""

import os
import random
from pathlib import Path

import pytest

from tests.chime.__main__ import crash_of, report, tell
from tests.chime.site import Site
from tests.fixtures_postgres import Postgres, postgres_folder, postgres_server

SEED = os.environ.get("OPAL_SEED") or str(random.SystemRandom().randrange(1, 1 << 32))


@pytest.mark.postgres
def test_nothing_is_missed_when_processes_are_killed(postgres: Postgres, tmp_path: Path) -> None:
    site = Site(url=postgres.new_database(), folder=tmp_path, tables=2, snapshots=600)
    verdict = tell(site, SEED, processes=(3, 2), pause_seconds=0.3)
    print(report("postgres", verdict))
    assert verdict.failures == []
    assert verdict.expired > 0


def test_nothing_is_missed_on_sqlite_when_processes_are_killed(tmp_path: Path) -> None:
    site = Site(url=f"sqlite:///{tmp_path}/lakechime.db", folder=tmp_path, tables=2, snapshots=600)
    verdict = tell(site, SEED, processes=(3, 2), pause_seconds=0.15)
    print(report("sqlite", verdict))
    assert verdict.failures == []
    assert verdict.expired > 0


@pytest.mark.slow
@pytest.mark.postgres
@pytest.mark.usefixtures("postgres")  # says so where there is none
def test_nothing_is_missed_when_processes_and_the_database_crash(tmp_path: Path) -> None:
    programs = postgres_folder()
    assert programs is not None
    with postgres_server(programs) as server:
        site = Site(url=server.new_database(), folder=tmp_path, tables=6, snapshots=1_500)
        verdict = tell(site, SEED, processes=(8, 4), pause_seconds=0.5, restart=crash_of(server))
    print(report("postgres", verdict))
    assert verdict.restarts == 1
    assert verdict.failures == []
    assert verdict.expired > 0
