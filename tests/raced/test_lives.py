"""Operations inside the store calls of others, deaths, lost answers and wrong clocks.

Every version of every life is the model's.

OPAL_SEED names the life of the quick test; those of the slow tests follow it. All of them make some
16,000 comparisons, about 200 a life.
"""

import os
import random

import pytest

from tests.raced.life import Life

SEED = int(os.environ.get("OPAL_SEED", "0")) or random.SystemRandom().randrange(1, 1 << 32)
STEPS = 40
LIVES = 80


def live(seed: int, steps: int) -> int:
    """Live one life, and name its seed where it fails."""
    print(f"OPAL_SEED={seed}")  # pytest shows it beside a failure
    life = Life(seed)
    comparisons = life.run(steps)
    print(dict(life.happened.most_common()), f"{comparisons} comparisons")
    return comparisons


def test_a_raced_life_agrees_with_the_model() -> None:
    live(SEED, 15)


def test_the_same_seed_makes_the_same_life() -> None:
    lives = [Life(5004) for _ in range(2)]
    comparisons = [life.run(8) for life in lives]
    assert comparisons[0] == comparisons[1]
    assert lives[0].happened == lives[1].happened


@pytest.mark.slow
@pytest.mark.parametrize("number", range(1, LIVES + 1))
def test_many_raced_lives_agree_with_the_model(number: int) -> None:
    live(SEED + number, STEPS)
