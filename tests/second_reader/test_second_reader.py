"""A reader written from FORMAT.md alone sees what `Table.read` sees, at every version."""

import random
from collections.abc import Mapping
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings

from opal_lake.definition.ordering import encode_order
from opal_lake.definition.schema import Atomic
from opal_lake.errors import NotFoundError
from opal_lake.storage.protocol import Storage
from opal_lake.table import Table
from tests.golden import make_golden
from tests.kit.replay import Replay
from tests.kit.strategies import SERIAL, History, histories
from tests.opal_lake.build import HISTORIES, SEED, play
from tests.second_reader.second_reader import UnreadableError, read_table

SLOW_TABLES = 50
EVENT_TIMES = 3  # how many event times of each table are read, next to the current view
CREATED = pa.schema(
    [
        ("id", pa.int64()),
        ("at", pa.timestamp("us")),
        ("op", pa.string()),
        ("day", pa.date32()),
        ("price", pa.decimal128(12, 2)),
        ("weight", pa.float64()),
        ("tags", pa.list_(pa.string())),
        (
            "address",
            pa.struct(
                [
                    ("city name", pa.string()),
                    ("seen", pa.struct([("when", pa.timestamp("us", tz="UTC"))])),
                ]
            ),
        ),
        ("parts", pa.map_(pa.string(), pa.struct([("days", pa.list_(pa.date32()))]))),
    ]
)
ADDED = pa.struct([("a", pa.int32()), ("b", pa.list_(pa.timestamp("us", tz="UTC")))])
START = datetime(2026, 1, 1)


def store(storage: Storage, folder: Path) -> None:
    """Copy a table into a folder."""
    for entry in storage.list(""):
        file = folder / entry.path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(storage.get(entry.path))


def comparable(value: Any) -> str:
    """Return a text that is equal for equal values, as NaN, and -0.0 and 0.0."""
    if isinstance(value, float):
        return str(value + 0.0)
    if isinstance(value, Mapping):
        return str({name: comparable(part) for name, part in value.items()})
    if isinstance(value, list | tuple):
        return str([comparable(part) for part in value])
    return repr(value)


def content(rows: pa.Table) -> list[str]:
    """Return the rows without their order."""
    return sorted(comparable(row) for row in rows.to_pylist())


def order_word(table: Table, event_time: Any) -> int | None:
    """Return an event time as the format counts it."""
    delta = table.snapshot_at().spec.delta
    assert isinstance(delta.type, Atomic)
    return None if event_time is None else encode_order(event_time, delta.type, name=delta.name)


def compare(table: Table, folder: Path, event_times: list[Any]) -> int:
    """Compare both readers everywhere; return the number of equal reads."""
    compared = 0
    for version in range(table.snapshot_at().version + 1):
        for event_time in (None, *event_times):
            word = order_word(table, event_time)
            try:
                expected = table.read(version=version, event_time=event_time)
            except NotFoundError:
                with pytest.raises(UnreadableError):
                    read_table(folder, version, word)
                continue
            rows = read_table(folder, version, word)
            state = f"version {version}, event time {event_time!r}"
            assert rows.schema.equals(expected.schema), state
            assert content(rows) == content(expected), state
            compared += 1
    return compared


