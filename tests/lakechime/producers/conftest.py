"""A store of events, and what it holds of a table."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from lakechime import LakeChime


@pytest.fixture
def client(tmp_path: Path) -> Iterator[LakeChime]:
    with LakeChime.open(f"sqlite:///{tmp_path}/lakechime.db") as opened:
        yield opened
