"""A stream that commits once a second for a day, with its maintenance.

The figure compares its last hour with its first.

python -m tests.bench.stream_day [--commits 100000] [--rows 10] [--maintain 600] [--window 1h]
[--at-most 1.2] [--folder /dev/shm]

Messages go through the decoder, the buffer and the writer of `opal stream` into a table in a
folder; only Kafka is left out. Time is simulated: each commit is a second after the one before, and
the store stamps its files with that time. Every `--maintain` simulated seconds `maintain` does what
is due, with retention by `--window`. A reader that has the version before each commit polls for the
next one. Half of a commit's rows are new keys, the others update or delete some of the last
100,000.
"""

import argparse
import json
import random
import shutil
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from opal_lake.clock import ManualClock
from opal_lake.definition.table_spec import plan_spec
from opal_lake.table import create_on, table_on
from opal_stream.flush.buffer import Buffer, FlushLimits
from opal_stream.flush.writer import Writer
from opal_stream.formats.batch import MessageBatch
from opal_stream.formats.decoder import Decoder
from opal_stream.kafka.applications import Application
from opal_stream.kafka.topics import Partition
from opal_stream.operations.reading import FormatOptions
from tests.bench.counting_store import CountingStore
from tests.kit.check import check_table
from tests.kit.clocks import past_store
from tests.opal_stream.orders import LAYOUT, SCHEMA, order

PARTITION = Partition(topic="orders", number=0)
RECENT, SEED, HOUR_S = 100_000, 20_261_125, 3_600
_START_S = order(0)["at"] // 1000


@dataclass(slots=True, kw_only=True)
class Hour:
    """Measurements of an hour.

    Milliseconds of each commit, and of each poll that found one; requests of all.
    """

    commits: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    polls: list[float] = field(default_factory=list)
    maintenance_s: list[float] = field(default_factory=list)
    requests: Counter[str] = field(default_factory=Counter)  # by what asked

    def line(self, name: str) -> str:
        median, p95, poll = (
            statistics.median(self.commits),
            statistics.quantiles(self.commits, n=20)[-1],
            statistics.median(self.polls),
        )
        asked = {who: self.requests[who] / len(self.commits) for who in ("commit", "poll")}
        maintenance = (
            f"{statistics.mean(self.maintenance_s):8.2f} {max(self.maintenance_s):8.2f}"
            if self.maintenance_s
            else f"{'-':>8} {'-':>8}"
        )
        cpu = statistics.mean(self.cpu)
        return (
            f"{name:>6} {median:8.2f} {p95:8.2f} {cpu:8.2f} {asked['commit']:9.2f} {poll:8.2f} "
            f"{asked['poll']:9.2f} {maintenance}"
        )


