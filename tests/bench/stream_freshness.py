"""The freshness of a table during maintenance, its files, and the cost of a read.

This is the second half of `stream`.

The stream has committed a message of each partition before the measurement begins. Every row counts
that was produced while it lasts, also if it is visible only later: the reader goes on until all
are.
"""

import contextlib
import os
import shutil
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from opal_lake import layout
from opal_lake.log.snapshot import Snapshot
from opal_lake.table import Table
from tests.bench.stream_load import (
    Beside,
    Stamps,
    cpu_seconds,
    cpu_text,
    maintain,
    produce,
    produced_at,
)
from tests.fixtures_kafka import Kafka
from tests.opal_stream.orders import new_table, order

POLL_S, LAST_S, ROUNDS = 0.01, 120.0, 7
KEPT = 0.98  # of the rate: a producer below it could not keep it

Start = Callable[[Table, Kafka, str], "list[subprocess.Popen[bytes]]"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """The rate of messages, for how long, and the interval of maintenance; 0: never."""

    rate: int
    seconds: int
    warm_s: float
    partitions: int
    keys: int
    maintain_s: float


@dataclass(slots=True, kw_only=True)
class Reader:
    """Polls the head, and notes when it first saw which position of each partition."""

    table: Table
    partitions: int
    head: Snapshot
    seen: list[tuple[float, list[int]]] = field(default_factory=list)

    def poll(self, seconds: float, is_over: Callable[[list[int]], bool] = lambda _: False) -> bool:
        """Poll until `is_over` holds; return False when the time is over."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self.head = self.table.log.refresh(self.head)
            named = {
                int(name.rpartition("/")[2]): position
                for name, position in self.head.positions.items()
            }
            positions = [named.get(number, 0) for number in range(self.partitions)]
            if not self.seen or positions != self.seen[-1][1]:
                self.seen.append((time.time(), positions))
            if is_over(positions):
                return True
            time.sleep(POLL_S)
        return False

    def ages(self, stamps: Stamps, began: float, ended: float) -> np.ndarray:
        """Return the ages of visible rows that were produced between two moments."""
        ages = []
        for number in range(self.partitions):
            produced = produced_at(stamps, number)
            # Offset 0 is what the stream began with
            counts = np.diff([1, *(max(1, positions[number]) for _, positions in self.seen)])
            seen = np.repeat([moment for moment, _ in self.seen], counts)
            produced = produced[: len(seen)]
            ages.append((seen - produced)[(produced >= began) & (produced < ended)])
        return np.concatenate(ages)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """Counts of files, the head and the CPU seconds, at a moment."""

    at: float
    cpu: dict[str, float]
    head: Snapshot
    files: int
    data_files: int


def freshness(broker: Kafka, folder: Path, load: Load, start: Start) -> None:
    folder.mkdir()
    topic, table = broker.create_topic(folder.name, load.partitions), new_table(folder)
    for number in range(load.partitions):
        broker.produce(topic, [order(number)], partition=number)
    reader = Reader(table=table, partitions=load.partitions, head=table.log.head())
    with ended(start(table, broker, topic)) as streams:
        assert reader.poll(LAST_S, lambda positions: min(positions) == 1), (
            "the stream did not begin"
        )
        producer = Beside(produce, broker.servers, topic, load.partitions, load.rate, load.keys)
        maintenance = Beside(maintain, table.uri, load.maintain_s) if load.maintain_s else None
        assert broker.process is not None
        pids = {
            "stream": [process.pid for process in streams],
            "broker": [broker.process.pid],
            "producer": [producer.pid],
        }
        pids |= {"maintenance": [maintenance.pid]} if maintenance else {}
        assert reader.poll(LAST_S, lambda positions: min(positions) > 1), (
            "the producer did not begin"
        )
        reader.poll(load.warm_s)
        begin = _mark(reader, pids)
        reader.poll(load.seconds)
        end, stood = _mark(reader, pids), reader.seen[-1][1]
        stamps: Stamps = producer.end()
        ends = [1 + len(produced_at(stamps, number)) for number in range(load.partitions)]
        is_all = reader.poll(LAST_S, lambda positions: positions == ends)
        took_s: list[float] = maintenance.end() if maintenance else []
    print_ages(reader.ages(stamps, begin.at, end.at))
    print_producer(stamps, load.rate, begin.at, end.at)
    print_lag(sum(ends) - sum(stood), reader.seen[-1][0] - end.at if is_all else None, load.rate)
    _print_files(begin, end)
    each = f"each {min(took_s):.1f} to {max(took_s):.1f} s" if took_s else "none was due"
    print(
        f"  maintenance every {load.maintain_s:g} s: {len(took_s)} times, {each}"
        if maintenance
        else "  without maintenance"
    )
    print(f"  {cpu_text(begin.cpu, end.cpu, end.at - begin.at)}", flush=True)
    _compare_reads(table, folder)


@contextlib.contextmanager
def ended(processes: "list[subprocess.Popen[bytes]]") -> "Iterator[list[subprocess.Popen[bytes]]]":
    try:
        yield processes
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.communicate()


def _mark(reader: Reader, pids: dict[str, list[int]]) -> Mark:
    names = [
        os.path.relpath(Path(folder) / name, reader.table.uri)
        for folder, _, names in os.walk(reader.table.uri)
        for name in names
    ]
    data_files = sum(name.startswith(layout.DATA) for name in names)
    return Mark(
        at=time.time(),
        cpu=cpu_seconds(pids),
        head=reader.head,
        files=len(names),
        data_files=data_files,
    )


def print_ages(ages: np.ndarray) -> None:
    assert len(ages), "no row became visible"
    p50, p95, p99 = np.percentile(ages, [50, 95, 99])
    print(
        f"  {len(ages):,} rows; freshness p50 {p50:.2f} s, p95 {p95:.2f} s, p99 {p99:.2f} s, at "
        f"most {ages.max():.2f} s"
    )


def print_producer(stamps: Stamps, rate: int, began: float, until: float) -> None:
    steps = [(moment, count) for moment, _, count in stamps if began <= moment < until]
    produced = sum(count for _, count in steps) / (until - began)
    pause_s = max(np.diff([moment for moment, _ in steps]))
    warning = "" if produced >= KEPT * rate else f"; THE PRODUCER DID NOT KEEP THE RATE of {rate:,}"
    print(f"  produced {produced:,.0f} rows/s, at most {pause_s:.2f} s between two steps{warning}")


def print_lag(rows: int, after_s: float | None, rate: int) -> None:
    """Print the rows that are not visible yet: late after more than a few flushes."""
    fell = "; THE STREAM FELL BEHIND" if after_s is None or rows > 5 * rate else ""
    visible = "never" if after_s is None else f"{after_s:.1f} s later"
    print(f"  at the end {rows:,} rows were not visible yet, all {visible}{fell}")


def _print_files(begin: Mark, end: Mark) -> None:
    hours = (end.at - begin.at) / 3600
    commits = (end.head.version - begin.head.version) / hours
    data_files = (end.data_files - begin.data_files) / hours
    files = (end.files - begin.files) / hours
    print(
        f"  an hour: {commits:,.0f} commits, {data_files:,.0f} data files, {files:,.0f} files in "
        "all, written and kept for older versions"
    )
    print(
        f"  at the end {end.data_files:,} data files on disk, {len(end.head.files):,} of them live"
    )


def _compare_reads(table: Table, folder: Path) -> None:
    """Read the table and a compacted copy in turns; print how long each takes.

    Both then have the same rows and the same history.
    """
    copy = Path(shutil.copytree(table.uri, folder / "compacted", copy_function=os.link))
    compacted = Table.open(str(copy))
    began_s = time.monotonic()
    compacted.compact()
    compact_s = time.monotonic() - began_s
    times: dict[str, list[float]] = {table.uri: [], compacted.uri: []}
    rows = set()
    for _ in range(ROUNDS):
        for uri, reads_s in times.items():
            began_s = time.monotonic()
            rows.add(Table.open(uri).read().num_rows)
            reads_s.append(time.monotonic() - began_s)
    assert len(rows) == 1
    # The first warms up
    now_s, then_s = (statistics.median(reads_s[1:]) for reads_s in times.values())
    head = compacted.snapshot_at()
    print(
        f"  a read of the {rows.pop():,} visible of {head.root.rows:,} rows: {now_s:.2f} s; "
        f"{then_s:.2f} s",
        end=" ",
    )
    print(
        f"when compacted to {len(head.files)} files, in {compact_s:.1f} s: {now_s / then_s:.2f}x",
        flush=True,
    )
