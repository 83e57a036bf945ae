"""The spread of partitions over processes by load, with as few moves as an even spread allows."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from opal_lake.errors import InvalidInputError
from opal_stream.kafka.topics import Partition

EVEN_ENOUGH = 1.15  # the fullest process by the mean: below it nothing is moved
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
        """The fullest process by the mean of all."""
        mean = sum(self.loads) / len(self.loads)
        return max(self.loads) / mean if mean else 1.0


def processes_for(loads: Mapping[Partition, float], capacity: float) -> int:
    """As few processes as can carry it, each at most `capacity`; a partition is never shared, so one that is larger has its own."""
    if capacity <= 0:
        raise InvalidInputError(f"a process of the capacity {capacity} carries nothing; give more")
    small = {partition: load for partition, load in loads.items() if load <= capacity}
    count = max(1, math.ceil(sum(small.values()) / capacity)) if small else 0
    while count < len(small) and max(plan_spread(small, count).loads) > capacity:
        count += 1
    return max(1, count + len(loads) - len(small))


def plan_spread(loads: Mapping[Partition, float], processes: int, current: Shares = ()) -> Spread:
    """From scratch the largest partition first, each to the emptiest process. From a current spread only what makes it even moves."""
    if processes < 1:
        raise InvalidInputError(f"{processes} processes read nothing; give at least 1")
    before = [frozenset(share) & loads.keys() for share in current[:processes]]
    shares = [set(share) for share in before] + [set() for _ in range(processes - len(before))]
    placed = set().union(*shares)
    _place(loads, shares, sorted(loads.keys() - placed, key=lambda part: (-loads[part], part)))
    if current:
        _even_out(loads, shares)
    homes = {partition: number for number, share in enumerate(current) for partition in share}
    ends = {partition: number for number, share in enumerate(shares) for partition in share}
    return Spread(
        shares=tuple(frozenset(share) for share in shares),
        loads=tuple(sum(loads[part] for part in sorted(share)) for share in shares),
        changed=tuple(
            number
            for number, share in enumerate(shares)
            if number >= len(current) or share != set(current[number])
        ),
        moved=tuple(
            sorted(part for part, number in ends.items() if part in homes and homes[part] != number)
        ),
    )


def spread_by_count(loads: Mapping[Partition, float], processes: int) -> Spread:
    """In turns, as one who knows no loads does it; to compare."""
    order = sorted(loads)
    shares = tuple(frozenset(order[number::processes]) for number in range(processes))
    return Spread(
        shares=shares, loads=tuple(sum(loads[part] for part in sorted(share)) for share in shares)
    )


def _place(
    loads: Mapping[Partition, float], shares: list[set[Partition]], partitions: Sequence[Partition]
) -> None:
    """Of processes that are equally full, to the one with fewer partitions: without loads this is a spread by count."""
    sums = [sum(loads[part] for part in sorted(share)) for share in shares]
    for partition in partitions:
        number = min(range(len(shares)), key=lambda at: (sums[at], len(shares[at]), at))
        shares[number].add(partition)
        sums[number] += loads[partition]


def _even_out(loads: Mapping[Partition, float], shares: list[set[Partition]]) -> None:
    """Move or swap what lowers the fullest process most, until it is even enough or nothing helps."""
    mean = sum(loads.values()) / len(shares)
    for _ in range(len(loads)):
        sums = [sum(loads[part] for part in sorted(share)) for share in shares]
        fullest = max(range(len(shares)), key=lambda at: (sums[at], -at))
        if sums[fullest] <= EVEN_ENOUGH * mean:
            return
        step = _best_step(loads, shares, sums, fullest)
        if step is None:
            return
        partition, other, back = step
        shares[fullest].remove(partition)
        shares[other].add(partition)
        if back is not None:
            shares[other].remove(back)
            shares[fullest].add(back)


def _best_step(
    loads: Mapping[Partition, float], shares: list[set[Partition]], sums: list[float], fullest: int
) -> tuple[Partition, int, Partition | None] | None:
    """What leaves the fuller of both processes emptiest; a swap only where it is better than every move, as it moves two."""
    found: list[tuple[float, int, Partition, int, Partition | None]] = []
    for other in range(len(shares)):
        if other == fullest:
            continue
        for partition in sorted(shares[fullest]):
            for back in (None, *sorted(shares[other])):
                shift = loads[partition] - (0.0 if back is None else loads[back])
                after = max(sums[fullest] - shift, sums[other] + shift)
                if shift > 0 and after < sums[fullest] * (1 - 1e-9):
                    found.append((after, 0 if back is None else 1, partition, other, back))
    if not found:
        return None
    _, _, partition, other, back = min(found, key=lambda step: step[:4])
    return partition, other, back
