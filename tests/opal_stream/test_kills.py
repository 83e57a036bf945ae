"""kill -9 of the process at random moments, a second process by mistake, restarts of the broker: each record once.

OPAL_STREAM_KILLS says how many (5); OPAL_SEED chooses the moments.
"""

import json
import os
import random
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from opal_lake.inspect.check import check_table
from opal_lake.table import Table
from tests.fixtures_kafka import Kafka, kafka_broker
from tests.opal_stream.orders import new_table, order, read

KILLS = int(os.environ.get("OPAL_STREAM_KILLS", "5"))
SEED = os.environ.get("OPAL_SEED", "17")
PARTITIONS, KEYS = 3, 500


def start(table: Table, broker: Kafka, topic: str) -> "subprocess.Popen[bytes]":
    words = ["stream", table.uri, "--bootstrap-servers", broker.servers, "--topic", topic, "--flush-rows", "300", "--give-up-after", "2m"]
    return subprocess.Popen([sys.executable, "-m", "opal_lake.cli", *words], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


class Shop:
    """Produces at a random rate until it is told to stop, and knows what the table has to be. A key stays in its partition."""

    def __init__(self, broker: Kafka, topic: str) -> None:
        self.model: dict[int, tuple[str, int]] = {}
        self.counts = [0] * PARTITIONS
        self._broker, self._topic = broker, topic
        self._over = threading.Event()
        self._dice = random.Random(f"{SEED} shop")
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._over.set()
        self._thread.join(120)

    def _run(self) -> None:
        producer = self._broker.producer(enable_idempotence=True, delivery_timeout_ms=120_000)
        moment = 0
        while not self._over.is_set():
            for _ in range(self._dice.randrange(1, 200)):
                key, moment = self._dice.randrange(KEYS), moment + 1
                deletes = self._dice.random() < 0.1
                value = order(key, moment, name=f"v{moment}", op="D" if deletes else "U")
                producer.produce(self._topic, json.dumps(value).encode(), partition=key % PARTITIONS)
                self.counts[key % PARTITIONS] += 1
                if deletes:
                    self.model.pop(key, None)
                else:
                    self.model[key] = (f"v{moment}", moment)
            producer.poll(0)
            time.sleep(self._dice.random() * 0.05)
        assert producer.flush(120) == 0


@pytest.mark.slow
def test_each_record_is_once_in_the_table_whatever_dies(tmp_path: Path) -> None:
    dice, table = random.Random(SEED), new_table(tmp_path)
    with kafka_broker() as broker:
        topic = broker.create_topic("orders", PARTITIONS)
        shop, processes = Shop(broker, topic), [start(table, broker, "orders")]
        try:
            for kill in range(KILLS):
                time.sleep(1 + 4 * dice.random())
                if kill % 5 == 3:
                    processes.append(start(table, broker, topic))  # by mistake: one of both is fenced off and ends
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
    positions = [position for _, position in sorted(table.snapshot_at().positions.items())]
    assert positions == shop.counts
    assert table.snapshot_at().root.rows == sum(shop.counts)  # none twice, none lost
    rows = {row["id"]: row["name"] for row in table.read(columns=["id", "name"]).to_pylist()}
    assert rows == {key: name for key, (name, _) in shop.model.items()}
    assert check_table(table) == []