def compare_histories(file_format: str, tables: int, folder: Path) -> None:
    """Play random histories, and compare both readers on each."""
    played = 0

    @seed(SEED)
    @settings(
        max_examples=tables,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(history=histories((file_format,)))
    def run(history: History) -> None:
        nonlocal played
        played += 1
        replay: Replay = play(history)
        root = folder / str(played)
        store(replay.table.storage, root)
        moments = [moment for moment in replay.moments() if moment is not None]
        chosen = random.Random(SEED).sample(moments, min(EVENT_TIMES, len(moments)))
        assert compare(replay.table, root, chosen) > 0
        if erase_a_key(replay.table):
            erased = folder / f"{played}-erased"
            store(replay.table.storage, erased)
            assert compare(replay.table, erased, chosen) > 0

    run()


def erase_a_key(table: Table) -> bool:
    """Erase the key of a visible row, at once; return False for a table without such a row."""
    for name in table.snapshot_at().root.savepoints:
        table.release(name)
    table.metagen(all=True)
    serials = table.read(columns=[SERIAL])[SERIAL].to_pylist()
    if not serials:
        return False
    serial = random.Random(SEED).choice(sorted(serials))
    done = table.erase(f"{SERIAL} = {serial}", grace="0s")
    assert done.counts["remaining_files"] in (0, 1, 2)  # a commit and its list name a partition
    assert table.read(where=f"{SERIAL} = {serial}").num_rows == 0
    return True


@pytest.mark.parametrize("file_format", ["parquet", "orc"])
def test_second_reader_equals_table_read(file_format: str, tmp_path: Path) -> None:
    compare_histories(file_format, max(2, HISTORIES // 8), tmp_path)


@pytest.mark.slow(90)
@pytest.mark.parametrize("file_format", ["parquet", "orc"])
def test_second_reader_equals_table_read_on_fifty_tables(file_format: str, tmp_path: Path) -> None:
    compare_histories(file_format, SLOW_TABLES, tmp_path)


@pytest.mark.parametrize("name", make_golden.TABLES)
def test_second_reader_equals_table_read_of_the_frozen_table(name: str) -> None:
    folder = make_golden.HERE / name
    table = Table.open(str(folder))
    times = [datetime.fromisoformat(text) for text in make_golden.EVENT_TIMES]
    assert compare(table, folder, times) > len(times)


def nested_rows(random_: random.Random, count: int, schema: pa.Schema) -> pa.Table:
    """Return rows of nested columns, with nulls and empty values at every level."""
    moment = datetime(2026, 1, 1, tzinfo=UTC)
    rows = [
        {
            "id": random_.randint(0, 30),
            "at": START + timedelta(seconds=random_.randint(0, 100)),
            "op": random_.choice("UUUD"),
            "day": random_.choice([None, date(2026, 1, 1), date(2026, 1, 2)]),
            "price": Decimal(random_.randint(-999, 999)) / 100,
            "weight": random_.choice([0.5, float("nan"), -0.0, None]),
            "tags": random_.choice([None, [], ["a", None, "é"]]),
            "address": random_.choice(
                [
                    None,
                    {"city name": "x", "seen": None},
                    {"city name": None, "seen": {"when": moment}},
                ]
            ),
            "parts": random_.choice(
                [None, [], [("k", {"days": [date(2026, 1, 1), None]}), ("j", None)]]
            ),
            "more": random_.choice([None, {"a": 1, "b": None}, {"a": None, "b": [moment]}]),
        }
        for _ in range(count)
    ]
    return pa.Table.from_pylist(rows, schema=schema)


@pytest.mark.parametrize("file_format", ["parquet", "orc"])
def test_second_reader_equals_table_read_of_nested_columns(
    file_format: str, tmp_path: Path
) -> None:
    random_, schema = random.Random(SEED), CREATED
    table = Table.create(
        str(tmp_path / "table"),
        schema,
        keys=["id"],
        delta="at",
        deletes="op = 'D'",
        partition_by=["day"],
        file_format=file_format,
        properties={"checkpoint_commits": 3},
    )
    for step in range(9):
        is_inline = bool(step % 2)
        table.ingest(nested_rows(random_, 12, schema), metadata="inline" if is_inline else "batch")
        if not is_inline and step < 8:
            table.metagen()
        if step == 3:
            table.compact()
        if step == 4:
            table.add_columns({"more": ADDED})
            schema = schema.append(pa.field("more", ADDED))
        if step == 5:
            table.zorder(columns=["id", "price"])
    times = [START + timedelta(seconds=seconds) for seconds in (10, 50)]
    assert compare(table, tmp_path / "table", times) > 20


@pytest.mark.parametrize("file_format", ["parquet", "orc"])
def test_second_reader_equals_table_read_across_changes_of_columns(
    file_format: str, tmp_path: Path
) -> None:
    address = pa.struct([("city", pa.string()), ("n", pa.int16()), ("gone", pa.int32())])
    columns = {
        "id": pa.int32(),
        "at": pa.int16(),
        "price": pa.decimal128(5, 2),
        "name": pa.string(),
        "day": pa.date32(),
        "places": pa.list_(address),
        "by": pa.map_(pa.string(), address),
    }
    first = {
        "at": 1,
        "price": Decimal("1.50"),
        "name": "a",
        "day": date(2026, 1, 2),
        "places": [{"city": "x", "n": 3, "gone": 4}, None],
        "by": [("k", {"city": "y", "n": None, "gone": 5}), ("none", None)],
    }
    uri = str(tmp_path / "table")
    table = Table.create(uri, pa.schema(columns), keys=["id"], delta="at", file_format=file_format)
    rows = [{"id": 1, **first}, {"id": 2, **dict.fromkeys(first), "at": 1}]
    table.ingest(pa.Table.from_pylist(rows, pa.schema(columns)), metadata="inline")
    changes: list[dict[str, Any]] = [
        {"rename": "name", "to": "title"},
        {"drop": "price"},
        {"add": "price", "type": "string", "first": True},
        {"widen": "id", "type": "bigint"},
        {"widen": "at", "type": "int"},
        {"rename": "places.element.city", "to": "town"},
        {"drop": "by.value.gone"},
        {"add": "by.value.gone", "type": "timestamp", "first": True},
        {"widen": "places.element.n", "type": "bigint"},
        {"add": "n", "type": "int", "default": 5},
        {"widen": "n", "type": "bigint"},
        {"add": "cost", "type": "decimal(9,2)", "default": "1.5"},
        {"add": "raw", "type": "binary", "default": b"x"},
        {"add": "seen", "type": "timestamp", "default": "TIMESTAMP '2026-01-02 03:04:05.000006Z'"},
        {"add": "born", "type": "date", "default": date(1600, 1, 2)},
        {"set_default": "n", "value": 6},
    ]
    if file_format == "parquet":
        changes.append({"widen": "day", "type": "timestamp_ntz"})
        changes.append({"widen": "born", "type": "timestamp_ntz"})
    table.alter(changes)
    assert compare(table, tmp_path / "table", [1]) > 1
    later = table.read().slice(0, 1).to_pylist()[0] | {"id": 1 << 40, "price": "new"}
    table.ingest(pa.Table.from_pylist([later], table.read().schema), metadata="inline")
    assert compare(table, tmp_path / "table", [1]) > 2
    table.compact()
    table.add_columns({"more": "struct<a: int>"})
    assert compare(table, tmp_path / "table", [1]) > 3
