"""What `opal stream` keeps up with, and how fresh a table is: a real broker on this machine, which shares its cores with the stream.

python -m tests.bench.stream_bench [--rows 1000000] [--rates 1000,10000] [--seconds 60] [--spark]
    [--commit direct,gathered] [--processes 4]

Rows/s is of one process, or of N, over a topic that is full, JSON with 5 columns through to the commits; beside it per second of CPU time.
Freshness is from the produce timestamp of a message to the moment when a reader that polls the head finds its offset committed.
"""

import argparse
import contextlib
import json
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from opal_lake.table import Table
from tests.fixtures_kafka import Kafka, kafka_broker
from tests.opal_stream.orders import new_table, order

PARTITIONS = 4
POLL_S, WARM_S, WARM_SPARK_S = 0.01, 5.0, 40.0
END = ("--until-empty", "--json")


def stream(table: Table, broker: Kafka, topic: str, *more: str) -> "subprocess.Popen[bytes]":
    words = ["stream", table.uri, "--bootstrap-servers", broker.servers, "--topic", topic, "--flush-interval", "1s", *more]
    return subprocess.Popen([sys.executable, "-m", "opal_lake.cli", *words], stdout=subprocess.PIPE)


def throughput(broker: Kafka, folder: Path, rows: int, commits: Sequence[str], more: Sequence[str]) -> None:
    topic = broker.create_topic("full", PARTITIONS)
    producer = broker.producer(linger_ms=50)
    for number in range(rows):
        producer.produce(topic, json.dumps(order(number % (rows // 4), number)).encode(), partition=number % PARTITIONS)
        if number % 1000 == 0:
            producer.poll(0)
    assert producer.flush(60) == 0
    for commit in commits:
        (folder / commit).mkdir(parents=True)
        table = new_table(folder / commit)
        told = _timed(
            f"{commit} commits", rows, lambda table=table, commit=commit: stream(table, broker, topic, *END, "--commit", commit, *more)
        )
        if commit == "gathered":
            told = _timed("  the committer", rows, lambda table=table: committer(table, *END))
        assert table.snapshot_at().root.rows == told["records"] == rows


def _timed(what: str, rows: int, start: Callable[[], "subprocess.Popen[bytes]"]) -> dict[str, Any]:
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    process = start()
    rss, output = 0, b""
    while process.returncode is None:
        rss = max(rss, _rss_mb(process.pid))
        with contextlib.suppress(subprocess.TimeoutExpired):
            output, _ = process.communicate(timeout=POLL_S)
    took_s, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s, told = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, json.loads(output)
    print(f"{what}: {rows:,} rows in {took_s:.1f} s and {told['flushes']} flushes, start and end included: {rows / took_s:,.0f} rows/s")
    print(f"  {cpu_s:.1f} s of CPU: {rows / cpu_s:,.0f} rows a second of one core; at most {rss:,} MB", flush=True)
    return told


def _rss_mb(pid: int) -> int:
    with contextlib.suppress(OSError, ValueError, IndexError):
        return int(Path(f"/proc/{pid}/statm").read_text(encoding="utf-8").split()[1]) * os.sysconf("SC_PAGE_SIZE") >> 20
    return 0


def committer(table: Table, *more: str) -> "subprocess.Popen[bytes]":
    words = ["stream", "gather", table.uri, "--flush-interval", "1s", *more]
    return subprocess.Popen([sys.executable, "-m", "opal_lake.cli", *words], stdout=subprocess.PIPE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """How rows become visible: so many processes with a partition each, which commit themselves, or leave it to a committer."""

    commit: str = "direct"
    processes: int = 1
    more: Sequence[str] = ()

    def start(self, table: Table, broker: Kafka, topic: str) -> "list[subprocess.Popen[bytes]]":
        own = [["--partitions", str(number), "--commit", self.commit, *self.more] for number in range(self.processes)]
        found = [stream(table, broker, topic, *words) for words in own]
        if self.commit == "gathered":
            found.append(committer(table))
        return found


def freshness(broker: Kafka, folder: Path, rate: int, seconds: int, way: Way) -> None:
    """Of all partitions together; each row by the first head that has its offset."""
    folder.mkdir()
    topic, table = broker.create_topic(f"rate-{way.commit}-{rate}", way.processes), new_table(folder)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    running, over = way.start(table, broker, topic), threading.Event()
    stamps: list[list[float]] = [[] for _ in range(way.processes)]
    producing = threading.Thread(target=_produce, args=(broker, topic, rate, over, stamps), daemon=True)
    producing.start()
    warm_s = WARM_SPARK_S if "--spark" in way.more else WARM_S + way.processes
    seen, ages, commits, until = [0] * way.processes, list[float](), 0, time.monotonic() + seconds + warm_s
    head = table.log.head()
    while time.monotonic() < until:
        known, head = head.version, table.log.refresh(head)
        now, is_warm = time.time(), time.monotonic() > until - seconds  # the first seconds are the start of the processes
        for name, position in head.positions.items():
            number = int(name.rpartition("/")[2])
            if is_warm:
                ages += (now - np.array(stamps[number][seen[number] : position])).tolist()
            seen[number] = position
        commits += head.version - known if is_warm else 0
        time.sleep(POLL_S)
    over.set()
    producing.join()
    for process in running:
        process.terminate()
    for process in running:
        process.communicate()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    p50, p95, p99 = np.percentile(ages, [50, 95, 99])
    print(f"{way.commit}, {way.processes} processes, {rate:,} rows/s for {seconds} s: {len(ages):,} rows")
    print(f"  {60 * commits / seconds:.0f} commits a minute; freshness p50 {p50:.2f} s, p95 {p95:.2f} s, p99 {p99:.2f} s")
    print(f"  {cpu_s:.1f} s of CPU, start and end included", flush=True)


def _produce(broker: Kafka, topic: str, rate: int, over: threading.Event, stamps: list[list[float]]) -> None:
    """In steps of 20 ms; `stamps` has the moment of each offset of each partition."""
    producer, began, number = broker.producer(linger_ms=1), time.monotonic(), 0
    while not over.is_set():
        due = int((time.monotonic() - began) * rate)
        while number < due:
            partition = number % len(stamps)
            stamps[partition].append(time.time())
            producer.produce(topic, json.dumps(order(number % 100_000, number)).encode(), partition=partition)
            number += 1
        producer.poll(0)
        time.sleep(0.02)
    producer.flush(30)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rates", default="1000,10000")
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--spark", action="store_true", help="freshness by opal stream --spark")
    parser.add_argument("--commit", default="direct", help="in each of these ways, after each other: direct,gathered")
    parser.add_argument("--processes", type=int, default=1, help="that share the rows of a full topic, or the rate, with a partition each")
    args = parser.parse_args()
    shared = [f"--processes={args.processes}"] if args.processes > 1 else []
    print(f"{os.cpu_count()} cores, shared by broker, producer, stream and reader")
    with kafka_broker() as broker, tempfile.TemporaryDirectory() as folder:
        if args.rows:
            throughput(broker, Path(folder) / "full", args.rows, args.commit.split(","), shared)
        for rate in (int(text) for text in args.rates.split(",") if text):
            for commit in args.commit.split(","):
                way = Way(commit=commit, processes=args.processes, more=["--spark"] if args.spark else [])
                freshness(broker, Path(folder) / f"{commit}-{rate}", rate, args.seconds, way)


if __name__ == "__main__":
    main()
