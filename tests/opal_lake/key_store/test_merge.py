"""The plan of merges: few layers for every probe, few rewrites of every entry."""

import random
from itertools import pairwise

import pytest

from opal_lake.data.segment import RunFile
from opal_lake.key_store.cache.protocol import GREATEST_WORD
from opal_lake.key_store.merge import (
    HURRIED_ENTRIES,
    NARROWEST,
    PATIENCE,
    TIER_FROM,
    hash_range,
    is_left_over,
    plan_merge,
    share_of,
    tier_of,
)
from opal_lake.layout import job_file_name, run_path

FAN_IN = 8


def run_of(name: str, entries: int, low: int = 0, high: int = GREATEST_WORD) -> RunFile:
    return RunFile(
        path=name,
        size=1,
        crc32=0,
        entries=entries,
        hash_low=low,
        hash_high=high,
        greatest_delta=0,
    )


def job(runs: dict[str, RunFile], number: int, rows: int) -> int:
    """Apply a job of some rows to the runs; return how many entries it writes."""
    merged = plan_merge(runs.values(), FAN_IN)
    entries = rows + sum(run.entries for run in merged)
    slots = 1 << max(0, (entries - 1) // 1_000_000).bit_length()
    for run in merged:
        del runs[run.path]
    for slot in range(slots):
        name = f"{number}-{slot}"
        runs[name] = run_of(name, max(1, entries // slots), *hash_range(slot, slots))
    return entries


def layers(runs: dict[str, RunFile]) -> float:
    return sum(share_of(run) for run in runs.values())


@pytest.mark.parametrize(
    "sizes",
    [
        (1,),
        (1000,),
        (100_000,),
        pytest.param((10_000_000,), marks=pytest.mark.slow),
        (1, 1000, 100_000, 3_000_000),
    ],
)
def test_layers_and_rewrites_grow_with_the_logarithm(sizes: tuple[int, ...]) -> None:
    dice = random.Random(1)
    runs = {"0": run_of("0", 10_000_000)}
    written = rows = 0
    tiers: set[int] = set()
    for number in range(1, 1001):
        size = dice.choice(sizes)
        written += job(runs, number, size)
        rows += size
        tiers |= {tier_of(run, FAN_IN) for run in runs.values()}
        assert layers(runs) <= FAN_IN * (len(tiers) + 1), number
    # The lowest tier is merged into itself.
    rewrites_of_lowest = 1000 * TIER_FROM / (FAN_IN - 1)
    assert written <= rows * (len(tiers) + 2) + rewrites_of_lowest


def test_run_of_few_keys_counts_as_a_whole_layer() -> None:
    hot = [run_of(str(number), 10_000, 77, 77) for number in range(FAN_IN - 1)]
    assert share_of(hot[0]) == 1.0
    assert plan_merge(hot, FAN_IN) == tuple(hot)
    narrow = run_of("slot", TIER_FROM, 0, int(2 * NARROWEST * GREATEST_WORD))
    assert share_of(narrow) == pytest.approx(2 * NARROWEST)


def test_hurried_job_merges_the_oldest_runs_only_after_many_layers() -> None:
    layers = FAN_IN - 1
    small = [run_of(f"s{number}", 50_000) for number in range(layers)]
    large = [run_of(f"l{number}", HURRIED_ENTRIES // 4) for number in range(PATIENCE * layers)]
    assert plan_merge(small, FAN_IN, hurried=True) == plan_merge(small, FAN_IN) == tuple(small)
    for count in (layers, PATIENCE * layers - 1):
        assert plan_merge(large[:count], FAN_IN) == tuple(large[:count])
        assert plan_merge(large[:count], FAN_IN, hurried=True) == ()
        assert plan_merge(small + large[: count - 1], FAN_IN, hurried=True) == tuple(small)
    assert plan_merge(large, FAN_IN, hurried=True) == tuple(large[:layers])


def test_merge_is_left_over_after_a_later_job_has_not_done_it() -> None:
    small, *large = [
        run_of(run_path(job_file_name(number, 0, "a")), HURRIED_ENTRIES // 4 if number else 50_000)
        for number in range(FAN_IN + 1)
    ]
    due = large[: FAN_IN - 1]
    for runs in ([], [small] * FAN_IN, due, [small, *due]):
        assert not is_left_over(runs, FAN_IN)
    for runs in (large, [*due, small]):
        assert is_left_over(runs, FAN_IN)


@pytest.mark.parametrize("slots", [1, 32])
def test_runs_of_the_newest_job_are_not_left_over(slots: int) -> None:
    runs: list[RunFile] = []
    for number in range(FAN_IN):
        for slot in range(slots):
            path = run_path(job_file_name(number, slot, "a"))
            runs.append(run_of(path, HURRIED_ENTRIES // slots, *hash_range(slot, slots)))
    assert not is_left_over(runs[:-slots], FAN_IN)
    assert is_left_over(runs, FAN_IN)


def test_hash_ranges_cover_all_hashes_once() -> None:
    for slots in (1, 2, 3, 8, 1000):
        ranges = [hash_range(slot, slots) for slot in range(slots)]
        assert ranges[0][0] == 0
        assert ranges[-1][1] == GREATEST_WORD
        assert all(after[0] == before[1] + 1 for before, after in pairwise(ranges))
