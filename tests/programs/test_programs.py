"""Programs of statements, ingests, rewrites, evolution and restores agree with their model.

OPAL_SEED names the first program of the quick test; those of the slow test follow it.
OPAL_PROGRAMS is their number. `make stress NAME=programs` runs thousands.
"""

import os
import random

import pytest

from tests.programs.run import run_program

SEED = int(os.environ.get("OPAL_SEED", "0")) or random.SystemRandom().randrange(1, 1 << 32)
PROGRAMS = int(os.environ.get("OPAL_PROGRAMS", "80"))
QUICK = 4
CHUNK = 20


@pytest.mark.parametrize("number", range(QUICK))
def test_a_program_agrees_with_the_model(number: int) -> None:
    run_program(SEED + number)


def test_the_same_seed_makes_the_same_program() -> None:
    assert run_program(7, steps=4) == run_program(7, steps=4)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(QUICK, QUICK + PROGRAMS, CHUNK))
def test_many_programs_agree_with_the_model(first: int) -> None:
    for number in range(first, min(first + CHUNK, QUICK + PROGRAMS)):
        run_program(SEED + number)
