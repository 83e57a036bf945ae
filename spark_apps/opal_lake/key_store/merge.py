"""When runs are merged: by tiers of size, so that few runs are probed and written again.

The share of a run is the part of all hashes between its first and last; it counts as 1 where the
run has fewer than `TIER_FROM` entries or covers less than `NARROWEST`. Its tier is the floor of the
logarithm, to the base `fan_in`, of entries / share / `TIER_FROM`, and at least 0. A tier is full
when its shares add up to `fan_in - 1`: then the next job that writes runs anyway takes its runs,
and those of the tiers below, into its own, which count as 1 in the next tier. Neither needs the
other's outcome: a run that is merged twice costs space, and nothing else.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

from opal_lake.data.segment import RunFile
from opal_lake.key_store.cache.protocol import GREATEST_WORD
from opal_lake.layout import job_number

TIER_FROM = 4096  # entries over all hashes: fewer are all the lowest tier
NARROWEST = 1 / (
    1 << 16
)  # of all hashes, the range of a slot: what covers less holds few keys with many versions
HURRIED_ENTRIES = 1 << 20  # about as many a core merges and writes in half a second
PATIENCE = 4  # times the layers of a merge: as many a hurried job lets a tier have before it merges some itself
_ALMOST = 0.05  # of a layer: the least and greatest hashes of a range leave a bit at its ends


def plan_merge(runs: Iterable[RunFile], fan_in: int, hurried: bool = False) -> tuple[RunFile, ...]:
    """The runs that the next job should take into its own; mostly none.

    A hurried job leaves merges of more than `HURRIED_ENTRIES` to others (`is_left_over`), until there are `PATIENCE` times as many layers.
    Then it takes the oldest ones, as many as make a merge: more would hold it up for longer.
    """
    tiers: dict[int, list[RunFile]] = defaultdict(list)
    for run in runs:
        tiers[tier_of(run, fan_in)].append(run)
    chosen: list[RunFile] = []
    below: list[RunFile] = []
    carried = 0
    for tier in sorted(tiers):
        below += tiers[tier]
        layers = sum(map(share_of, tiers[tier])) + carried
        is_left = hurried and sum(run.entries for run in below) > HURRIED_ENTRIES
        if layers + _ALMOST < (PATIENCE if is_left else 1) * (fan_in - 1):
            carried = 0
            continue
        if is_left:
            return tuple(_oldest(tiers[tier], fan_in - 1))
        chosen, carried = list(below), 1
    return tuple(chosen)


def is_left_over(runs: Iterable[RunFile], fan_in: int) -> bool:
    """Whether hurried jobs have left a merge: it was due before the newest job wrote its runs, and any other would have done it."""
    found = [(job_number(run.path), run) for run in runs]
    earlier = [run for number, run in found if number != found[-1][0]]
    return sum(run.entries for run in plan_merge(earlier, fan_in)) > HURRIED_ENTRIES


def _oldest(runs: Sequence[RunFile], layers: int) -> Iterator[RunFile]:
    """So many layers of them; runs come in the order of their commits."""
    taken = 0.0
    for run in runs:
        if taken + _ALMOST >= layers:
            return
        taken += share_of(run)
        yield run


def tier_of(run: RunFile, fan_in: int) -> int:
    """By how many entries there were if the run covered all hashes."""
    return max(0, int(math.log(run.entries / share_of(run) / TIER_FROM, fan_in)))


def share_of(run: RunFile) -> float:
    """The part of all hashes that a run covers. Few entries, or few keys, tell little: they count as spread over all."""
    share = (run.hash_high - run.hash_low) / GREATEST_WORD
    return 1.0 if run.entries < TIER_FROM or share < NARROWEST else share


def hash_range(slot: int, slots: int) -> tuple[int, int]:
    """The least and greatest first hash word of one of equal ranges, cut by the upper 32 bits."""
    least, next_least = (-(-(number << 32) // slots) << 32 for number in (slot, slot + 1))
    return least, next_least - 1
