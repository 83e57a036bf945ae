"""Columns that messages have and the table lacks, with a real broker and registry.

Whatever the policy, nothing is lost, and nothing is read twice.
"""

import json
import signal
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from opal_lake.definition.schema import arrow_schema
from opal_lake.table import Table
from opal_stream.errors import BadMessageError, NewColumnsError
from opal_stream.flush.buffer import FlushLimits
from opal_stream.flush.intake import MAX_REFUSED, Intake
from opal_stream.operations.reading import FormatOptions
from tests.fixtures_kafka import Kafka, Registry
from tests.opal_lake.compacting import compact
from tests.opal_stream.flush.build import started, wait_for
from tests.opal_stream.formats.build import FIRST, SECOND, avro, head, nested, record
from tests.opal_stream.orders import (
    LAYOUT,
    SCHEMA,
    batch,
    ends,
    ids,
    new_stream,
    new_table,
    new_topic,
    order,
    read,
)

FLOAT = {"name": "discount", "type": ["null", "float"], "default": None}
WIDER = {
    **SECOND,
    "fields": [
        *SECOND["fields"],
        FLOAT,
        {"name": "size", "type": {"type": "array", "items": "int"}, "default": []},
    ],
}


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return new_table(tmp_path)


def of(table: Table, *columns: str) -> dict[int, tuple[Any, ...]]:
    values = {}
    for row in table.read(columns=["id", *columns]).to_pylist():
        values[row["id"]] = tuple(row[name] for name in columns)
    return values


def test_a_new_schema_of_the_registry_adds_its_columns_behind_what_was_read_by_older_ones(
    kafka: Kafka, table: Table, registry: Registry
) -> None:
    topic = new_topic(kafka)
    registry.register(1, FIRST), registry.register(4, WIDER)
    first, wider = (1, FIRST), (4, WIDER)
    values = [
        avro(*first, record(1)),
        avro(*first, record(2)),
        avro(*wider, record(3, name="c", discount=0.5, size=[1, 2])),
    ]
    kafka.produce(topic, [*values, avro(*first, record(4))])
    formats = FormatOptions(format="avro", registry=registry.url, on_new_columns="add")
    totals = read(table, kafka, topic, formats=formats, limits=FlushLimits(interval_s=60))
    assert (totals.records, totals.flushes, ends(table), registry.asked) == (4, 2, [4], [1, 4])
    assert of(table, "discount", "size") == {
        1: (None, None),
        2: (None, None),
        3: (0.5, [1, 2]),
        4: (None, None),
    }
    operations = []
    for commit in table.commits():
        ends_of_commit = [advance.end for advance in commit.positions.values()]
        operations.append((commit.operation, ends_of_commit))
    assert operations == [("ingest", [4]), ("add_columns", []), ("ingest", [2]), ("create", [])]


@pytest.mark.parametrize("policy", ["add", "ignore"])
def test_one_run_and_two_runs_of_a_topic_of_several_schemas_give_the_same_rows(
    policy: str, kafka: Kafka, tmp_path: Path, registry: Registry
) -> None:
    topic, size = new_topic(kafka), {"name": "size", "type": "int"}
    schemas = {
        7: {**FIRST, "fields": [*FIRST["fields"], size, {"name": "name", "type": "string"}]},
        3: FIRST,
        5: {**FIRST, "fields": [*FIRST["fields"], {**size, "type": ["null", "long"]}]},
    }
    for number, schema in schemas.items():
        registry.register(number, schema, f"{topic}-value")
    rows = [
        (7, {"size": 1, "name": "a"}),
        (3, {}),
        (5, {"size": 2**40}),
        (7, {"size": 4, "name": "d"}),
    ]
    values = [
        avro(number, schemas[number], record(position, **row))
        for position, (number, row) in enumerate(rows, 1)
    ]
    formats = FormatOptions(format="avro", registry=registry.url, on_new_columns=policy)
    twice, once = new_table(tmp_path / "twice"), new_table(tmp_path / "once")
    for part in (values[:2], values[2:]):
        kafka.produce(topic, part)
        read(twice, kafka, topic, formats=formats)
    read(once, kafka, topic, formats=formats)
    columns = ["name", *(["size"] if policy == "add" else [])]
    sizes = {1: 1, 2: None, 3: 2**40, 4: 4} if policy == "add" else {}
    names = {1: "a", 2: None, 3: None, 4: "d"}
    expected = {
        position: (name, sizes[position]) if sizes else (name,) for position, name in names.items()
    }
    assert of(once, *columns) == of(twice, *columns) == expected


