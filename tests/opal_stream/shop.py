"""A shop that orders come from at random, and what a table has to be that they were read into."""

import json
import os
import random
import threading
import time

from opal_lake.table import Table
from tests.fixtures_kafka import Kafka
from tests.kit.check import check_table
from tests.opal_stream.orders import ends, order

SEED = os.environ.get("OPAL_SEED", "17")
PARTITIONS, KEYS = 3, 500


class Shop:
    """A producer at a random rate that knows what the table has to hold.

    A key stays in its partition.
    """

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
                producer.produce(
                    self._topic, json.dumps(value).encode(), partition=key % PARTITIONS
                )
                self.counts[key % PARTITIONS] += 1
                if deletes:
                    self.model.pop(key, None)
                else:
                    self.model[key] = (f"v{moment}", moment)
            producer.poll(0)
            time.sleep(self._dice.random() * 0.05)
        assert producer.flush(120) == 0


def check_shop(shop: Shop, table: Table) -> None:
    assert ends(table) == shop.counts
    assert table.snapshot_at().root.rows == sum(shop.counts)  # none twice, none lost
    rows = {row["id"]: row["name"] for row in table.read(columns=["id", "name"]).to_pylist()}
    assert rows == {key: name for key, (name, _) in shop.model.items()}
    assert check_table(table) == []
