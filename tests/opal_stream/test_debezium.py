"""A PostgreSQL table, its changes by logical decoding, Debezium's envelopes, Kafka, `opal stream` with kill -9: table = database.

OPAL_DEBEZIUM_CHANGES says how many change events there are (5,000); OPAL_SEED chooses them.
"""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from opal_lake.inspect.check import check_table
from opal_lake.spec.table_spec import TableLayout
from opal_lake.table import Table
from tests.fixtures_kafka import Kafka
from tests.fixtures_postgres import Postgres, postgres_folder, postgres_server
from tests.opal_stream.bank import SETTINGS, Bank
from tests.opal_stream.connector import Connector

CHANGES = int(os.environ.get("OPAL_DEBEZIUM_CHANGES", "5000"))
PARTITIONS, PROCESSES = 4, ("0,1", "2,3")
SCHEMA = pa.schema(
    {
        "region": pa.string(),
        "id": pa.int64(),
        "name": pa.string(),
        "balance": pa.decimal128(14, 2),
        "rate": pa.decimal128(38, 12),
        "opened": pa.timestamp("us", "UTC"),
        "seen": pa.timestamp("us"),
        "born": pa.date32(),
        "active": pa.bool_(),
        "score": pa.float64(),
        "visits": pa.int32(),
        "note": pa.string(),
        "lsn": pa.int64(),
        "op": pa.string(),
    }
)
COLUMNS = SCHEMA.names[:-2]
LAYOUT = TableLayout(keys=["region", "id"], delta="lsn", deletes="op = 'd'")
OF_EVENT = ("--column", "lsn=@source.lsn", "--column", "op=@op")


@pytest.fixture
def server(postgres: Postgres) -> Iterator[Postgres]:
    """One that keeps what logical decoding needs; the session's says whether there is a server at all."""
    folder = postgres_folder()
    assert folder is not None
    with postgres_server(folder, SETTINGS) as own:
        yield own


@pytest.mark.slow
@pytest.mark.parametrize("has_schema", [True, False], ids=["as by default", "without schema"])
def test_the_table_is_the_database(
    kafka: Kafka, server: Postgres, tmp_path: Path, has_schema: bool
) -> None:
    table = Table.create(str(tmp_path / "accounts"), SCHEMA, LAYOUT)
    topic = kafka.create_topic(f"bank-{has_schema}", PARTITIONS)
    bank = Bank(server, keys=max(50, CHANGES // 50))
    producer = kafka.producer(linger_ms=50, compression_type="lz4")
    connector = Connector(
        producer=producer, topic=topic, partitions=PARTITIONS, has_schema=has_schema
    )
    began_s = time.monotonic()
    connector.snapshot(*bank.begin())
    while sum(connector.kinds.values()) < CHANGES:
        bank.change(transactions=min(500, max(20, CHANGES // 200)))
        for change in bank.decoding.changes():
            connector.change(change)
    assert producer.flush(60) == 0
    produced_s = time.monotonic() - began_s
    assert set(connector.kinds) == set("rcud")
    assert all(
        customer.did["rollback"] and customer.did["UniqueViolation"] for customer in bank.customers
    )
    began_s = time.monotonic()
    stream_and_kill(
        table, kafka, topic, sum(connector.counts), () if has_schema else ("--time-unit", "us")
    )
    took_s, events = time.monotonic() - began_s, sum(connector.kinds.values())
    print(
        f"{events:,} events {connector.kinds}, {sum(connector.counts):,} messages: produced in {produced_s:.0f} s"
    )
    print(
        f"streamed in {took_s:.1f} s, {sum(connector.counts) / took_s:,.0f} messages/s, kills included; {len(bank.rows()):,} rows"
    )
    assert sorted(table.snapshot_at().positions.values()) == sorted(connector.counts)
    assert differences(table, bank) == []
    assert check_table(table) == []


def stream_and_kill(
    table: Table, kafka: Kafka, topic: str, messages: int, more: tuple[str, ...]
) -> None:
    """Two processes; one is killed when a third of the messages is committed, the other at two thirds, and both start again."""
    running = [start(table, kafka, topic, numbers, more) for numbers in PROCESSES]
    try:
        for turn in range(2):
            while sum(table.snapshot_at().positions.values()) < (turn + 1) * messages // 3:
                assert {process.poll() for process in running} <= {None, 0}
                time.sleep(0.01)
            killed = next(n for n in (turn, 1 - turn) if running[n].poll() is None)
            running[killed].kill()
            running[killed].communicate()
            running[killed] = start(table, kafka, topic, PROCESSES[killed], more)
        assert [(process.communicate()[1], process.returncode) for process in running] == [
            (b"", 0)
        ] * 2
    finally:
        for process in running:
            process.kill()
            process.wait()


def start(
    table: Table, kafka: Kafka, topic: str, partitions: str, more: tuple[str, ...]
) -> "subprocess.Popen[bytes]":
    words = [
        "stream",
        table.uri,
        "--bootstrap-servers",
        kafka.servers,
        "--topic",
        topic,
        "--partitions",
        partitions,
        "--until-empty",
    ]
    limits = ["--format", "debezium-json", "--flush-rows", str(max(500, CHANGES // 100))]
    command = [sys.executable, "-m", "opal_lake.cli", *words, *limits, *OF_EVENT, *more]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def differences(table: Table, bank: Bank) -> list[tuple[Any, Any]]:
    """Rows of both sides that are not the same in every column, at most ten."""
    ours = {(row["region"], row["id"]): row for row in table.read(columns=COLUMNS).to_pylist()}
    theirs = {(row["region"], row["id"]): row for row in bank.rows()}
    wrong = [key for key in ours.keys() | theirs.keys() if ours.get(key) != theirs.get(key)]
    return [(ours.get(key), theirs.get(key)) for key in wrong[:10]]
