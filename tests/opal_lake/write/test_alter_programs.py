"""Random programs of changes, ingests, rewrites and restores agree with a model at every step."""

import pytest

from tests.opal_lake.write.changed_tables import Program


@pytest.mark.parametrize("file_format", ["parquet", "orc"])
@pytest.mark.parametrize("seed", range(12))
def test_reads_agree_with_the_model_at_every_step(seed: int, file_format: str) -> None:
    Program(seed, file_format).run(steps=8)


@pytest.mark.slow
@pytest.mark.parametrize("file_format", ["parquet", "orc"])
@pytest.mark.parametrize("first", range(100, 300, 20))
def test_long_programs_agree_with_the_model(first: int, file_format: str) -> None:
    for seed in range(first, first + 20):
        Program(seed, file_format).run(steps=20)
