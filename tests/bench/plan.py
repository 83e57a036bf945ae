"""The spread of partitions by predicted load, by messages and by count, over weeks.

The figures are the max/mean work of the processes, and the moves.

Traffic is drawn by a seed: partitions skewed by a power law, each with a day and a night of its own
time zone, quiet weekends, noise, growth, and messages of its own size. With `--recorded TABLE` it
is what streams have counted into a table, with noise. Two weeks are learned from; in the third one
a plan is made every hour, and judged by the work that then comes: a message, and a message more for
each 500 bytes, as `opal stream` has it.
"""

import argparse
import math
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Protocol

from opal_lake.table import Table
from opal_stream.kafka.applications import known_positions
from opal_stream.kafka.topics import Partition
from opal_stream.plan.load import MESSAGE_BYTES, predict_rates, weighted_loads
from opal_stream.plan.spread import Shares, plan_spread, spread_by_count
from opal_stream.traffic.documents import TrafficFolder
from opal_stream.traffic.hours import DAY, WEEK, Traffic, Volume, hour_of_week

LEARN = 2 * WEEK


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Means over the hours of a week.

    How much work the fullest process had by the mean, and what restarted.

    `at_best` is the bound that no spread can go below: 1, or the largest partition by the mean of
    the processes.
    """

    by_count: float
    by_messages: float
    by_load: float
    from_scratch: float
    at_best: float
    restarts: float
    moves: float
    from_scratch_restarts: float


class Source(Protocol):
    """The messages and bytes that each partition gets in each hour."""

    partitions: Sequence[Partition]

    def volume(self, partition: Partition, hour: int) -> Volume: ...


class Shop:
    """Volumes that are drawn."""

    def __init__(self, seed: int, partitions: int) -> None:
        self._dice = random.Random(seed)
        ranks = list(range(1, partitions + 1))
        self._dice.shuffle(ranks)
        self.partitions = [Partition(topic="orders", number=number) for number in range(partitions)]
        self._rates = {
            part: 2_000_000 * rank**-0.9 for part, rank in zip(self.partitions, ranks, strict=True)
        }
        self._zones = {part: self._dice.choice((0, 1, 8, 16)) for part in self.partitions}
        self._growth = {part: self._dice.uniform(-0.1, 0.25) for part in self.partitions}
        self._of_sizes = random.Random(f"{seed} sizes")
        self._sizes = {part: 600 * self._of_sizes.lognormvariate(0, 1) for part in self.partitions}

    def volume(self, partition: Partition, hour: int) -> Volume:
        local = hour_of_week(hour + self._zones[partition])
        day = 1 + 0.8 * math.sin(2 * math.pi * (local % DAY - 8) / DAY)
        weekend = 0.4 if local >= 5 * DAY else 1.0
        growth = (1 + self._growth[partition]) ** (hour / WEEK)
        messages = (
            self._rates[partition] * day * weekend * growth * self._dice.lognormvariate(0, 0.15)
        )
        return Volume(
            messages, messages * self._sizes[partition] * self._of_sizes.lognormvariate(0, 0.1)
        )


class Recorded:
    """Counts of streams, with noise."""

    def __init__(self, seed: int, uri: str) -> None:
        self._dice = random.Random(seed)
        table = Table.open(uri)
        head = table.log.head()
        counts = TrafficFolder(table.storage, head.root.table_id, table.log.ids).read()
        self._traffic = {
            position.partition: counts[str(position)]
            for position in known_positions(head.positions)
            if str(position) in counts
        }
        self.partitions = sorted(self._traffic)

    def volume(self, partition: Partition, hour: int) -> Volume:
        return self._traffic[partition].predict(hour).times(self._dice.lognormvariate(0, 0.15))


def simulate(source: Source, processes: int = 8) -> Outcome:
    traffic = {part: Traffic(hour=0) for part in source.partitions}
    for hour in range(LEARN):
        for part, learned in traffic.items():
            learned.observe(hour, source.volume(part, hour))
    fixed = spread_by_count(dict.fromkeys(source.partitions, 1.0), processes).shares
    last_shares: Shares = ()
    scratch: Shares = ()
    counted: Shares = ()
    sums = [0.0] * len(fields(Outcome))
    for hour in range(LEARN, LEARN + WEEK):
        rates = predict_rates(traffic, source.partitions, hour, 1)
        loads = weighted_loads(rates)
        spread, fresh = plan_spread(loads, processes, last_shares), plan_spread(loads, processes)
        by_messages = plan_spread(
            {part: rate.messages for part, rate in rates.items()}, processes, counted
        )
        came = {part: source.volume(part, hour) for part in source.partitions}
        work = {
            part: volume.messages + volume.bytes / MESSAGE_BYTES for part, volume in came.items()
        }
        figures = [
            _skew(shares, work)
            for shares in (fixed, by_messages.shares, spread.shares, fresh.shares)
        ]
        figures += [
            _largest(work, processes),
            len(spread.changed) if last_shares else 0,
            len(spread.moved),
        ]
        figures += [
            sum(share != other for share, other in zip(fresh.shares, scratch, strict=False))
        ]
        sums = [total + figure for total, figure in zip(sums, figures, strict=True)]
        last_shares, scratch, counted = spread.shares, fresh.shares, by_messages.shares
        for part, learned in traffic.items():
            learned.observe(hour, came[part])
    return Outcome(
        **{field.name: total / WEEK for field, total in zip(fields(Outcome), sums, strict=True)}
    )


def _skew(shares: Shares, work: dict[Partition, float]) -> float:
    def load_of(share: Iterable[Partition]) -> float:
        return sum(work[part] for part in sorted(share))

    loads = [load_of(share) for share in shares]
    return max(loads) / (sum(loads) / len(loads))


def _largest(work: dict[Partition, float], processes: int) -> float:
    return max(1.0, max(work.values()) * processes / sum(work.values()))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--partitions", type=int, default=48)
    parser.add_argument("--processes", type=int, default=8)
    parser.add_argument("--recorded", metavar="TABLE")
    args = parser.parse_args()
    where = args.recorded or f"{args.partitions} partitions"
    print(f"{where}, {args.processes} processes; max/mean work, and restarts and moves an hour")
    names = [field.name.replace("_", " ") for field in fields(Outcome)]
    print("seed  " + "  ".join(names))
    for seed in range(args.seeds):
        source: Source = (
            Recorded(seed, args.recorded) if args.recorded else Shop(seed, args.partitions)
        )
        outcome = simulate(source, args.processes)
        print(
            f"{seed:4}  "
            + "  ".join(
                f"{getattr(outcome, field.name):{len(name)}.2f}"
                for field, name in zip(fields(Outcome), names, strict=True)
            )
        )


if __name__ == "__main__":
    main()