@pytest.mark.parametrize("form", ["json", "debezium-json", "json-registry"])
def test_new_members_of_json_are_columns_too(
    form: str, kafka: Kafka, table: Table, registry: Registry
) -> None:
    topic = new_topic(kafka)
    rows = [
        order(1),
        order(2, discount=None),
        order(3, discount=0.5, tags=["a"], seen="2026-01-01"),
        order(4, discount=2),
    ]
    values: list[Any] = rows
    if form == "debezium-json":
        values = [{"before": None, "after": row, "op": "c", "ts_ms": 5} for row in rows]
    if form == "json-registry":
        types = {
            "discount": {"type": ["null", "number"]},
            "tags": {"type": "array", "items": {"type": "string"}},
            "seen": {"type": "string"},
        }
        registry.register(1, {"type": "object", "properties": {"id": {"type": "integer"}}})
        registry.register(2, {"type": "object", "properties": types})
        values = [head(1 if "tags" not in row else 2) + json.dumps(row).encode() for row in rows]
    kafka.produce(topic, values)
    url = registry.url if form == "json-registry" else None
    formats = FormatOptions(format=form, registry=url, on_new_columns="add")
    assert read(table, kafka, topic, formats=formats).records == 4
    assert of(table, "discount", "tags", "seen") == {
        1: (None, None, None),
        2: (None, None, None),
        3: (0.5, ["a"], "2026-01-01"),
        4: (2.0, None, None),
    }


def test_by_default_a_stream_stops_at_the_first_message_with_a_column_that_the_table_lacks(
    kafka: Kafka, table: Table
) -> None:
    topic = new_topic(kafka)
    kafka.produce(topic, [order(1), order(2), order(3, discount=0.5), order(4), b"nope"])
    for _ in range(2):
        with pytest.raises(
            NewColumnsError,
            match=(
                rf"{topic}/0@2: the table has no column 'discount'\. .*on_new_columns='add' "
                rf"or by opal add-columns"
            ),
        ):
            read(table, kafka, topic)
        assert (ids(table), ends(table)) == ([1, 2], [2])
    table.add_columns({"discount": "double"})
    with pytest.raises(BadMessageError, match=f"{topic}/0@4"):
        read(table, kafka, topic)
    assert of(table, "discount") == {1: (None,), 2: (None,), 3: (0.5,), 4: (None,)}


def test_messages_with_new_columns_may_be_put_aside_and_other_bad_ones_still_stop_the_stream(
    kafka: Kafka, table: Table
) -> None:
    topic = new_topic(kafka)
    kafka.produce(topic, [order(1), order(2, discount=0.5, tag="x"), order(3), b"nope"])
    with pytest.raises(BadMessageError, match=rf"{topic}/0@3: the message is not a JSON object"):
        read(table, kafka, topic, formats=FormatOptions(on_new_columns="quarantine"))
    assert (ids(table), ends(table)) == ([1, 3], [3])
    [rejected] = [
        row
        for path in Path(table.uri).rglob("_opal/rejected/*")
        for row in pq.read_table(path).to_pylist()
    ]
    assert (rejected["reason"], rejected["source"]) == (
        "the table has no columns 'discount', 'tag'",
        f"{topic}/0@1",
    )
    assert json.loads(rejected["row"])["discount"] == 0.5


def test_new_columns_may_be_left_out(kafka: Kafka, table: Table) -> None:
    topic = new_topic(kafka)
    kafka.produce(topic, [order(1, discount=0.5)])
    assert read(table, kafka, topic, formats=FormatOptions(on_new_columns="ignore")).bad == 0
    assert (ids(table), "discount" in table.snapshot_at().spec.schema.names) == ([1], False)


