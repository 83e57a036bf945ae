"""Messages that were put aside are ingested once they can be read, each once."""

import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime
from itertools import count
from typing import Any, Literal

import pyarrow as pa
import pytest

from opal_lake import layout
from opal_lake.cli import main
from opal_lake.data.json_rows import JsonForm, row_of_json
from opal_lake.definition.table_spec import TableLayout, plan_spec
from opal_lake.errors import FormatError, InvalidInputError
from opal_lake.exit_codes import OK
from opal_lake.storage import Storage, open_storage
from opal_lake.storage.memory import MemoryStorage
from opal_lake.table import Table, create_on, table_on
from opal_stream.flush.buffer import Buffer, FlushLimits
from opal_stream.flush.writer import Writer
from opal_stream.formats.decoder import Decoder, row_form_of
from opal_stream.kafka.applications import Application
from opal_stream.kafka.topics import Partition
from opal_stream.operations.reading import FormatOptions
from tests.fixtures_cli import metadata, opal_commands
from tests.kit.failing_store import Crash, FailingStore
from tests.opal_stream.orders import LAYOUT, SCHEMA, batch, decode, good, new_spec, order

__all__ = ["metadata", "opal_commands"]

PLAIN = FormatOptions(on_new_columns="quarantine")
PARTITION = Partition(topic="orders", number=3)
# Of these the table takes the first; a column `note` lets in two more; the last is never read
MESSAGES = [order(1), order(2, note="a"), order(3, note="b"), b"{"]


def new_table(storage: Storage | None = None) -> Table:
    return create_on(storage or MemoryStorage(), plan_spec(SCHEMA, LAYOUT))


def put_aside(
    table: Table, messages: Sequence[Any] = MESSAGES, formats: FormatOptions = PLAIN
) -> Table:
    """Flush messages as a stream does, which puts bad ones aside."""
    part = batch(messages)
    buffer = Buffer(limits=FlushLimits())
    buffer.add(part, Decoder(table.snapshot_at().spec, formats).decode(part), 0.0)
    name = Application(stream="main", partition=PARTITION, topic_id="t")
    writer = Writer(
        table=table,
        on_bad_message="quarantine",
        row_form=row_form_of(formats),
        applications={PARTITION: name},
        positions={PARTITION: table.position(str(name))},
    )
    buffer.consumed[PARTITION].low = writer.positions[PARTITION] or 100
    buffer.consumed[PARTITION].high = buffer.consumed[PARTITION].low + len(messages)
    assert writer.flush(buffer, lambda: None, lambda: None) is not None
    return table


def ids(table: Table) -> list[int]:
    return sorted(table.read()["id"].to_pylist())


def states(table: Table) -> dict[str, int]:
    """Return the number of rejected rows by state."""
    counts: dict[str, int] = {}
    for job in table.rejected():
        counts[job["state"]] = counts.get(job["state"], 0) + job["rows"]
    return counts


def test_replay_ingests_what_a_new_column_lets_in_and_nothing_the_second_time() -> None:
    table = put_aside(new_table())
    nothing = table.replay()
    assert (nothing.version, nothing.counts["rows"], nothing.counts["rejected"]) == (None, 0, 3)
    table.add_columns({"note": "string"})
    result = table.replay()
    assert dict(result.counts) == {"ingests": 1, "rows": 2, "rejected": 1}
    assert [note for note in result.notes if "1 row still rejected: the row is not JSON" in note]
    seen = table.read(columns=["id", "note", "total", "at"]).sort_by("id").to_pylist()
    known = new_spec(**dict(zip(SCHEMA.names, SCHEMA.types, strict=True)), note=pa.string())
    messages = [row for row in good(decode(MESSAGES, PLAIN, known)) if row["id"] in (1, 2, 3)]
    columns = seen[0].keys()
    for actual, message in zip(seen, messages, strict=True):
        assert actual == {name: message[name] for name in columns}
    again = table.replay()
    assert (again.version, again.counts["rows"], again.counts["rejected"]) == (None, 0, 1)
    assert ids(table) == [1, 2, 3]
    assert table.check() == []


def test_list_shows_the_reason_source_and_state_of_rejected_rows() -> None:
    table = put_aside(new_table())
    [job] = table.rejected()
    assert (job["state"], job["can_replay"], job["rows"]) == ("waiting", True, 3)
    assert job["version"] == table.snapshot_at().version
    assert job["reasons"]["the table has no column 'note'"] == 2
    assert [row["source"] for row in job["sample"]] == [
        "orders/3@101",
        "orders/3@102",
        "orders/3@103",
    ]
    assert json.loads(job["sample"][0]["row"])["note"] == "a"
    table.add_columns({"note": "string"})
    table.replay()
    left, replayed = table.rejected()
    assert (replayed["state"], replayed["can_replay"]) == ("replayed", False)
    assert (left["state"], left["rows"]) == ("waiting", 1)
    assert left["sample"][0]["row"] == "{", "what stays rejected keeps its text"
    assert left["sample"][0]["source"] == "orders/3@103", "and its place"


