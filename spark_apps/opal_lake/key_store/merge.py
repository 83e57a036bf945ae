"""The choice of runs to merge: by tiers of size, so that few runs are probed and written again.

The share of a run is the part of all hashes between its first and its last hash. The share counts
as 1 if the run has fewer than `TIER_FROM` entries or covers less than `NARROWEST`. The tier of a
run is the floor of the logarithm, to the base `fan_in`, of entries / share / `TIER_FROM`, and at
least 0. A tier is full when the shares of its runs add up to `fan_in - 1`. The next job that writes
runs then merges the runs of this tier and of the tiers below into its own runs. These count as 1 in
the next tier. Two jobs may merge the same run: that costs only space.
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
# A hurried job merges a large tier itself only if it has so many times the layers of a full tier.
PATIENCE = 4
# The shares of the runs of a layer add up to a little less than 1, because hashes of a run do not
# reach the ends of its range.
_ALMOST = 0.05


def plan_merge(runs: Iterable[RunFile], fan_in: int, hurried: bool = False) -> tuple[RunFile, ...]:
    """Return the runs that the next job merges into its own runs, usually none.

    A hurried job leaves merges of more than `HURRIED_ENTRIES` to other jobs (`is_left_over`), until
    a tier has `PATIENCE` times the layers of a full one. Then it merges only the oldest runs, as
    many as fill a tier.
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
    """Return whether hurried jobs have left a merge to other jobs.

    That is so if a large merge was due before the newest job, whose runs come last, wrote its runs.
    """
    known = list(runs)
    if not known:
        return False
    newest_job = job_number(known[-1].path)
    earlier = [run for run in known if job_number(run.path) != newest_job]
    merged_entries = sum(run.entries for run in plan_merge(earlier, fan_in))
    return merged_entries > HURRIED_ENTRIES


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
    """Return the part of all hashes that a run covers, between 0 and 1.

    A run with few entries or few keys counts as one that covers all hashes: its range is random.
    """
    share = (run.hash_high - run.hash_low) / GREATEST_WORD
    if run.entries < TIER_FROM or share < NARROWEST:
        return 1.0
    return share


def hash_range(slot: int, slots: int) -> tuple[int, int]:
    """Return the least and greatest first hash word of a slot, one of `slots` ranges.

    The ranges are equal in the upper 32 bits of the word.
    """
    return _least_word(slot, slots), _least_word(slot + 1, slots) - 1


def _least_word(slot: int, slots: int) -> int:
    """Return the least first hash word of a slot."""
    upper_bits = -(-(slot << 32) // slots)  # rounded up
    return upper_bits << 32
