"""Streams with and without Spark take turns, and kill -9 ends each of them.

Each record is in the table once. OPAL_STREAM_KILLS says how many turns (4); OPAL_SEED chooses the
moments.
"""

import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from opal_lake.table import Table
from tests.fixtures_kafka import Kafka, kafka_broker
from tests.opal_stream.orders import new_table, read
from tests.opal_stream.shop import PARTITIONS, SEED, Shop, check_shop

TURNS = int(os.environ.get("OPAL_STREAM_KILLS", "4"))
START_S = 60


def start(table: Table, broker: Kafka, *more: str) -> "subprocess.Popen[bytes]":
    words = [
        "stream",
        "run",
        table.uri,
        "--bootstrap-servers",
        broker.servers,
        "--topic",
        "orders",
        "--flush-interval",
        "1s",
        *more,
    ]
    return subprocess.Popen(
        [sys.executable, "-m", "opal_lake.cli", *words],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )


def wait_for_commits(table: Table, count: int, process: "subprocess.Popen[bytes]") -> None:
    reached, until = table.snapshot_at().version + count, time.monotonic() + START_S
    while table.snapshot_at().version < reached:
        assert process.poll() is None, process.stderr.read().decode() if process.stderr else ""
        assert time.monotonic() < until
        time.sleep(0.05)


@pytest.mark.slow
def test_each_record_is_once_in_the_table_whoever_reads_and_is_killed(tmp_path: Path) -> None:
    dice, table = random.Random(f"{SEED} turns"), new_table(tmp_path)
    with kafka_broker() as broker:
        broker.create_topic("orders", PARTITIONS)
        shop = Shop(broker, "orders")
        try:
            for turn in range(TURNS):
                process = start(table, broker, *(["--spark"] if turn % 2 else []))
                try:
                    wait_for_commits(table, 3, process)
                    time.sleep(2 * dice.random())
                finally:
                    process.kill()
                    process.wait()
        finally:
            shop.close()
        last = [
            sys.executable,
            "-m",
            "opal_lake.cli",
            "stream",
            "run",
            table.uri,
            "--bootstrap-servers",
            broker.servers,
            "--topic",
            "orders",
        ]
        subprocess.run([*last, "--until-empty", "--spark"], check=True, capture_output=True)
        assert read(table, broker, "orders").flushes == 0, (
            "nothing was left to a stream without Spark"
        )
    check_shop(shop, table)