def test_new_members_of_nested_columns_stop_the_stream_or_are_put_aside_or_left_out(
    kafka: Kafka, tmp_path: Path
) -> None:
    topic = new_topic(kafka)
    kafka.produce(
        topic,
        [
            order(1, address={"city": "x"}),
            order(2, address={"city": "x", "zip": "1"}),
            order(3, address={"city": "y"}),
        ],
    )

    def made(name: str) -> Table:
        return Table.create(
            str(tmp_path / name),
            SCHEMA.append(pa.field("address", pa.struct([("city", pa.string())]))),
            **asdict(LAYOUT),
        )

    said = (
        rf"{topic}/0@1: the table has no member 'address\.zip', and nested columns cannot "
        rf"get more\. "
    )
    for policy, kind, way in (
        (
            "fail",
            NewColumnsError,
            (
                "Leave the members out with on_new_columns='ignore', or put such messages "
                "aside with on_new_columns='quarantine'"
            ),
        ),
        (
            "add",
            BadMessageError,
            "Correct the source, or put such messages aside with on_bad_message='quarantine'",
        ),
    ):
        table = made(policy)
        with pytest.raises(kind, match=said + way):
            read(table, kafka, topic, formats=FormatOptions(on_new_columns=policy))
        assert ids(table) == [1]
    with pytest.raises(NewColumnsError, match=said):
        read(made("strict"), kafka, topic, on_bad_message="quarantine")
    for policy, others, left in (
        ("quarantine", "fail", [1, 3]),
        ("add", "quarantine", [1, 3]),
        ("ignore", "fail", [1, 2, 3]),
    ):
        table = made(f"{policy}-{others}")
        read(
            table, kafka, topic, formats=FormatOptions(on_new_columns=policy), on_bad_message=others
        )
        assert ids(table) == left


def test_a_column_that_no_table_can_have_stops_the_stream_and_says_why(
    kafka: Kafka, table: Table
) -> None:
    topic = new_topic(kafka)
    kafka.produce(topic, [order(1), {**order(2), "_opal_x": 1}])
    with pytest.raises(
        NewColumnsError, match=rf"{topic}/0@\d: .*'_opal_x'.* reserved for the format"
    ):
        read(table, kafka, topic, formats=FormatOptions(on_new_columns="add"))
    assert "_opal_x" not in table.snapshot_at().spec.schema.names


def test_columns_that_somebody_adds_meanwhile_are_filled_from_then_on(
    kafka: Kafka, table: Table
) -> None:
    topic = new_topic(kafka)
    stream = new_stream(table, kafka, topic, formats=FormatOptions(on_new_columns="ignore"))
    kafka.produce(topic, [order(1, discount=1.5)])
    stream.run()
    Table.open(table.uri).add_columns({"discount": "double"})
    kafka.produce(topic, [order(2, discount=2.5)])
    stream = new_stream(
        table, kafka, topic, formats=FormatOptions(on_new_columns="ignore"), until_empty=False
    )
    running, failures = started(stream)
    wait_for(ids, table, [1, 2])
    Table.open(table.uri).add_columns({"tag": "string"})
    kafka.produce(topic, [order(3, discount=3.5, tag="kept")])
    wait_for(ids, table, [1, 2, 3])
    stream.stop()
    running.join(30)
    assert not failures
    assert of(table, "discount", "tag") == {
        1: (None, None),
        2: (2.5, None),
        3: (3.5, "kept"),
    }


def words(table: Table, kafka: Kafka, topic: str, partition: int, registry: Registry) -> list[str]:
    given = [
        table.uri,
        "--bootstrap-servers",
        kafka.servers,
        "--topic",
        topic,
        "--partitions",
        str(partition),
        "--flush-rows",
        "1000",
    ]
    return [
        sys.executable,
        "-m",
        "opal_lake.cli",
        "stream",
        "run",
        *given,
        "--format",
        "avro",
        "--registry",
        registry.url,
        "--on-new-columns",
        "add",
    ]


