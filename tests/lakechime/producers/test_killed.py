"""Writers and watchers of a table, killed at random: each commit is one event."""

import os
import random
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path

import pytest

from lakechime import LakeChime
from lakechime.producers.opal import sync_opal
from opal_lake.definition.table_spec import TableLayout
from opal_lake.table import Table
from tests.fixtures_cli import SOURCES
from tests.lakechime.producers.build import equal_to_log
from tests.opal_lake import shop

NAME = "shop.prices"
KILLS = 10
WRITER = """
import itertools, sys
import pyarrow as pa
from opal_lake.table import Table
table = Table.open(sys.argv[1])
schema = pa.schema([("sku", pa.string()), ("at", pa.int64()), ("price", pa.int32())])
for number in itertools.count():
    rows = pa.table({"sku": ["a"], "at": [number], "price": [1]}, schema)
    table.ingest(rows, metadata="inline", partition_key=f"k{number % 3}")
"""
WATCHER = """
import sys
from lakechime import LakeChime
from lakechime.producers.opal import sync_opal
with LakeChime.open(sys.argv[2]) as client:
    while True:
        sync_opal(client, sys.argv[1])
"""


def wait_for(client: LakeChime, seq: int) -> None:
    """Wait for a seq; a process that starts takes seconds, on a busy machine many."""
    end = time.monotonic() + 240
    while client.head() < seq:
        assert time.monotonic() < end, "nobody registers any more"
        time.sleep(0.02)


@pytest.mark.slow
def test_each_commit_once_whoever_is_killed(address: str, tmp_path: Path) -> None:
    layout = TableLayout(keys=["sku"], delta="at", properties={"event_table": NAME})
    table, chance = (
        Table.create(f"{tmp_path}/prices", shop.SCHEMA, **asdict(layout)),
        random.Random(7),
    )
    with LakeChime.open(address) as client:
        client.head()
        environment = {**os.environ, "PYTHONPATH": str(SOURCES), "LAKECHIME_URL": address}

        def start(code: str) -> subprocess.Popen[bytes]:
            return subprocess.Popen(
                [sys.executable, "-c", code, table.uri, address],
                env=environment,
                stderr=subprocess.DEVNULL,
            )

        codes = [WRITER, WRITER, WATCHER]
        running = [start(code) for code in codes]
        for _ in range(KILLS):
            wait_for(client, client.head() + 5)
            time.sleep(chance.random() / 5)
            victim = chance.randrange(len(codes))
            running[victim].kill()
            running[victim].wait()
            running[victim] = start(codes[victim])
        for process in running:
            process.kill()
            process.wait()
        sync_opal(client, table)
        assert table.snapshot_at().version >= 5 * KILLS
        equal_to_log(client, table, NAME)
