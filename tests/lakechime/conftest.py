"""Databases of a test's own."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return the URL of an empty database."""
    make: Callable[[], str] = (
        request.getfixturevalue("new_postgres")
        if request.param == "postgres"
        else lambda: f"sqlite:///{tmp_path}/lakechime.db"
    )
    return make()


@pytest.fixture
def new_postgres(request: pytest.FixtureRequest) -> Iterator[Callable[[], str]]:
    with ExitStack() as databases:
        yield lambda: str(databases.enter_context(request.getfixturevalue("postgres").database()))