@pytest.mark.slow
def test_two_processes_add_the_same_column_at_once_and_one_is_killed_in_the_middle(
    kafka: Kafka, table: Table, registry: Registry
) -> None:
    topic = new_topic(kafka, 2)
    registry.register(1, FIRST), registry.register(4, WIDER)
    for partition in (0, 1):
        kafka.produce(
            topic,
            [avro(1, FIRST, record(100 * partition + n)) for n in range(3)],
            partition=partition,
        )

    def start(partition: int) -> "subprocess.Popen[bytes]":
        command = words(table, kafka, topic, partition, registry)
        return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)

    def wait(expected: int) -> None:
        until = time.monotonic() + 60
        while len(ids(table)) < expected:
            assert time.monotonic() < until, ids(table)
            time.sleep(0.05)

    processes = [start(0), start(1)]
    try:
        wait(6)
        for partition in (0, 1):
            rows = [
                record(100 * partition + n, name="x", discount=0.5, size=[n]) for n in range(3, 6)
            ]
            kafka.produce(topic, [avro(4, WIDER, row) for row in rows], partition=partition)
        until = time.monotonic() + 60
        while "discount" not in table.log.head().spec.schema.names:
            assert time.monotonic() < until
            time.sleep(0.001)
        processes[0].kill()  # the column is there, its rows perhaps not
        processes[0].communicate()
        processes[0] = start(0)
        for partition in (0, 1):
            kafka.produce(topic, [avro(1, FIRST, record(100 * partition + 6))], partition=partition)
        wait(14)
        for process in processes:
            process.send_signal(signal.SIGTERM)
        report = [process.communicate(timeout=60)[1] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0, 0], report
    assert (ends(table), table.snapshot_at().root.rows) == ([7, 7], 14)
    expected = {n + 100 * p: (None if n < 3 or n == 6 else 0.5) for p in (0, 1) for n in range(7)}
    assert {number: row[0] for number, row in of(table, "discount").items()} == expected
    added = [commit for commit in table.commits() if commit.operation == "add_columns"]
    assert len(added) == 1


@pytest.mark.parametrize("column", [{"": 1}, {"x": 1, "X": 2}])
def test_a_column_that_no_table_can_get_stops_the_stream_behind_what_came_before(
    column: dict[str, Any], kafka: Kafka, table: Table
) -> None:
    topic = new_topic(kafka)
    kafka.produce(topic, [order(1), order(2), order(3, **column)])
    formats = FormatOptions(on_new_columns="add")
    with pytest.raises(NewColumnsError, match=rf"{topic}/0@2: .*, and cannot get (it|them): "):
        read(table, kafka, topic, formats=formats)
    assert (ids(table), ends(table)) == ([1, 2], [2])
    totals = read(table, kafka, topic, formats=formats, on_bad_message="quarantine")
    assert (totals.bad, ids(table), ends(table)) == (1, [1, 2], [3])


def test_the_message_for_a_map_of_debezium_calls_it_a_map(kafka: Kafka, tmp_path: Path) -> None:
    columns, topic = pa.schema([("id", pa.int64()), ("at", pa.int64())]), new_topic(kafka)
    table = Table.create(str(tmp_path / "t"), columns, keys=["id"], delta="at")
    fields = [{"field": "id", "type": "int64"}, {"field": "tags", "type": "map"}]
    schema = {"type": "struct", "fields": [{"field": "after", "type": "struct", "fields": fields}]}
    payload = {"after": {"id": 1, "tags": {"a": "1"}}, "op": "c", "ts_ms": 1, "source": {}}
    kafka.produce(topic, [{"schema": schema, "payload": payload}])
    formats = FormatOptions(format="debezium-json", columns={"at": "@ts_ms"}, on_new_columns="add")
    with pytest.raises(
        NewColumnsError,
        match=(
            rf"{topic}/0@0: the table has no column 'tags', and cannot get it: 'tags' is a "
            rf"map in "
        ),
    ):
        read(table, kafka, topic, formats=formats)


