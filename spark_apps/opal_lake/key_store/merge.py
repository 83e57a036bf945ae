"""The choice of runs to merge: by tiers of size, so that few runs are probed and written again.

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

# Entries over all hashes: runs with fewer are all in the lowest tier.
TIER_FROM = 4096
# A share of all hashes, the range of a slot: a narrower run has few keys with many versions.
NARROWEST = 1 / (1 << 16)
# About as many entries as a core merges and writes in half a second.
HURRIED_ENTRIES = 1 << 20
# Times the layers of a merge: a hurried job lets a tier have as many before it merges some itself.
PATIENCE = 4
# Of a layer: the least and greatest hashes of a range leave a bit at its ends.
_ALMOST = 0.05


def plan_merge(runs: Iterable[RunFile], fan_in: int, hurried: bool = False) -> tuple[RunFile, ...]:
    """Return the runs to merge into those of the next job; mostly none.

    A hurried job leaves merges of more than `HURRIED_ENTRIES` to others (`is_left_over`), until
    there are `PATIENCE` times as many layers. Then it takes the oldest ones, as many as make a
    merge: more would hold it up for longer.
    """
    by_tier: dict[int, list[RunFile]] = defaultdict(list)
    for run in runs:
        by_tier[tier_of(run, fan_in)].append(run)
    chosen: tuple[RunFile, ...] = ()
    up_to_tier: list[RunFile] = []
    carried_layers = 0
    full_tier = fan_in - 1
    for tier in sorted(by_tier):
        up_to_tier += by_tier[tier]
        layers = sum(map(share_of, by_tier[tier])) + carried_layers
        is_left = hurried and sum(run.entries for run in up_to_tier) > HURRIED_ENTRIES
        limit = PATIENCE * full_tier if is_left else full_tier
        if layers + _ALMOST < limit:
            carried_layers = 0
        elif is_left:
            return tuple(_oldest(by_tier[tier], full_tier))
        else:
            chosen = tuple(up_to_tier)
            carried_layers = 1  # the merged run counts as one layer of the next tier
    return chosen


def is_left_over(runs: Iterable[RunFile], fan_in: int) -> bool:
    """Return whether hurried jobs have left a merge to others.

    Then it was due before the newest job wrote its runs, and any other job would have done it.
    """
    numbered = [(job_number(run.path), run) for run in runs]
    earlier = [run for number, run in numbered if number != numbered[-1][0]]
    return sum(run.entries for run in plan_merge(earlier, fan_in)) > HURRIED_ENTRIES


def _oldest(runs: Sequence[RunFile], layers: int) -> Iterator[RunFile]:
    """Yield the first runs, which are the oldest, up to a number of layers."""
    yielded_layers = 0.0
    for run in runs:
        if yielded_layers + _ALMOST >= layers:
            return
        yielded_layers += share_of(run)
        yield run


def tier_of(run: RunFile, fan_in: int) -> int:
    """Return the tier of a run, by the entries it would have if it covered all hashes."""
    entries_over_all = run.entries / share_of(run)
    return max(0, int(math.log(entries_over_all / TIER_FROM, fan_in)))


def share_of(run: RunFile) -> float:
    """Return the part of all hashes that a run covers.

    Few entries, or few keys, say little of the range: such runs count as spread over all hashes.
    """
    share = (run.hash_high - run.hash_low) / GREATEST_WORD
    is_vague = run.entries < TIER_FROM or share < NARROWEST
    return 1.0 if is_vague else share


def hash_range(slot: int, slots: int) -> tuple[int, int]:
    """Return the least and greatest first hash word of one of `slots` equal ranges.

    The ranges are cut by the upper 32 bits.
    """
    return _least_word(slot, slots), _least_word(slot + 1, slots) - 1


def _least_word(slot: int, slots: int) -> int:
    ceiling = -(-(slot << 32) // slots)
    return ceiling << 32
