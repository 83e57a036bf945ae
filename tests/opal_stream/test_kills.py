"""kill -9 at random moments, a second process by mistake, restarts of the broker.

OPAL_STREAM_KILLS says how many (5); OPAL_SEED chooses the moments.
"""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from opal_lake.exit_codes import OK, RETRY
from opal_lake.table import Table
from tests.fixtures_kafka import Kafka, kafka_broker
from tests.opal_stream.orders import ends, gather, gathered, new_table, read
from tests.opal_stream.shop import PARTITIONS, SEED, Shop, check_shop

KILLS = int(os.environ.get("OPAL_STREAM_KILLS", "5"))


def start(table: Table, broker: Kafka, topic: str, *more: str) -> "subprocess.Popen[bytes]":
    words = [
        "stream",
        "run",
        table.uri,
        "--bootstrap-servers",
        broker.servers,
        "--topic",
        topic,
        "--flush-rows",
        "300",
        "--give-up-after",
        "2m",
    ]
    return run(*words, *more)


def run(*words: str) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        [sys.executable, "-m", "opal_lake.cli", *words],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def wait_until_committed(table: Table) -> None:
    """All are up: only then it says something that they are killed."""
    until = time.monotonic() + 120
    while not ends(table):
        assert time.monotonic() < until
        time.sleep(0.1)


@pytest.mark.slow
def test_killed_processes_lose_and_double_no_record(tmp_path: Path) -> None:
    dice, table = random.Random(SEED), new_table(tmp_path)
    with kafka_broker() as broker:
        topic = broker.create_topic("orders", PARTITIONS)
        shop, processes = Shop(broker, topic), [start(table, broker, "orders")]
        try:
            for kill in range(KILLS):
                time.sleep(1 + 4 * dice.random())
                if kill % 5 == 3:
                    processes.append(
                        start(table, broker, topic)
                    )  # by mistake: one of both is fenced off and ends
                    time.sleep(3)
                if kill % 5 == 4:
                    broker.stop(kill=True)
                    broker.start()
                processes[-1].kill()
                processes.append(start(table, broker, topic))
            time.sleep(2)
        finally:
            shop.close()
            for process in processes:
                process.kill()
                process.communicate()
        read(table, broker, topic)
    check_shop(shop, table)


@pytest.mark.slow
def test_each_record_is_once_in_the_table_whatever_dies_where_commits_are_gathered(
    tmp_path: Path,
) -> None:
    """Run three readers, sometimes one of them twice, and two committers by mistake."""
    dice, table = random.Random(f"{SEED} gathered"), new_table(tmp_path)
    with kafka_broker() as broker:
        topic = broker.create_topic("orders", PARTITIONS)
        gathers = ["stream", "commit", table.uri, "--flush-interval", "1s", "--give-up-after", "2m"]
        more = ["--commit", "gathered", "--flush-interval", "1s", "--partitions"]
        starts: list[Callable[[], subprocess.Popen[bytes]]] = [
            lambda number=number: start(table, broker, topic, *more, str(number))
            for number in range(PARTITIONS)
        ]
        starts += [lambda: run(*gathers)] * 2
        shop, processes = Shop(broker, topic), [begin() for begin in starts]
        by_mistake: list[subprocess.Popen[bytes]] = []
        try:
            wait_until_committed(table)
            for kill in range(3 * KILLS):
                time.sleep(0.2 + 2 * dice.random())
                if kill % 4 == 2:
                    by_mistake.append(starts[dice.randrange(PARTITIONS)]())
                chosen = dice.randrange(len(starts))
                processes[chosen].kill()
                processes[chosen].wait()
                for position, process in enumerate(
                    processes
                ):  # the killed one, and those that another one of their partition has fenced off
                    if process.poll() is not None:
                        processes[position] = starts[position]()
            time.sleep(2)
        finally:
            shop.close()
            for process in (*processes, *by_mistake):
                process.kill()
                process.communicate()
        read(table, broker, topic, commit="gathered")
        gather(table)
    check_shop(shop, table)
    assert gathered(table) == []


@pytest.mark.slow
def test_each_record_is_once_in_the_table_whatever_dies_below_a_supervisor_and_it_too(
    tmp_path: Path,
) -> None:
    """Kill supervisor, committer and readers; each goes on where all stand."""
    dice, table = random.Random(f"{SEED} supervised"), new_table(tmp_path)
    with kafka_broker() as broker:
        topic = broker.create_topic("orders", PARTITIONS)
        more = [
            "--commit",
            "gathered",
            "--processes",
            "2",
            "--flush-interval",
            "1s",
            "--gathered-mb",
            "1",
        ]
        shop, supervisor = Shop(broker, topic), start(table, broker, topic, *more)
        try:
            wait_until_committed(table)
            for kill in range(2 * KILLS):
                time.sleep(1 + 3 * dice.random())
                below = psutil.Process(supervisor.pid).children()
                if kill % 4 == 3 or not below:
                    supervisor.kill()
                    supervisor.communicate()
                    supervisor = start(
                        table, broker, topic, *more
                    )  # at once: the children of the other one are still there
                else:
                    dice.choice(below).kill()
        finally:
            shop.close()
            supervisor.terminate()
            supervisor.communicate(timeout=60)
        assert supervisor.returncode in (
            OK,
            RETRY,
            -signal.SIGTERM,
        )  # of what was killed last, or before it could listen
        read(table, broker, topic, commit="gathered")
        gather(table)
    check_shop(shop, table)
    assert gathered(table) == []