def test_a_deleting_message_deletes_when_it_is_replayed() -> None:
    table = put_aside(new_table(), [order(1), order(1, 5, op="D", note="gone")])
    table.add_columns({"note": "string"})
    assert table.replay().counts["rows"] == 1
    assert ids(table) == []


@pytest.mark.parametrize("mode", ["before", "after"])
def test_a_crash_at_any_call_of_the_store_loses_and_doubles_nothing(
    mode: Literal["before", "after"],
) -> None:
    for call in count(1):
        storage = MemoryStorage()
        table = put_aside(put_aside(new_table(storage)), [order(4, note="c")])
        table.add_columns({"note": "string"})
        store = FailingStore(storage, fail_at=call, mode=mode)
        with suppress(Crash):
            table_on(store).replay()
        survivor = table_on(storage)
        survivor.replay()
        assert ids(survivor) == [1, 2, 3, 4]
        assert survivor.history_view().num_rows == 4, "no row is in the table twice"
        assert states(survivor)["waiting"] == 1
        assert survivor.check() == []
        if len(store.trace) < call:
            break
    assert call > 20


def test_two_replays_at_once_ingest_each_row_once() -> None:
    storage = MemoryStorage()
    put_aside(new_table(storage)).add_columns({"note": "string"})
    with ThreadPoolExecutor(4) as pool:
        results = [*pool.map(lambda _: table_on(storage).replay(), range(4))]
    assert sum(result.counts["rows"] for result in results) == 2
    assert table_on(storage).history_view().num_rows == 3
    assert states(table_on(storage))["waiting"] == 1


def test_a_replay_that_a_restore_took_back_can_be_done_again() -> None:
    table = put_aside(new_table())
    version = table.add_columns({"note": "string"}).version
    table.replay()
    table.restore(version=version)
    assert ids(table) == [1]
    assert table.replay().counts["rows"] == 2
    assert ids(table) == [1, 2, 3]


def test_rows_of_an_ingest_that_a_restore_took_back_are_not_replayed() -> None:
    table = new_table()
    table.add_columns({"note": "string"})
    version = table.snapshot_at().version
    put_aside(table, [order(1), order(2, more="x")])
    table.restore(version=version)
    table.add_columns({"more": "string"})
    assert table.replay().counts["rows"] == 0
    assert states(table) == {"undone": 1}
    assert ids(table) == []


def test_rows_made_of_more_than_their_text_are_not_replayed() -> None:
    formats = FormatOptions(columns={"op": "@key"}, on_new_columns="quarantine")
    table = put_aside(new_table(), formats=formats)
    table.add_columns({"note": "string"})
    result = table.replay()
    assert (result.counts["rows"], result.counts["rejected"]) == (0, 3)
    assert "cannot be replayed" in result.notes[-1]
    assert "the topic with another --name" in result.notes[-1]
    assert [job["can_replay"] for job in table.rejected()] == [False]


def test_rows_of_an_ingest_that_failed_are_listed_and_not_replayed() -> None:
    table = new_table()
    rows = pa.table([[None], ["x"], [1.0], ["I"], [None]], schema=SCHEMA)
    with pytest.raises(InvalidInputError, match="reject_threshold"):
        table.ingest(rows, on_bad_rows="quarantine", reject_threshold=0)
    assert states(table) == {"no commit": 1}
    assert table.replay().counts["rejected"] == 0


def test_rows_of_an_ingest_that_was_discarded_are_listed_and_not_replayed() -> None:
    table = new_table()
    moment = datetime(2026, 11, 28, tzinfo=UTC)
    rows = pa.table([[1, None], ["x"] * 2, [1.0] * 2, ["I"] * 2, [moment] * 2], schema=SCHEMA)
    table.ingest(rows, on_bad_rows="quarantine", token="monday")
    assert states(table) == {"waiting": 1}
    table.discard(token="monday")
    assert states(table) == {"discarded": 1}
    assert table.replay().counts["rejected"] == 0


def rejected_path(table: Table) -> str:
    [path] = [entry.path for entry in table.storage.list(layout.REJECTED)]
    return path


def test_two_attempts_of_one_task_count_once() -> None:
    table = put_aside(new_table())
    path = rejected_path(table)
    table.storage.put_if_absent(path.replace(".parquet", "x.parquet"), table.storage.get(path))
    table.add_columns({"note": "string"})
    assert table.replay().counts["rows"] == 2
    assert table.history_view().num_rows == 3


