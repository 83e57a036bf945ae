"""Debezium's change events: inserts, updates, deletes, tombstones, with and without schema."""

from typing import Any

import pyarrow as pa
import pytest

from opal_stream.operations.reading import FormatOptions
from tests.opal_stream.formats.build import event
from tests.opal_stream.orders import bad, decode, good, new_spec, order

OPTIONS = FormatOptions(format="debezium-json", columns={"at": "@ts_ms", "op": "@op"})


@pytest.mark.parametrize("schema", [False, True])
def test_changes_write_the_row_after_and_deletes_the_key_of_the_row_before(schema: bool) -> None:
    values = [
        event("r", None, {"id": 1, "name": "a", "total": 1.5}, 1, schema=schema),
        event("u", {"id": 1}, {"id": 1, "name": "b"}, 2, schema=schema),
        event("d", {"id": 1, "name": "b"}, None, 3, schema=schema),
        None,
    ]
    decoded = decode(values, OPTIONS)
    assert [(row["id"], row["name"], row["op"], row["_opal_deleted"]) for row in good(decoded)] == [
        (1, "a", "r", False),
        (1, "b", "u", False),
        (1, "b", "d", True),
    ]
    assert [row["at"].microsecond for row in good(decoded)] == [1000, 2000, 3000]
    assert (decoded.skipped, bad(decoded)) == (1, {})


def test_messages_with_and_without_a_schema_may_follow_each_other() -> None:
    values = [
        event("c", None, {"id": 1}, 1, schema=True),
        event("c", None, {"id": 2}, 2),
        event("c", None, {"id": 3}, 3, schema=True),
    ]
    assert [row["id"] for row in good(decode(values, OPTIONS))] == [1, 2, 3]


def test_new_columns_are_found_in_events_with_and_without_an_envelope() -> None:
    values = [
        event("c", None, {"id": 1, "note": 5}, 1),
        event("c", None, {"id": 2, "note": 1.5}, 2, schema=True),
        event("c", None, {"id": 3}, 3, schema=True),
        event("c", None, {"id": 4, "size": 7}, 4, schema=True),
    ]
    new = decode(values, OPTIONS).new
    assert new is not None
    assert dict(new.names) == {0: ("note",), 1: ("note",), 3: ("size",)}
    assert new.columns == pa.schema([("note", pa.float64()), ("size", pa.int64())])


def test_columns_may_come_from_the_source_of_the_event() -> None:
    spec = new_spec(id=pa.int64(), at=pa.int64(), op=pa.string(), origin=pa.string())
    options = FormatOptions(
        format="debezium-json", columns={"at": "@source.lsn", "origin": "@source.db"}
    )
    [row] = good(decode([event("c", None, {"id": 1}, 77)], options, spec))
    assert (row["at"], row["origin"]) == (77, "shop")


@pytest.mark.parametrize(
    "value, reason",
    [
        (event("d", None, None, 1), "a delete needs the member `before`"),
        (event("t", None, None, 1), "op='t'"),
        (order(1), "op='I'"),
        ({"payload": None}, "op=None"),
    ],
)
def test_an_event_that_is_not_a_change_of_a_row_is_a_bad_message(value: Any, reason: str) -> None:
    decoded = decode([event("c", None, {"id": 1}, 1), value], OPTIONS)
    assert [row["id"] for row in good(decoded)] == [1]
    assert reason in bad(decoded)["orders/3@101"]
