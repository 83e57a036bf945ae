"""Over a simulated week, partitions by predicted load are spread best, with few restarts."""

import pytest

from tests.bench.plan import Shop, simulate


@pytest.mark.parametrize("seed", range(4))
def test_by_load_the_fullest_process_has_less_to_do(seed: int) -> None:
    result = simulate(Shop(seed, 32), processes=4)
    assert result.by_load < 1.2 * result.at_best  # a partition is never shared
    assert result.by_load < 0.87 * result.by_count
    assert result.by_load < 0.95 * result.by_messages
    assert result.restarts < 0.5 * result.from_scratch_restarts
