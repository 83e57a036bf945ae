"""A PostgreSQL table, its changes by logical decoding, Debezium's envelopes, Kafka, kill -9.

OPAL_DEBEZIUM_CHANGES says how many change events there are (5,000); OPAL_SEED chooses them.
"""

import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from opal_lake.definition.table_spec import TableLayout
from opal_lake.table import Table
from tests.fixtures_kafka import Kafka
from tests.fixtures_postgres import Postgres, postgres_folder, postgres_server
from tests.kit.check import check_table
from tests.opal_stream import toast
from tests.opal_stream.bank import SETTINGS, Bank, connect
from tests.opal_stream.connector import Connector
from tests.opal_stream.orders import gather
from tests.opal_stream.pgoutput import UNCHANGED, Change, Decoding
from tests.opal_stream.toast import Flushes

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
    """Return a server with logical decoding; skip where no server can run."""
    folder = postgres_folder()
    assert folder is not None
    with postgres_server(folder, SETTINGS) as own:
        yield own


@pytest.mark.slow
@pytest.mark.parametrize("has_schema", [True, False], ids=["as by default", "without schema"])
def test_the_table_is_the_database(
    kafka: Kafka, server: Postgres, tmp_path: Path, has_schema: bool
) -> None:
    table = Table.create(str(tmp_path / "accounts"), SCHEMA, **asdict(LAYOUT))
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
        f"{events:,} events {connector.kinds}, {sum(connector.counts):,} messages: "
        f"produced in {produced_s:.0f} s"
    )
    print(
        f"streamed in {took_s:.1f} s, {sum(connector.counts) / took_s:,.0f} messages/s, "
        f"kills included; {len(bank.rows()):,} rows"
    )
    assert sorted(table.snapshot_at().positions.values()) == sorted(connector.counts)
    assert differences(table, bank) == []
    assert check_table(table) == []


CREATE = """
CREATE TABLE letters (id bigint PRIMARY KEY, small bigint, note text, data bytea, tags int[]);
ALTER TABLE letters ALTER note SET STORAGE EXTERNAL, ALTER data SET STORAGE EXTERNAL,
    ALTER tags SET STORAGE EXTERNAL;
CREATE PUBLICATION letters FOR TABLE letters
"""
WRITE = """
INSERT INTO letters (id, small, note, data, tags)
    VALUES (%(id)s, %(small)s, %(note)s, %(data)s, %(tags)s)
ON CONFLICT (id) DO UPDATE SET small = excluded.small
"""
LARGE_VALUES: dict[str, Callable[[random.Random], Any]] = {
    "note": lambda dice: "".join(dice.choices("abcé", k=dice.choice([0, 10, 4000]))),
    "data": lambda dice: dice.randbytes(dice.choice([0, 10, 4000])),
    "tags": lambda dice: [dice.randrange(1000) for _ in range(dice.choice([0, 3, 2000]))],
}


@pytest.mark.slow
@pytest.mark.parametrize("is_gathered", [False, True], ids=["direct", "gathered"])
def test_large_values_that_did_not_change_are_those_of_the_database(
    server: Postgres, is_gathered: bool
) -> None:
    """With the default replica identity pgoutput leaves them out."""
    dice = random.Random(os.environ.get("OPAL_SEED", "17"))
    connection = connect(server)
    connection.autocommit = True
    cursor = connection.cursor()
    cursor.execute(CREATE)
    decoding = Decoding(cursor=connection.cursor(), slot="letters", publication="letters")
    decoding.begin()
    flushes = Flushes(table=toast.new_table(), policy="fail", is_gathered=is_gathered)
    left_out = 0
    for _ in range(40):
        for _ in range(dice.randrange(1, 12)):
            change_letter(cursor, dice)
        events = [toast_event(change) for change in decoding.changes()]
        left_out += sum(len(unchanged) for *_, unchanged in events)
        if events:
            flushes.flush(*(toast.event(*parts) for parts in events))
        if is_gathered and dice.random() < 0.3:
            gather(flushes.table)
    if is_gathered:
        gather(flushes.table)
    cursor.execute("SELECT id, small, note, data, tags FROM letters")
    names = [column.name for column in cursor.description]
    rows = [dict(zip(names, row, strict=True)) for row in cursor]
    theirs = {row["id"]: {**row, "data": bytes(row["data"])} for row in rows}
    assert left_out > 50
    assert toast.stored(flushes.table) == theirs
    assert check_table(flushes.table) == []


def change_letter(cursor: Any, dice: random.Random) -> None:
    key = dice.randrange(8)
    large = {name: make(dice) for name, make in LARGE_VALUES.items()}
    values = {"id": key, "small": dice.randrange(1000), **large}
    chance = dice.random()
    if chance < 0.1:
        cursor.execute("DELETE FROM letters WHERE id = %s", [key])
    elif chance < 0.3:
        name = dice.choice([*large])
        cursor.execute(f"UPDATE letters SET {name} = %s WHERE id = %s", [large[name], key])
    else:
        cursor.execute(WRITE, values)


def toast_event(change: Change) -> tuple[str, dict[str, Any], int, tuple[str, ...]]:
    """Return Debezium's form of a change, and the columns with the placeholder."""
    row = change.after if change.after is not None else change.before
    assert row is not None
    unchanged = tuple(name for name, value in row.items() if value is UNCHANGED)
    values: dict[str, Any] = dict.fromkeys(row)
    for name, text in row.items():
        if text is None or text is UNCHANGED:
            continue
        match name:
            case "note":
                values[name] = text
            case "data":
                values[name] = bytes.fromhex(text.removeprefix("\\x"))
            case "tags":
                values[name] = json.loads(text.replace("{", "[").replace("}", "]"))
            case _:
                values[name] = int(text)
    operation = {"I": "c", "U": "u", "D": "d"}[change.operation]
    return operation, values, change.lsn, unchanged


def stream_and_kill(
    table: Table, kafka: Kafka, topic: str, messages: int, more: tuple[str, ...]
) -> None:
    """Run two processes, and kill one at a third of the messages, the other at two."""
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
        "run",
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
    own_rows = {(row["region"], row["id"]): row for row in table.read(columns=COLUMNS).to_pylist()}
    theirs = {(row["region"], row["id"]): row for row in bank.rows()}
    wrong = [key for key in own_rows.keys() | theirs.keys() if own_rows.get(key) != theirs.get(key)]
    return [(own_rows.get(key), theirs.get(key)) for key in wrong[:10]]
