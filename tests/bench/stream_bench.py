"""What `opal stream` keeps up with, and how fresh a table is: a real broker on this machine, which shares its cores with the stream.

python -m tests.bench.stream_bench [--rows 1000000] [--rates 1000,10000] [--seconds 60] [--spark] [--processes N]

Rows/s is of one process, or of N, over a topic that is full, JSON with 5 columns through to the commits; beside it per second of CPU time.
Freshness is from the produce timestamp of a message to the moment when a reader that polls the head finds its offset committed.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from opal_lake.table import Table
from tests.fixtures_kafka import Kafka, kafka_broker
from tests.opal_stream.orders import new_table, order

PARTITIONS = 4
POLL_S, WARM_S, WARM_SPARK_S = 0.01, 5.0, 40.0


def stream(table: Table, broker: Kafka, topic: str, *more: str) -> "subprocess.Popen[bytes]":
    words = ["stream", table.uri, "--bootstrap-servers", broker.servers, "--topic", topic, "--flush-interval", "1s", *more]
    return subprocess.Popen([sys.executable, "-m", "opal_lake.cli", *words], stdout=subprocess.PIPE)


def throughput(broker: Kafka, folder: Path, rows: int, more: Sequence[str]) -> None:
    topic = broker.create_topic("full", PARTITIONS)
    producer = broker.producer(linger_ms=50)
    for number in range(rows):
        producer.produce(topic, json.dumps(order(number % (rows // 4), number)).encode(), partition=number % PARTITIONS)
        if number % 1000 == 0:
            producer.poll(0)
    assert producer.flush(60) == 0
    table = new_table(folder)
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    process = stream(table, broker, topic, "--until-empty", "--json", *more)
    output, _ = process.communicate()
    took_s, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    told = json.loads(output)
    assert table.snapshot_at().root.rows == told["records"] == rows
    print(f"{rows:,} rows in {took_s:.1f} s and {told['flushes']} commits, start and end included: {rows / took_s:,.0f} rows/s")
    print(f"  {cpu_s:.1f} s of CPU: {rows / cpu_s:,.0f} rows a second of one core; at most {after.ru_maxrss / 1024:,.0f} MB")


def freshness(broker: Kafka, folder: Path, rate: int, seconds: int, more: Sequence[str]) -> None:
    """The messages are in one partition, so that the table's position says which of them are visible."""
    topic, table = broker.create_topic(f"rate-{rate}"), new_table(folder)
    process, over = stream(table, broker, topic, *more), threading.Event()
    stamps: list[float] = []
    producing = threading.Thread(target=_produce, args=(broker, topic, rate, over, stamps), daemon=True)
    producing.start()
    warm_s = WARM_SPARK_S if "--spark" in more else WARM_S
    seen, ages, commits, until = 0, list[float](), 0, time.monotonic() + seconds + warm_s
    head = table.log.head()
    while time.monotonic() < until:
        head = table.log.refresh(head)
        position, now = next(iter(head.positions.values()), 0), time.time()
        if position > seen:
            if time.monotonic() > until - seconds:  # the first seconds are the start of the process
                commits += 1
                ages += (now - np.array(stamps[seen:position])).tolist()
            seen = position
        time.sleep(POLL_S)
    over.set()
    producing.join()
    process.terminate()
    process.communicate()
    p50, p95, p99 = np.percentile(ages, [50, 95, 99])
    print(f"{rate:,} rows/s for {seconds} s: {commits} commits, {len(ages):,} rows")
    print(f"  freshness p50 {p50:.2f} s, p95 {p95:.2f} s, p99 {p99:.2f} s")


def _produce(broker: Kafka, topic: str, rate: int, over: threading.Event, stamps: list[float]) -> None:
    """In steps of 20 ms; `stamps` has the moment of each offset."""
    producer, began, number = broker.producer(linger_ms=1), time.monotonic(), 0
    while not over.is_set():
        due = int((time.monotonic() - began) * rate)
        while number < due:
            stamps.append(time.time())
            producer.produce(topic, json.dumps(order(number % 100_000, number)).encode(), partition=0)
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
    parser.add_argument("--processes", type=int, help="rows/s by so many")
    args = parser.parse_args()
    shared = [f"--processes={args.processes}"] if args.processes else []
    print(f"{os.cpu_count()} cores, shared by broker, producer, stream and reader")
    with kafka_broker() as broker, tempfile.TemporaryDirectory() as folder:
        if args.rows:
            (Path(folder) / "full").mkdir()
            throughput(broker, Path(folder) / "full", args.rows, shared)
        for rate in (int(text) for text in args.rates.split(",") if text):
            (Path(folder) / str(rate)).mkdir()
            freshness(broker, Path(folder) / str(rate), rate, args.seconds, ["--spark"] if args.spark else [])


if __name__ == "__main__":
    main()