class Day:
    """A table, its stream, its reader and its maintenance, on one clock."""

    def __init__(self, folder: Path, window: str) -> None:
        self.clock, self._grace = ManualClock(step_us=1), window
        self._store = past_store(str(folder / "orders"), self.clock)
        create_on(self._store, plan_spec(SCHEMA, LAYOUT), self.clock)
        self._stores = {
            who: CountingStore(inner=self._store) for who in ("commit", "poll", "maintain")
        }
        self.table, self._reader, self._keeper = (
            table_on(store, self.clock) for store in self._stores.values()
        )
        self.table.set_properties({"window": window})
        application = Application(stream="main", partition=PARTITION, topic_id="simulated")
        self._writer = Writer(
            table=self.table, applications={PARTITION: application}, positions={PARTITION: None}
        )
        self._decoder = Decoder(self.table.snapshot_at().spec, FormatOptions())
        self._buffer = Buffer(limits=FlushLimits())
        self._seen = self._reader.log.head()
        self._dice, self._next, self.keys, self.alive = random.Random(SEED), 0, 0, dict[int, int]()
        self.second = 0

    def commit(self, rows: int, hour: Hour) -> None:
        """Commit a second of the stream; poll as a reader behind it."""
        self.second += 1
        self.clock.at_us += 1_000_000
        batch = self._messages(rows)

        def flush() -> None:
            self._buffer.add(batch, self._decoder.decode(batch), 0.0)
            self._writer.flush(self._buffer, lambda: None, lambda: None)
            self._buffer.clear()

        before_s = time.process_time()
        hour.commits.append(1e3 * self._timed("commit", flush, hour))
        hour.cpu.append(1e3 * (time.process_time() - before_s))
        hour.polls.append(1e3 * self._timed("poll", self._poll, hour))

    def maintain(self, hour: Hour) -> None:
        hour.maintenance_s.append(
            self._timed("maintain", lambda: self._keeper.maintain(grace=self._grace), hour)
        )

    def problems(self) -> list[str]:
        """Return the check's findings, and rows that are not the newest of their keys."""
        rows = self.table.read(columns=["id", "at"]).sort_by("id")
        moments = rows["at"].cast("int64").to_numpy() // 1_000_000 - _START_S
        wrong = dict(zip(rows["id"].to_pylist(), moments.tolist(), strict=True)) != self.alive
        return [
            *map(str, check_table(self.table)),
            *(["the table is not what the messages made it"] if wrong else []),
        ]

    def _poll(self) -> None:
        self._seen = self._reader.log.follow(self._seen)
        assert [*self._seen.positions.values()] == [self._next]

    def _timed(self, who: str, work: Callable[[], object], hour: Hour) -> float:
        before, began = self._stores[who].requests.total(), time.perf_counter()
        work()
        took = time.perf_counter() - began
        hour.requests[who] += self._stores[who].requests.total() - before
        return took

    def _messages(self, rows: int) -> MessageBatch:
        values = []
        for position in range(rows):
            is_new = position % 2 == 0 or self.keys < rows
            key = (
                self.keys if is_new else self._dice.randrange(max(0, self.keys - RECENT), self.keys)
            )
            self.keys += is_new
            is_delete = not is_new and self._dice.random() < 0.1
            values.append(order(key, 1_000 * self.second + position, op="D" if is_delete else "U"))
            self.alive.pop(key, None)
            if not is_delete:
                self.alive[key] = self.second
        first = self._next
        self._next += rows
        return MessageBatch(
            topics=[PARTITION.topic] * rows,
            partitions=[PARTITION.number] * rows,
            offsets=list(range(first, self._next)),
            values=[json.dumps(value).encode() for value in values],
            keys=[None] * rows,
            headers=[()] * rows,
            timestamps_ms=[self.clock.at_us // 1000] * rows,
        )


def run(day: Day, commits: int, rows: int, maintain: int) -> list[Hour]:
    """Each line as soon as its hour is over; at the end also of a part of one."""
    hours: list[Hour] = []
    print(
        f"{'hour':>6} {'commit':>8} {'p95':>8} {'CPU':>8} {'requests':>9} {'poll':>8} "
        f"{'requests':>9} {'maintain':>8} {'most':>8}   ms, s"
    )
    for second in range(1, commits + 1):
        if second % HOUR_S == 1:
            hours.append(Hour())
        day.commit(rows, hours[-1])
        if maintain and second % maintain == 0:
            day.maintain(hours[-1])
        if second % HOUR_S == 0 or second == commits:
            print(hours[-1].line(str(len(hours))), flush=True)
    return hours


def compare(hours: list[Hour]) -> float:
    """Return the greatest ratio of the last whole hour to the first."""
    first, last = (
        hours[0],
        next(hour for hour in reversed(hours) if len(hour.commits) == HOUR_S or hour is hours[0]),
    )
    ratios = {
        "CPU": statistics.mean(last.cpu) / statistics.mean(first.cpu),
        "commit": statistics.median(last.commits) / statistics.median(first.commits),
        "p95": statistics.quantiles(last.commits, n=20)[-1]
        / statistics.quantiles(first.commits, n=20)[-1],
        "requests": last.requests["commit"]
        / first.requests["commit"]
        * len(first.commits)
        / len(last.commits),
        "poll": statistics.median(last.polls) / statistics.median(first.polls),
    }
    print(
        "last hour / first hour: "
        + ", ".join(f"{name} {ratio:.2f}" for name, ratio in ratios.items())
    )
    return max(ratios.values())


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--commits", type=int, default=100_000)
    parser.add_argument("--rows", type=int, default=10)
    parser.add_argument(
        "--maintain", type=int, default=600, help="simulated seconds between; 0: never"
    )
    parser.add_argument("--window", default="1h", help="how long versions stay readable")
    parser.add_argument(
        "--at-most",
        type=float,
        default=1.2,
        help="exit status 1 if the last hour is slower than the first by more",
    )
    parser.add_argument("--folder", help="for the table, instead of the one for temporary files")
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="opal-day-", dir=given.folder))
    try:
        day = Day(folder, given.window)
        hours = run(day, given.commits, given.rows, given.maintain)
        problems, snapshot = day.problems(), day.table.snapshot_at()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(
        f"{given.commits:,} commits of {given.rows} rows: {len(day.alive):,} keys in "
        f"{len(snapshot.files)} files; " + (problems or ["sound"])[0]
    )
    return int(compare(hours) > given.at_most or bool(problems))


if __name__ == "__main__":
    sys.exit(main())