def test_attempts_that_rejected_other_rows_are_an_error() -> None:
    table, other = put_aside(new_table()), put_aside(new_table(), [order(7, note="a")])
    path = rejected_path(table)
    data = other.storage.get(rejected_path(other))
    table.storage.put_if_absent(path.replace(".parquet", "x.parquet"), data)
    table.add_columns({"note": "string"})
    with pytest.raises(FormatError, match="does not show which attempt was committed"):
        table.replay()
    assert ids(table) == [1]


def test_rows_that_are_missing_are_an_error() -> None:
    table, other = put_aside(new_table()), put_aside(new_table(), [order(7, note="a")])
    path = rejected_path(table)
    table.storage.delete([path])
    table.storage.put_if_absent(path, other.storage.get(rejected_path(other)))
    table.add_columns({"note": "string"})
    with pytest.raises(FormatError, match=r"rejected 3 rows, but its files in .* have 1"):
        table.replay()
    assert ids(table) == [1]


@pytest.mark.usefixtures("opal_commands")
def test_the_command_lists_and_replays(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    uri = str(tmp_path / "orders")
    table = put_aside(new_table(open_storage(uri)))
    assert main(["rejected", "list", uri]) == OK
    shown = capsys.readouterr().out
    assert "2 rows: the table has no column 'note'" in shown
    assert "orders/3@101" in shown
    assert main(["rejected", "list", uri, "--json"]) == OK
    assert json.loads(capsys.readouterr().out) == table.rejected()
    table.add_columns({"note": "string"})
    assert main(["rejected", "replay", uri]) == OK
    shown = capsys.readouterr().out
    assert "replayed" in shown
    assert "1 row still rejected" in shown
    assert main(["rejected", "replay", uri, "--json"]) == OK
    assert json.loads(capsys.readouterr().out)["counts"]["rows"] == 0


KINDS: dict[str, pa.DataType] = {
    "t": pa.string(),
    "i": pa.int32(),
    "b": pa.int64(),
    "x": pa.float64(),
    "f": pa.float32(),
    "n": pa.decimal128(9, 2),
    "y": pa.bool_(),
    "d": pa.date32(),
    "z": pa.timestamp("us", "UTC"),
    "w": pa.timestamp("us"),
    "s": pa.struct([("a", pa.int64()), ("z", pa.timestamp("us", "UTC"))]),
    "l": pa.list_(pa.string()),
}
VALUES = [
    '"text"', '""', '"\\ud800"', '"Ä😀"', "true", "1", "-1", "1.5", "1.0", "1e3", "1E400", "NaN",
    "2147483648", "9223372036854775808", "12345.678", "12345.67", "123456789012345678901234567890",
    "0.1", "16777217", "3.5e38", '"2026-11-28"', '"2026-02-30"', '"2026-11-28T10:00:00Z"',
    '"2026-11-28T10:00:00"', '"2026-11-28T10:00:00.123456+02:00"', '"2026-11-28T10:00:00.1234567Z"',
    '"0001-01-01T00:00:00+02:00"', '"2026-11-28 10:00:00"', "1700000000000", "19000",
    '{"a": 1}', '{"a": "1"}', '{"b": 1}', '{"a": 1, "a": 2}', '{"z": 1}',
    '{"z": "2026-11-28T10:00:00Z"}', '["a", null]', "[1]", "[]", "{}", "[[]]", "null",
]  # fmt: skip


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
@pytest.mark.parametrize("column", KINDS)
def test_a_replay_reads_rows_as_the_stream_would_have_read_them(column: str, unit: str) -> None:
    schema = pa.schema([("id", pa.int64()), ("at", pa.int64()), (column, KINDS[column])])
    spec = plan_spec(schema, TableLayout(keys=["id"], delta="at"))
    flushed = 0
    for value in VALUES:
        text = f'{{"id": 1, "at": 1, "{column}": {value}}}'
        try:
            row = row_of_json(text, spec.schema, JsonForm(time_unit=unit))
        except ValueError:
            continue
        flushed += 1
        [expected] = good(decode([text.encode()], FormatOptions(time_unit=unit), spec))
        assert pa.Table.from_pylist([row], schema=schema).to_pylist() == [expected], value
    assert flushed >= 2


def test_a_key_without_a_column_is_refused_with_the_column_to_add() -> None:
    schema = pa.schema([("id", pa.int64()), ("at", pa.int64())])
    columns = plan_spec(schema, TableLayout(keys=["id"], delta="at")).schema
    with pytest.raises(ValueError, match=r"^unknown key 'new'; add a column 'new' to the table"):
        row_of_json('{"id": 1, "at": 1, "new": 2}', columns, JsonForm())