def test_with_quarantine_a_message_whose_column_cannot_be_added_is_put_aside(
    kafka: Kafka, table: Table
) -> None:
    topic = new_topic(kafka)
    values = [
        order(1),
        order(2, _opal_x=1),
        order(3, discount=0.5),
        order(4, discount=1.5, _opal_x=2),
        order(5, size=1),
    ]
    kafka.produce(topic, values)
    formats = FormatOptions(on_new_columns="add")
    with pytest.raises(NewColumnsError, match=rf"{topic}/0@1: .*'_opal_x'.*on_new_columns='quara"):
        read(table, kafka, topic, formats=formats)
    totals = read(table, kafka, topic, formats=formats, on_bad_message="quarantine")
    assert (totals.bad, ends(table)) == (2, [5])
    assert of(table, "discount", "size") == {1: (None, None), 3: (0.5, None), 5: (None, 1)}
    [path] = (Path(table.uri) / "_opal/rejected").rglob("*.parquet")
    remaining = pq.read_table(path).to_pylist()
    assert [row["source"] for row in remaining] == [f"{topic}/0@1", f"{topic}/0@3"]
    for row in remaining:
        assert row["reason"].startswith("the table has no column '_opal_x', and cannot get it: ")


def taken_by_intake(
    table: Table, formats: FormatOptions, *batches: list[Any]
) -> tuple[dict[str, pa.DataType], dict[str, str]]:
    """Return the table's columns and the bad messages after batches of an intake."""
    intake = Intake(table, formats, "quarantine", lambda: None, lambda *_: None)
    reasons: dict[str, str] = {}
    for values in batches:
        for _, decoded in intake.take(batch(values)):
            reasons |= {bad.source: bad.reason for bad in decoded.bad}
    schema = arrow_schema(table.log.head().spec.schema)
    return {column.name: column.type for column in schema}, reasons


def test_a_column_refused_by_one_schema_can_be_added_by_the_next_message(
    table: Table, registry: Registry
) -> None:
    schemas = {
        number: {**FIRST, "fields": [*FIRST["fields"], {"name": "x", "type": kind}]}
        for number, kind in ((1, ["int", "string"]), (2, "string"))
    }
    for number, schema in schemas.items():
        registry.register(number, schema, f"subject-{number}")
    values = [avro(number, schema, record(number, x="a")) for number, schema in schemas.items()]
    formats = FormatOptions(format="avro", registry=registry.url, on_new_columns="add")
    intake = Intake(table, formats, "quarantine", lambda: None, lambda *_: None)
    for value in values:  # so that both are in one part
        intake.learn(value)
    [(_, decoded)] = intake.take(batch(values))
    # The second one brings the column, which then takes the text of the first one, too
    assert (decoded.bad, [row["x"] for row in decoded.rows.to_pylist()]) == ([], ["a", "a"])
    assert table.log.head().spec.schema.names[-1] == "x"


def test_change_events_with_schemas_add_the_same_columns_in_one_batch_and_in_two(
    tmp_path: Path,
) -> None:
    int32, days = {"type": "int32"}, {"type": "int32", "name": "io.debezium.time.Date"}

    def event(number: int, fields: dict[str, Any]) -> bytes:
        named = [{**kind, "field": name} for name, kind in fields.items()]
        row = {"type": "struct", "field": "after", "fields": named}
        payload = {"after": {"id": number, **dict.fromkeys(fields, 1)}, "op": "c", "ts_ms": 5}
        return json.dumps(
            {"schema": {"type": "struct", "fields": [row]}, "payload": payload}
        ).encode()

    values = [event(1, {"x": int32}), event(2, {"x": {"type": "int64"}, "day": days})]
    columns = {"at": "@ts_ms", "op": "@op"}
    formats = FormatOptions(format="debezium-json", columns=columns, on_new_columns="add")
    once = taken_by_intake(new_table(tmp_path / "once"), formats, values)
    twice = taken_by_intake(new_table(tmp_path / "twice"), formats, values[:1], values[1:])
    assert once == twice
    assert (once[0]["x"], once[0]["day"], once[1]) == (pa.int32(), pa.date32(), {})


def test_the_columns_that_can_be_added_are_added_in_one_commit(
    table: Table, caplog: pytest.LogCaptureFixture
) -> None:
    new = {f"c{number}": number for number in range(5)}
    values = [json.dumps(order(1, **new, _opal_x=1)), json.dumps(order(2, **new))]
    formats = FormatOptions(on_new_columns="add")
    columns, reasons = taken_by_intake(table, formats, [value.encode() for value in values])
    assert columns.keys() >= new.keys()
    assert list(reasons) == ["orders/3@100"]
    assert [commit.operation for commit in table.commits()] == ["add_columns", "create"]
    assert len([text for text in caplog.messages if text.endswith("are put aside")]) == 1


