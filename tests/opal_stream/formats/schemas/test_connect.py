"""The schema of Kafka Connect in a change event: types of new columns, decimals and times."""

import base64
import json
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from opal_stream.formats.schemas.connect import connect_columns
from opal_stream.operations.reading import FormatOptions
from tests.opal_stream.orders import bad, decode, good, new_spec

OPTIONS = FormatOptions(format="debezium-json", columns={"at": "@source.lsn", "op": "@op"})
DECIMAL, VARIABLE = "org.apache.kafka.connect.data.Decimal", "io.debezium.data.VariableScaleDecimal"


def decimal(name: str, scale: int) -> dict[str, Any]:
    return {
        "field": name,
        "type": "bytes",
        "name": DECIMAL,
        "parameters": {"scale": str(scale)},
        "optional": True,
    }


def whole(number: int) -> str:
    return base64.b64encode(
        number.to_bytes((number.bit_length() + 8) // 8, "big", signed=True)
    ).decode()


def event(fields: list[dict[str, Any]], row: Mapping[str, Any], op: str = "c") -> bytes:
    schema = {
        "type": "struct",
        "fields": [
            {"field": side, "type": "struct", "fields": fields} for side in ("before", "after")
        ],
    }
    payload = {
        "before": row if op == "d" else None,
        "after": None if op == "d" else row,
        "op": op,
        "source": {"lsn": 7},
    }
    return json.dumps({"schema": schema, "payload": payload}, separators=(",", ":")).encode()


def spec(**columns: pa.DataType) -> Any:
    return new_spec(id=pa.int64(), at=pa.int64(), op=pa.string(), **columns)


@pytest.mark.parametrize("number", [0, 1, -1, 127, 128, -128, -129, 12_345, 10**13 - 1, 1 - 10**13])
@pytest.mark.parametrize("op", ["c", "d"])
def test_decimals_in_base64_have_the_scale_of_the_schema(number: int, op: str) -> None:
    fields = [{"field": "id", "type": "int64"}, decimal("price", 2)]
    decoded = decode(
        [event(fields, {"id": 1, "price": whole(number)}, op)],
        OPTIONS,
        spec(price=pa.decimal128(14, 2)),
    )
    assert [(row["price"], row["_opal_deleted"]) for row in good(decoded)] == [
        (Decimal(number).scaleb(-2), op == "d")
    ]


@pytest.mark.parametrize(
    "kind, value",
    [
        (pa.decimal128(20, 4), Decimal("12.34")),
        (pa.float64(), 12.34),
        (pa.string(), "12.34"),
        (pa.int64(), None),
    ],
)
def test_a_decimal_fits_the_column_or_is_a_bad_message(kind: pa.DataType, value: Any) -> None:
    fields = [{"field": "id", "type": "int64"}, decimal("price", 2)]
    values = [
        event(fields, {"id": 1, "price": None}),
        event(fields, {"id": 2, "price": whole(1234)}),
    ]
    decoded = decode(values, OPTIONS, spec(price=kind))
    assert [row["price"] for row in good(decoded)] == (
        [None, value] if value is not None else [None]
    )
    assert [*bad(decoded)] == ([] if value is not None else ["orders/3@101"])


def test_a_column_whose_scale_changes_between_two_messages_is_read_by_the_schema_of_each() -> None:
    values = [
        event(
            [{"field": "id", "type": "int64"}, decimal("price", n)], {"id": n, "price": whole(1234)}
        )
        for n in (2, 2, 3, 2, 3)
    ]
    decoded = decode(values, OPTIONS, spec(price=pa.decimal128(14, 3)))
    assert [str(row["price"]) for row in good(decoded)] == [
        "12.340",
        "12.340",
        "1.234",
        "12.340",
        "1.234",
    ]


def test_a_decimal_without_a_scale_of_its_own_brings_it_with_each_value() -> None:
    fields = [
        {"field": "id", "type": "int64"},
        {"field": "rate", "type": "struct", "name": VARIABLE, "fields": []},
    ]
    rates = [
        {"scale": 3, "value": whole(-1500)},
        None,
        {"scale": 0, "value": whole(42)},
        {"scale": -2, "value": whole(3)},
    ]
    values = [event(fields, {"id": number, "rate": rate}) for number, rate in enumerate(rates)]
    read = good(decode(values, OPTIONS, spec(rate=pa.decimal128(38, 10))))
    assert [row["rate"] for row in read] == [Decimal("-1.5"), None, Decimal(42), Decimal(300)]
    assert [row["rate"] for row in good(decode(values, OPTIONS, spec(rate=pa.string())))] == [
        "-1.500",
        None,
        "42",
        "300",
    ]


def test_a_value_that_is_not_a_decimal_or_does_not_fit_is_a_bad_message() -> None:
    fields = [{"field": "id", "type": "int64"}, decimal("price", 2)]
    values = [
        event(fields, {"id": n, "price": price})
        for n, price in enumerate([whole(10**40), "1.5", whole(10**7), whole(100)])
    ]
    decoded = decode(values, OPTIONS, spec(price=pa.decimal128(5, 2)))
    assert [row["id"] for row in good(decoded)] == [3]
    assert [*bad(decoded)] == ["orders/3@100", "orders/3@101", "orders/3@102"]


def test_a_decimal_in_base64_without_a_schema_is_a_bad_message_that_says_what_to_set() -> None:
    value = {"after": {"id": 1, "price": whole(1234)}, "op": "c", "source": {"lsn": 7}}
    decoded = decode([json.dumps(value).encode()], OPTIONS, spec(price=pa.decimal128(14, 2)))
    assert "decimal.handling.mode=string" in bad(decoded)["orders/3@100"]


def test_each_column_of_times_has_the_unit_of_the_schema_whatever_the_unit_of_the_stream() -> None:
    fields = [
        {"field": "id", "type": "int64"},
        {"field": "sold", "type": "int64", "name": "io.debezium.time.MicroTimestamp"},
        {"field": "sent", "type": "int64", "name": "io.debezium.time.Timestamp"},
        {"field": "paid", "type": "string", "name": "io.debezium.time.ZonedTimestamp"},
        {"field": "raw", "type": "int64", "name": "io.debezium.time.MicroTimestamp"},
    ]
    moment = datetime(2026, 11, 25, 9, 0, 0, 123_000)
    us = int(moment.replace(tzinfo=UTC).timestamp() * 1000) * 1000
    row = {"id": 1, "sold": us, "sent": us // 1000, "paid": "2026-11-25T09:00:00.123Z", "raw": us}
    columns = {
        "sold": pa.timestamp("us"),
        "sent": pa.timestamp("us"),
        "paid": pa.timestamp("us", "UTC"),
        "raw": pa.int64(),
    }
    [read] = good(decode([event(fields, row)], OPTIONS, spec(**columns)))
    assert (read["sold"], read["sent"], read["paid"], read["raw"]) == (
        moment,
        moment,
        moment.replace(tzinfo=UTC),
        us,
    )


def test_types_of_kafka_connect_and_times_of_the_stream_s_unit() -> None:
    fields = [
        {"field": "n", "type": "int32"},
        {"field": "day", "type": "int32", "name": "io.debezium.time.Date"},
        {"field": "at", "type": "int64", "name": "io.debezium.time.MicroTimestamp"},
        {"field": "zoned", "type": "string", "name": "io.debezium.time.ZonedTimestamp"},
        {"field": "nested", "type": "struct", "fields": []},
        {"field": "tags", "type": "map"},
        {
            "field": "lists",
            "type": "array",
            "items": {"type": "struct", "fields": [{"field": "tags", "type": "map"}]},
        },
        decimal("price", 2),
        {**decimal("rate", 3), "parameters": {"scale": "3", "connect.decimal.precision": "9"}},
    ]
    value = json.dumps(
        {
            "schema": {"fields": [{"field": "before"}, {"field": "after", "fields": fields}]},
            "payload": {},
        }
    ).encode()
    same = {"n": pa.int32(), "day": pa.date32(), "zoned": pa.timestamp("us", "UTC")}
    same |= {
        "price": pa.decimal128(38, 2),
        "rate": pa.decimal128(9, 3),
        "tags": pa.null(),
        "lists": pa.null(),
    }
    assert connect_columns(value, "us") == {**same, "at": pa.timestamp("us")}
    assert connect_columns(value, "ms") == {**same, "at": pa.int64()}
    assert connect_columns(b'{"after": {}}', "ms") == {}


def test_a_map_of_kafka_connect_becomes_one_new_column_of_unknown_type() -> None:
    fields = [{"field": "id", "type": "int64"}, {"field": "tags", "type": "map"}]
    decoded = decode(
        [event(fields, {"id": 1, "tags": {"a": "1"}})],
        replace(OPTIONS, on_new_columns="add"),
        spec(),
    )
    assert decoded.new is not None
    assert decoded.new.columns == pa.schema([("tags", pa.null())])


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(depth):
        schema = {"type": "array", "items": schema}
    return schema


@pytest.mark.parametrize(
    "schema",
    [
        {"fields": 5},
        {"fields": [{"field": "after", "fields": 5}]},
        {"fields": [{"field": "after", "fields": [{"field": "x", "type": "struct", "fields": 5}]}]},
        {"fields": [{"field": "after", "fields": [{"field": "x", **nested(600)}]}]},
        {
            "fields": [
                {
                    "field": "after",
                    "fields": [{"field": "x", "type": "bytes", "name": DECIMAL, "parameters": 5}],
                }
            ]
        },
        {
            "fields": [
                {
                    "field": "after",
                    "fields": [
                        {
                            "field": "x",
                            "type": "bytes",
                            "name": DECIMAL,
                            "parameters": {"scale": "s"},
                        }
                    ],
                }
            ]
        },
        {"fields": [{"field": "after", "fields": [{"field": ["x"], "type": {}, "name": []}]}]},
    ],
)
def test_an_invalid_schema_makes_a_bad_message_and_the_process_goes_on(
    schema: dict[str, Any],
) -> None:
    value = json.dumps(
        {
            "schema": schema,
            "payload": {"after": {"id": 1, "x": "v"}, "op": "c", "source": {"lsn": 7}},
        }
    ).encode()
    for policy in ("add", "quarantine"):
        decoded = decode([value], replace(OPTIONS, on_new_columns=policy), spec())
        assert decoded.new is not None or decoded.bad


def test_a_schema_that_is_nested_too_deeply_makes_its_message_bad() -> None:
    # More levels than the parser of any Python reads
    deep = b"[" * 100_000 + b"]" * 100_000
    value = b'{"schema":' + deep + b',"payload":{"after":{"id":1},"op":"c","source":{"lsn":7}}}'
    assert "not one of Kafka Connect" in bad(decode([value], OPTIONS, spec()))["orders/3@100"]


def test_a_value_that_json_cannot_hold_exactly_is_a_bad_message() -> None:
    items = {"type": "array", "items": {**decimal("x", 2)}}
    members = {"type": "struct", "fields": [decimal("d", 3)]}
    times = {"type": "int64", "name": "io.debezium.time.MicroTime"}
    cases: list[tuple[dict[str, Any], pa.DataType, Any, str]] = [
        (
            items,
            pa.list_(pa.decimal128(14, 2)),
            ["1000"],
            "decimals in base64 within a list or an object",
        ),
        (
            members,
            pa.struct([("d", pa.decimal128(14, 3))]),
            {"d": "1000"},
            "decimals in base64 within a list or an object",
        ),
        (times, pa.timestamp("us"), 3_600_000_000, "it is a time of day, which is not a timestamp"),
        (
            {**decimal("x", 0), "parameters": {"scale": "99999999999"}},
            pa.decimal128(14, 2),
            "AQ==",
            "too large",
        ),
        ({"type": "bytes"}, pa.binary(), "%%%", "base64"),
    ]
    for kind, column, value, reason in cases:
        fields = [{"field": "id", "type": "int64"}, {**kind, "field": "x"}]
        decoded = decode(
            [event(fields, {"id": 1, "x": value}), event(fields[:1], {"id": 2})],
            OPTIONS,
            spec(x=column),
        )
        assert reason in bad(decoded)["orders/3@100"]
        assert [row["id"] for row in good(decoded)] == [2]


def test_bytes_are_read_from_base64_and_dates_into_timestamps() -> None:
    fields = [
        {"field": "id", "type": "int64"},
        {"field": "raw", "type": "bytes"},
        {"field": "day", "type": "int32", "name": "io.debezium.time.Date"},
        {"field": "text", "type": "bytes"},
        {"field": "time", "type": "int64", "name": "io.debezium.time.MicroTime"},
    ]
    columns = {
        "raw": pa.binary(),
        "day": pa.timestamp("us"),
        "text": pa.string(),
        "time": pa.int64(),
    }
    row = {"id": 1, "raw": "aGVsbG8=", "day": 19000, "text": "aGVsbG8=", "time": 7}
    [read] = good(decode([event(fields, row)], OPTIONS, spec(**columns)))
    assert (read["raw"], read["day"], read["text"], read["time"]) == (
        b"hello",
        datetime(2022, 1, 8),
        "aGVsbG8=",
        7,
    )


def test_new_columns_of_decimals_are_text_where_the_scale_varies_and_none_within_lists() -> None:
    fields = [
        {"field": "id", "type": "int64"},
        {
            "field": "vs",
            "type": "struct",
            "name": VARIABLE,
            "fields": [{"field": "scale", "type": "int32"}, {"field": "value", "type": "bytes"}],
        },
        {"field": "list", "type": "array", "items": decimal("x", 2)},
    ]
    row = {"id": 1, "vs": {"scale": 2, "value": whole(1234)}, "list": [whole(7)]}
    assert connect_columns(event(fields, row), "ms") == {
        "id": pa.int64(),
        "vs": pa.string(),
        "list": pa.null(),
    }
    [read] = good(decode([event(fields[:2], row)], OPTIONS, spec(vs=pa.string())))
    assert read["vs"] == "12.34"
