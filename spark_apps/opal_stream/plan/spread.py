"""The spread of partitions over processes by load, with as few moves as an even spread allows."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from opal_lake.errors import InvalidInputError
from opal_stream.kafka.topics import Partition

EVEN_ENOUGH = 1.15  # load of the fullest process by the mean: below it nothing is moved
_MIN_GAIN = 1e-9  # of the load: a smaller gain is an error of rounding, and might be undone again
Shares = Sequence[frozenset[Partition]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """The share of each process, and which processes have another share than before."""

    shares: tuple[frozenset[Partition], ...]
    loads: tuple[float, ...]
    changed: tuple[int, ...] = ()
    moved: tuple[Partition, ...] = ()

    @property
    def skew(self) -> float:
        """The load of the fullest process, divided by the mean load."""
        mean = sum(self.loads) / len(self.loads)
        if mean:
            return max(self.loads) / mean
        return 1.0


class _Step(NamedTuple):
    """A move of a partition out of the fullest process, or a swap with `back`.

    Steps sort by the load of the fuller process afterwards; a move precedes a swap.
    """

    load_after: float
    is_swap: int
    partition: Partition
    other: int
    back: Partition | None


def processes_for(loads: Mapping[Partition, float], capacity: float) -> int:
    """Return the fewest processes that carry the loads, each at most `capacity`.

    A partition is never shared, so one with a larger load has a process of its own.
    """
    if capacity <= 0:
        raise InvalidInputError(f"capacity must be more than 0, got {capacity}")
    small = {partition: load for partition, load in loads.items() if load <= capacity}
    too_large = len(loads) - len(small)
    if not small:
        return max(1, too_large)
    count = max(1, math.ceil(sum(small.values()) / capacity))
    while count < len(small) and max(plan_spread(small, count).loads) > capacity:
        count += 1
    return count + too_large


def plan_spread(loads: Mapping[Partition, float], processes: int, current: Shares = ()) -> Spread:
    """Return a spread over processes.

    Without `current` shares the largest partitions come first, each to the emptiest process. With
    them only as many partitions move as an even load needs.
    """
    if processes < 1:
        raise InvalidInputError(f"processes must be at least 1, got {processes}")
    shares = [set(share) & loads.keys() for share in current[:processes]]
    while len(shares) < processes:
        shares.append(set())
    assigned = set().union(*shares)
    unassigned = loads.keys() - assigned
    largest_first = sorted(unassigned, key=lambda partition: (-loads[partition], partition))
    _assign(loads, shares, largest_first)
    if current:
        _even_out(loads, shares)
    return Spread(
        shares=tuple(frozenset(share) for share in shares),
        loads=tuple(_sums(loads, shares)),
        changed=tuple(_changed(current, shares)),
        moved=tuple(_moved(current, shares)),
    )


def spread_by_count(loads: Mapping[Partition, float], processes: int) -> Spread:
    """Return a spread in turns that ignores loads, to compare with."""
    order = sorted(loads)
    shares = [frozenset(order[number::processes]) for number in range(processes)]
    return Spread(shares=tuple(shares), loads=tuple(_sums(loads, shares)))


def _sums(
    loads: Mapping[Partition, float], shares: Sequence[set[Partition] | frozenset[Partition]]
) -> list[float]:
    # Sorted, as the order of a sum of floats changes its last digits
    sums: list[float] = []
    for share in shares:
        members = [loads[partition] for partition in sorted(share)]
        sums.append(sum(members))
    return sums


def _changed(before: Shares, after: Sequence[set[Partition]]) -> list[int]:
    """Return the processes that are new or have another share than before."""
    changed: list[int] = []
    for number, share in enumerate(after):
        is_new = number >= len(before)
        if is_new or share != before[number]:
            changed.append(number)
    return changed


def _moved(before: Shares, after: Sequence[set[Partition]]) -> list[Partition]:
    """Return the partitions that another process read before."""
    homes: dict[Partition, int] = {}
    for number, share in enumerate(before):
        homes |= dict.fromkeys(share, number)
    moved: list[Partition] = []
    for number, members in enumerate(after):
        moved += [partition for partition in members if homes.get(partition, number) != number]
    return sorted(moved)


def _assign(
    loads: Mapping[Partition, float], shares: list[set[Partition]], partitions: Sequence[Partition]
) -> None:
    """Give each partition to the emptiest process.

    Of equally full ones the one with fewer partitions gets it: without loads this is a spread by
    count.
    """
    sums = _sums(loads, shares)
    for partition in partitions:
        emptiest = min(
            range(len(shares)), key=lambda number: (sums[number], len(shares[number]), number)
        )
        shares[emptiest].add(partition)
        sums[emptiest] += loads[partition]


def _even_out(loads: Mapping[Partition, float], shares: list[set[Partition]]) -> None:
    """Move or swap what lowers the fullest process most, until it is even enough."""
    mean = sum(loads.values()) / len(shares)
    for _ in range(len(loads)):
        sums = _sums(loads, shares)
        fullest = max(range(len(shares)), key=lambda number: (sums[number], -number))
        if sums[fullest] <= EVEN_ENOUGH * mean:
            return
        step = _best_step(loads, shares, sums, fullest)
        if step is None:
            return
        shares[fullest].remove(step.partition)
        shares[step.other].add(step.partition)
        if step.back is not None:
            shares[step.other].remove(step.back)
            shares[fullest].add(step.back)


def _best_step(
    loads: Mapping[Partition, float], shares: list[set[Partition]], sums: list[float], fullest: int
) -> _Step | None:
    """Return the step that leaves the fuller of two processes emptiest, if one helps.

    A swap moves two partitions: it is made only where it is better than every move.
    """
    steps: list[_Step] = []
    for other in range(len(shares)):
        if other == fullest:
            continue
        for partition in sorted(shares[fullest]):
            for back in (None, *sorted(shares[other])):
                shift = loads[partition]
                if back is not None:
                    shift -= loads[back]
                after = max(sums[fullest] - shift, sums[other] + shift)
                if shift > 0 and after < sums[fullest] * (1 - _MIN_GAIN):
                    steps.append(_Step(after, int(back is not None), partition, other, back))
    # Without `back`, which has no order where it is None; the first of equals wins
    return min(steps, key=lambda step: step[:4], default=None)
