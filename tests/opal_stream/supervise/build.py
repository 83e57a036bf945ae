"""Supervised streams and their processes, for tests."""

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import psutil

from opal_lake.table import Table
from tests.fixtures_kafka import Kafka
from tests.opal_stream.orders import order


def fill(kafka: Kafka, topic: str, counts: tuple[int, ...], first: int = 0) -> int:
    """Orders with ids of their own; the next one."""
    for partition, count in enumerate(counts):
        kafka.produce(
            topic, [order(first + number) for number in range(count)], partition=partition
        )
        first += count
    return first


TABLES: dict[str, str] = {}  # of each topic: a committer knows no topic


def command(table: Table, kafka: Kafka, topic: str, *more: str) -> list[str]:
    TABLES[topic] = table.uri
    words = [
        "stream",
        "run",
        table.uri,
        "--bootstrap-servers",
        kafka.servers,
        "--topic",
        topic,
        *more,
    ]
    return [sys.executable, "-m", "opal_lake.cli", *words]


@contextmanager
def supervised(
    table: Table, kafka: Kafka, topic: str, *more: str
) -> "Iterator[subprocess.Popen[str]]":
    words = command(table, kafka, topic, *more)
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()
        wait_until(lambda: not watched_of(topic), "processes were left behind")


def watched_of(topic: str) -> list[psutil.Process]:
    """Whatever a supervisor started."""
    actual = []
    for process in psutil.process_iter(["cmdline", "status"]):
        words = process.info["cmdline"] or []
        if (
            {f"--topic={topic}", TABLES.get(topic)} & {*words}
            and "--watched" in words
            and process.info["status"] != psutil.STATUS_ZOMBIE
        ):
            actual.append(process)
    return actual


def children_of(topic: str) -> list[psutil.Process]:
    """Return the processes that read, by what they read."""
    return sorted((process for process in watched_of(topic) if share_of(process)), key=share_of)


def committers_of(topic: str) -> list[psutil.Process]:
    return [process for process in watched_of(topic) if "commit" in process.info["cmdline"]]


def share_of(process: psutil.Process) -> str:
    return next(
        (
            word.partition("=")[2]
            for word in process.info["cmdline"]
            if word.startswith("--partitions=")
        ),
        "",
    )


def wait_until(holds: Callable[[], bool], what: str = "", most_s: float = 60) -> None:
    until = time.monotonic() + most_s
    while not holds():
        assert time.monotonic() < until, what
        time.sleep(0.2)
