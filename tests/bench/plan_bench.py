"""The spread of partitions by predicted load against that by count, over simulated weeks: max/mean messages of the processes, and moves.

Traffic is drawn by a seed: partitions skewed by a power law, each with a day and a night of its own time zone, quiet weekends, noise, and
growth. Two weeks are learned from; in the third one a plan is made every hour, and judged by what then comes.
"""

import argparse
import math
import random
from dataclasses import dataclass

from opal_stream.kafka.topics import Partition
from opal_stream.plan.load import predict_loads
from opal_stream.plan.spread import Shares, plan_spread, spread_by_count
from opal_stream.plan.traffic import DAY, WEEK, Traffic, hour_of_week

LEARN = 2 * WEEK


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Means over the hours of a week: how full the fullest process was by the mean, and what restarted.

    `largest` is what no spread can go below: 1, or the largest partition by the mean of the processes.
    """

    by_count: float
    by_load: float
    from_scratch: float
    largest: float
    restarts: float
    moves: float
    from_scratch_restarts: float


class Shop:
    """What each partition gets in each hour."""

    def __init__(self, seed: int, partitions: int) -> None:
        self._dice = random.Random(seed)
        ranks = list(range(1, partitions + 1))
        self._dice.shuffle(ranks)
        self.partitions = [Partition(topic="orders", number=number) for number in range(partitions)]
        self._rates = {part: 2_000_000 * rank**-0.9 for part, rank in zip(self.partitions, ranks, strict=True)}
        self._zones = {part: self._dice.choice((0, 1, 8, 16)) for part in self.partitions}
        self._growth = {part: self._dice.uniform(-0.1, 0.25) for part in self.partitions}

    def messages(self, partition: Partition, hour: int) -> float:
        local = hour_of_week(hour + self._zones[partition])
        day = 1 + 0.8 * math.sin(2 * math.pi * (local % DAY - 8) / DAY)
        weekend = 0.4 if local >= 5 * DAY else 1.0
        growth = (1 + self._growth[partition]) ** (hour / WEEK)
        return self._rates[partition] * day * weekend * growth * self._dice.lognormvariate(0, 0.15)


def simulate(seed: int, partitions: int = 48, processes: int = 8) -> Outcome:
    shop = Shop(seed, partitions)
    traffic = {part: Traffic(first_hour=0, hour=0) for part in shop.partitions}
    for hour in range(LEARN):
        for part, found in traffic.items():
            found.observe(hour, shop.messages(part, hour))
    fixed = spread_by_count(dict.fromkeys(shop.partitions, 1.0), processes).shares
    kept: Shares = ()
    scratch: Shares = ()
    sums = [0.0] * 7
    for hour in range(LEARN, LEARN + WEEK):
        loads = predict_loads(traffic, shop.partitions, hour, 1)
        spread, anew = plan_spread(loads, processes, kept), plan_spread(loads, processes)
        real = {part: shop.messages(part, hour) for part in shop.partitions}
        figures = [_skew(fixed, real), _skew(spread.shares, real), _skew(anew.shares, real), _largest(real, processes)]
        figures += [len(spread.changed) if kept else 0, len(spread.moved), sum(a != b for a, b in zip(anew.shares, scratch, strict=False))]
        sums = [total + figure for total, figure in zip(sums, figures, strict=True)]
        kept, scratch = spread.shares, anew.shares
        for part, found in traffic.items():
            found.observe(hour, real[part])
    count, load, best, largest, restarts, moves, anew_restarts = (total / WEEK for total in sums)
    return Outcome(
        by_count=count,
        by_load=load,
        from_scratch=best,
        largest=largest,
        restarts=restarts,
        moves=moves,
        from_scratch_restarts=anew_restarts,
    )


def _skew(shares: Shares, real: dict[Partition, float]) -> float:
    loads = [sum(real[part] for part in sorted(share)) for share in shares]
    return max(loads) / (sum(loads) / len(loads))


def _largest(real: dict[Partition, float], processes: int) -> float:
    return max(1.0, max(real.values()) * processes / sum(real.values()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--partitions", type=int, default=48)
    parser.add_argument("--processes", type=int, default=8)
    args = parser.parse_args()
    print(f"{args.partitions} partitions, {args.processes} processes; max/mean messages, and restarts and moves an hour")
    print("seed  by count  by load  from scratch  at best  restarts  moves  restarts from scratch")
    for seed in range(args.seeds):
        found = simulate(seed, args.partitions, args.processes)
        print(
            f"{seed:4}  {found.by_count:8.2f}  {found.by_load:7.2f}  {found.from_scratch:12.2f}  {found.largest:7.2f}"
            f"  {found.restarts:8.2f}  {found.moves:5.2f}  {found.from_scratch_restarts:21.2f}"
        )


if __name__ == "__main__":
    main()
