"""Over a simulated week the spread by predicted load is better than those by messages and by count, and restarts little."""

import pytest

from tests.bench.plan import Shop, simulate


@pytest.mark.parametrize("seed", range(4))
def test_by_load_the_fullest_process_has_less_to_do(seed: int) -> None:
    found = simulate(Shop(seed, 32), processes=4)
    assert found.by_load < 1.2 * found.at_best  # a partition is never shared
    assert found.by_load < 0.87 * found.by_count
    assert found.by_load < 0.95 * found.by_messages
    assert found.restarts < 0.5 * found.from_scratch_restarts