def test_only_the_last_columns_that_cannot_be_added_are_remembered(table: Table) -> None:
    intake = Intake(
        table, FormatOptions(on_new_columns="add"), "quarantine", lambda: None, lambda *_: None
    )
    count = MAX_REFUSED + 50
    for values in ([order(n, **{f"_opal_{n}": n}) for n in range(count)], [order(1, _opal_x=1)]):
        [(_, decoded)] = intake.take(batch(values))
        assert len(decoded.bad) == len(values)
    assert len(intake.decoder.refused) == MAX_REFUSED + 1


def test_a_column_that_no_file_can_hold_is_not_added(kafka: Kafka, table: Table) -> None:
    topic = new_topic(kafka)
    deepest: Any = 1
    for _ in range(45):
        deepest = [deepest]
    kafka.produce(topic, [order(1, deep=deepest), order(2, deeper=[deepest]), order(3)])
    formats = FormatOptions(on_new_columns="add")
    totals = read(table, kafka, topic, formats=formats, on_bad_message="quarantine")
    assert (totals.bad, ends(table)) == (1, [3])
    assert of(table, "deep") == {1: (deepest,), 3: (None,)}
    [path] = (Path(table.uri) / "_opal/rejected").rglob("*.parquet")
    [remaining] = pq.read_table(path).to_pylist()
    assert "column 'deeper' nests too deep" in remaining["reason"]


@pytest.mark.parametrize("file_format", ["parquet", "orc"])
@pytest.mark.parametrize(
    "shape, levels", [("record", 20), ("record", 60), ("map", 30), ("array", 45)]
)
def test_a_deep_schema_of_avro_adds_a_column_that_files_hold(
    kafka: Kafka, tmp_path: Path, registry: Registry, shape: str, levels: int, file_format: str
) -> None:
    """Through new columns, gathered rows of Arrow, data files and a rewrite of them."""
    table = new_table(tmp_path, file_format=file_format)
    topic = new_topic(kafka)
    deep = {"name": "deep", "type": nested(levels, shape)}
    schema = {**FIRST, "fields": [*FIRST["fields"], deep]}
    registry.register(9, schema)
    value: Any = 1
    for _ in range(levels):
        value = {"array": [value], "map": {"k": value}, "record": {"a": value}}[shape]
    kafka.produce(topic, [avro(9, schema, record(n, deep=value)) for n in (1, 2)])
    formats = FormatOptions(format="avro", registry=registry.url, on_new_columns="add")
    totals = read(table, kafka, topic, formats=formats)
    assert (totals.records, totals.bad, ends(table)) == (2, 0, [2])
    table.ingest(table.read(), metadata="inline", deleted=[False, False])
    compact(table)
    expected = value
    if shape == "map":
        expected = 1
        for _ in range(levels):
            expected = [("k", expected)]
    assert of(table, "deep") == {1: (expected,), 2: (expected,)}


def test_a_column_of_avro_that_no_file_can_hold_is_put_aside(
    kafka: Kafka, table: Table, registry: Registry
) -> None:
    topic = new_topic(kafka)
    schema = {**FIRST, "fields": [*FIRST["fields"], {"name": "deep", "type": nested(61, "record")}]}
    registry.register(9, schema), registry.register(1, FIRST)
    value: Any = 1
    for _ in range(61):
        value = {"a": value}
    kafka.produce(topic, [avro(9, schema, record(1, deep=value)), avro(1, FIRST, record(2))])
    formats = FormatOptions(format="avro", registry=registry.url, on_new_columns="add")
    totals = read(table, kafka, topic, formats=formats, on_bad_message="quarantine")
    assert (totals.bad, ends(table), ids(table)) == (1, [2], [2])
    [path] = (Path(table.uri) / "_opal/rejected").rglob("*.parquet")
    [remaining] = pq.read_table(path).to_pylist()
    assert "column 'deep' nests too deep" in remaining["reason"]
