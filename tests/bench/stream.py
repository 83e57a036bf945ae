"""The rate that `opal stream` keeps up with, and the freshness of its table.

A real broker on this machine, which shares its cores with the stream.

python -m tests.bench.stream [--rows 1000000] [--rates 1000,10000] [--seconds 60] [--maintain 60s]
[--spark] [--commit direct,gathered] [--processes 4] [--keys 1000000] [--iceberg 1000,5000]

Rows/s is of one process, or of N, over a topic that is full, JSON with 5 columns through to the
commits; next to it per second of CPU time. Freshness is from the produce timestamp of a message to
the moment when a reader that polls the head finds its offset committed (`stream_freshness`). With
--iceberg the same load then goes into Iceberg's sink for Kafka Connect, at each of these commit
intervals.
"""

import argparse
import contextlib
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from opal_lake.duration import parse_duration
from opal_lake.table import Table
from tests.bench import iceberg_sink
from tests.bench.stream_freshness import Load, freshness
from tests.fixtures_kafka import Kafka, kafka_broker
from tests.opal_stream.orders import new_table, order

PARTITIONS = 4
POLL_S, WARM_S, WARM_JVM_S = 0.01, 5.0, 20.0
END = ("--until-empty", "--json")


def stream(table: Table, broker: Kafka, topic: str, *more: str) -> "subprocess.Popen[bytes]":
    words = [
        "stream",
        "run",
        table.uri,
        "--bootstrap-servers",
        broker.servers,
        "--topic",
        topic,
        "--flush-interval",
        "1s",
        *more,
    ]
    return subprocess.Popen([sys.executable, "-m", "opal_lake.cli", *words], stdout=subprocess.PIPE)


def throughput(
    broker: Kafka, folder: Path, rows: int, commits: Sequence[str], more: Sequence[str]
) -> None:
    topic = broker.create_topic("full", PARTITIONS)
    producer = broker.producer(linger_ms=50)
    for number in range(rows):
        producer.produce(
            topic,
            json.dumps(order(number % (rows // 4), number)).encode(),
            partition=number % PARTITIONS,
        )
        if number % 1000 == 0:
            producer.poll(0)
    assert producer.flush(60) == 0
    for commit in commits:
        (folder / commit).mkdir(parents=True)
        table = new_table(folder / commit)
        summary = _timed(
            f"{commit} commits",
            rows,
            lambda table=table, commit=commit: stream(
                table, broker, topic, *END, "--commit", commit, *more
            ),
        )
        if commit == "gathered":
            summary = _timed("  the committer", rows, lambda table=table: committer(table, *END))
        assert table.snapshot_at().root.rows == summary["records"] == rows


def _timed(what: str, rows: int, start: Callable[[], "subprocess.Popen[bytes]"]) -> dict[str, Any]:
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    process = start()
    rss, output = 0, b""
    while process.returncode is None:
        rss = max(rss, _rss_mb(process.pid))
        with contextlib.suppress(subprocess.TimeoutExpired):
            output, _ = process.communicate(timeout=POLL_S)
    took_s, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s, summary = (
        after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
        json.loads(output),
    )
    print(
        f"{what}: {rows:,} rows in {took_s:.1f} s and {summary['flushes']} flushes, start and end "
        f"included: {rows / took_s:,.0f} rows/s"
    )
    print(
        f"  {cpu_s:.1f} s of CPU: {rows / cpu_s:,.0f} rows a second of one core; at most {rss:,} "
        "MB",
        flush=True,
    )
    return summary


def _rss_mb(pid: int) -> int:
    with contextlib.suppress(OSError, ValueError, IndexError):
        return (
            int(Path(f"/proc/{pid}/statm").read_text(encoding="utf-8").split()[1])
            * os.sysconf("SC_PAGE_SIZE")
            >> 20
        )
    return 0


def committer(table: Table, *more: str) -> "subprocess.Popen[bytes]":
    words = ["stream", "commit", table.uri, "--flush-interval", "1s", *more]
    return subprocess.Popen([sys.executable, "-m", "opal_lake.cli", *words], stdout=subprocess.PIPE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """The way in which rows become visible.

    One process, or so many with a partition each, which commit themselves, or leave it to a
    committer.
    """

    commit: str = "direct"
    processes: int = 1
    more: Sequence[str] = ()

    def start(self, table: Table, broker: Kafka, topic: str) -> "list[subprocess.Popen[bytes]]":
        shares = (
            [["--partitions", str(number)] for number in range(self.processes)]
            if self.processes > 1
            else [[]]
        )
        processes = [
            stream(table, broker, topic, *share, "--commit", self.commit, *self.more)
            for share in shares
        ]
        if self.commit == "gathered":
            processes.append(committer(table))
        return processes


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rates", default="1000,10000")
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--spark", action="store_true", help="freshness by opal stream run --spark")
    parser.add_argument(
        "--commit",
        default="direct",
        help="in each of these ways, after each other: direct,gathered",
    )
    parser.add_argument(
        "--processes",
        type=int,
        default=1,
        help="that share the rows of a full topic, or the rate, with a partition each",
    )
    parser.add_argument(
        "--maintain",
        default="0s",
        help="the table at this interval meanwhile, without Spark, as 60s; 0s: never",
    )
    parser.add_argument(
        "--keys",
        type=int,
        default=1_000_000,
        help="that are updated in turn, where freshness is measured",
    )
    parser.add_argument(
        "--iceberg",
        nargs="?",
        const="1000",
        default="",
        help="next to Iceberg's sink, with these commit intervals in ms",
    )
    args = parser.parse_args()
    shared = [f"--processes={args.processes}"] if args.processes > 1 else []
    print(f"{os.cpu_count()} cores, shared by broker, producer, stream, maintenance and reader")
    with kafka_broker() as broker, tempfile.TemporaryDirectory() as folder:
        if args.rows:
            throughput(broker, Path(folder) / "full", args.rows, args.commit.split(","), shared)
        for rate in (int(text) for text in args.rates.split(",") if text):
            load = Load(
                rate=rate,
                seconds=args.seconds,
                warm_s=WARM_JVM_S if args.spark else WARM_S + args.processes,
                partitions=args.processes if args.processes > 1 else PARTITIONS,
                keys=args.keys,
                maintain_s=parse_duration(args.maintain, name="--maintain") / 1e6,
            )
            for commit in args.commit.split(","):
                way = Way(
                    commit=commit, processes=args.processes, more=["--spark"] if args.spark else []
                )
                print(
                    f"{commit}, {args.processes} processes, {'Spark, ' * args.spark}{rate:,} "
                    f"rows/s for {args.seconds} s"
                )
                freshness(broker, Path(folder) / f"rate-{commit}-{rate}", load, way.start)
            for interval_ms in (int(text) for text in args.iceberg.split(",") if text):
                print(
                    f"Iceberg {iceberg_sink.VERSION}'s sink, a commit each {interval_ms:,} ms, "
                    f"{rate:,} rows/s for {args.seconds} s"
                )
                table_folder = Path(folder) / f"iceberg-{interval_ms}-{rate}"
                iceberg_sink.freshness(
                    broker, table_folder, replace(load, warm_s=WARM_JVM_S), interval_ms
                )


if __name__ == "__main__":
    main()
