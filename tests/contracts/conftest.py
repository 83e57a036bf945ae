"""Fixtures of the contracts.

Every test of caches runs with every form of near runs, and with every store where that may matter.
Tests of LakeChime's client run over every database that keeps events.
"""

import uuid
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import pytest

from lakechime import LakeChime
from opal_lake.key_store.cache import near_runs
from opal_lake.key_store.cache.near_runs import BACKENDS
from opal_lake.storage import Storage, open_storage
from tests.fixtures_lakechime import serving, sqlite_url
from tests.fixtures_spark import spark

__all__ = ["spark"]


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=["memory", "local", pytest.param("s3", marks=pytest.mark.s3)])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    if request.param == "memory":
        return open_storage(f"memory://{uuid.uuid4().hex}")
    if request.param == "s3":
        return open_storage(
            f"s3://lake/runs/{uuid.uuid4().hex}", request.getfixturevalue("s3_options")
        )
    return open_storage(str(tmp_path / "table"))


@pytest.fixture
def local(tmp_path: Path) -> Storage:
    return open_storage(str(tmp_path / "table"))


@pytest.fixture(autouse=True)
def _few_blocks_stay_far(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every probe copy its run into the cache if there is room.

    So tests choose cached or remote by the size of the cache.
    """
    monkeypatch.setattr(near_runs, "FEW_BLOCKS", -1)


CHIMES = [
    "sqlite",
    pytest.param("postgres", marks=pytest.mark.postgres),
    "service over sqlite",
    pytest.param("service over postgres", marks=pytest.mark.postgres),
]


@pytest.fixture(params=CHIMES)
def chime_address(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[dict[str, str]]:
    """Yield the arguments of `LakeChime.open` for an empty store of the test's own.

    Another way to reach a store is another parameter here.
    """
    with _chime_address(request, tmp_path) as address:
        yield address


@contextmanager
def _chime_address(request: pytest.FixtureRequest, folder: Path) -> Iterator[dict[str, str]]:
    in_postgres = "postgres" in request.param
    database = (
        request.getfixturevalue("postgres").database()
        if in_postgres
        else nullcontext(sqlite_url(folder))
    )
    with database as url:
        if not request.param.startswith("service"):
            yield {"url": url}
            return
        with serving(url) as served:
            yield {"url": served.url, "token": served.tokens["admin"]}


@pytest.fixture
def chime(chime_address: dict[str, str]) -> Iterator[LakeChime]:
    with LakeChime.open(**chime_address) as client:
        yield client


@pytest.fixture(scope="module", params=CHIMES)
def empty_chime(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LakeChime]:
    """One store for all tests that put nothing into it."""
    with (
        _chime_address(request, tmp_path_factory.mktemp("chime")) as address,
        LakeChime.open(**address) as client,
    ):
        yield client
        assert (client.head(), client.consumers()) == (0, [])


@pytest.fixture(autouse=True)
def _no_tiny_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Store runs of few entries in files, as those of many are."""
    monkeypatch.setattr(near_runs, "TINY_ENTRIES", -1)
