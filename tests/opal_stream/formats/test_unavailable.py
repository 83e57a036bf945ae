"""The placeholder of a value that did not change, in every form, in JSON and Avro."""

import base64
import json
import uuid
from datetime import date, timedelta
from decimal import Decimal
from hashlib import md5
from typing import Any

import pyarrow as pa
import pytest

from opal_lake.errors import InvalidInputError
from opal_stream.formats.decoder import Decoded, Decoder
from opal_stream.operations.reading import FormatOptions
from tests.fixtures_kafka import Registry
from tests.opal_stream.formats.build import avro, event
from tests.opal_stream.orders import bad, batch, good, new_spec

TEXT = "__debezium_unavailable_value"
DATA = TEXT.encode()
UUID = str(uuid.UUID(bytes=md5(DATA).digest(), version=3))
COLUMNS = {"at": "@ts_ms", "op": "@op"}
DAYS = [date(1970, 1, 1) + timedelta(days=byte) for byte in DATA]

# Column, its type, what an unchanged one is in JSON, and a value that the column takes
JSON_FORMS = [
    ("text", pa.string(), TEXT, "a"),
    ("json or hstore as text", pa.string(), json.dumps({TEXT: TEXT}, separators=(",", ":")), "{}"),
    ("bytea as base64", pa.binary(), base64.b64encode(DATA).decode(), "YQ=="),
    ("bytea as base64 in a text", pa.string(), base64.b64encode(DATA).decode(), "YQ=="),
    ("bytea as hex", pa.string(), TEXT, "61"),
    ("bytea as hex digits", pa.string(), DATA.hex(), "61"),
    ("numeric as text", pa.decimal128(38, 9), TEXT, "1.5"),
    ("json in a struct", pa.struct([("a", pa.int64())]), TEXT, {"a": 1}),
    ("text[]", pa.list_(pa.string()), [TEXT], ["a"]),
    ("timestamptz[]", pa.list_(pa.timestamp("us", "UTC")), [TEXT], ["2026-01-01T00:00:00Z"]),
    ("uuid[]", pa.list_(pa.string()), [UUID], ["a"]),
    ("bytea[]", pa.list_(pa.binary()), [base64.b64encode(DATA).decode()], ["YQ=="]),
    ("smallint[]", pa.list_(pa.int16()), list(DATA), [1]),
    ("integer[]", pa.list_(pa.int32()), list(DATA), [1]),
    ("bigint[]", pa.list_(pa.int64()), list(DATA), [1]),
    ("real[]", pa.list_(pa.float32()), [float(byte) for byte in DATA], [1.5]),
    ("double[]", pa.list_(pa.float64()), [float(byte) for byte in DATA], [1.5]),
    ("date[]", pa.list_(pa.date32()), list(DATA), [1]),
    ("bigint[] that the connector does not know", pa.list_(pa.int64()), TEXT, [1]),
]
OTHER_NUMBERS = [list(DATA[:-1]), [*DATA, 1], [*DATA[:-1], 0], list(reversed(DATA))]


def spec_of(kind: pa.DataType) -> Any:
    return new_spec(
        id=pa.int64(), at=pa.timestamp("us", "UTC"), op=pa.string(), large=kind, note=pa.string()
    )


def decode(value: Any, kind: pa.DataType, *, schema: bool = False, **options: Any) -> Decoded:
    """Return an event with the placeholder, between two that have all values."""
    rows = [{"id": 1}, {"id": 2, "large": value, "note": "n"}, {"id": 3}]
    values = [event("u", None, row, 1, schema=schema) for row in rows]
    return decode_all(values, kind, **options)


def decode_all(values: list[Any], kind: pa.DataType, **options: Any) -> Decoded:
    chosen = FormatOptions(format="debezium-json", columns=COLUMNS, **options)
    return Decoder(spec_of(kind), chosen).decode(batch(values))


def unchanged(decoded: Decoded) -> dict[int, Any]:
    """Return the rows that lack values by id: their columns, and what these hold."""
    rows = [row for row in decoded.rows.to_pylist() if row["_opal_unchanged"] is not None]
    return {row["id"]: (json.loads(row["_opal_unchanged"]), row["large"]) for row in rows}


@pytest.mark.parametrize("schema", [False, True], ids=["plain", "with schema"])
@pytest.mark.parametrize(
    "kind, value, other", [case[1:] for case in JSON_FORMS], ids=[case[0] for case in JSON_FORMS]
)
def test_every_form_in_json_is_a_value_that_did_not_change(
    kind: pa.DataType, value: Any, other: Any, schema: bool
) -> None:
    decoded = decode(value, kind, schema=schema)
    assert (unchanged(decoded), bad(decoded)) == ({2: (["large"], None)}, {})
    assert [row["note"] for row in good(decoded)] == [None, "n", None]
    decoded = decode(other, kind, schema=schema)
    assert (unchanged(decoded), bad(decoded)) == ({}, {})
    assert good(decoded)[1]["large"] is not None


@pytest.mark.parametrize(
    "placeholder, written",
    [
        (TEXT, TEXT.replace("_", "\\u005f")),
        (TEXT, TEXT.replace("_", "\\u005F", 1)),
        ("nicht verfügbar", "nicht verf\\u00FCgbar"),
        ("not/available", "not\\/available"),
    ],
)
@pytest.mark.parametrize(
    "kind, form", [(pa.string(), '"%s"'), (pa.list_(pa.string()), '["%s"]')], ids=["text", "list"]
)
def test_a_placeholder_may_be_written_with_escapes(
    kind: pa.DataType, form: str, placeholder: str, written: str
) -> None:
    message = '{"after": {"id": 1, "large": %s}, "op": "u", "ts_ms": 1}' % (form % written)
    decoded = decode_all([message.encode()], kind, unavailable_value=placeholder)
    assert (unchanged(decoded), bad(decoded)) == ({1: (["large"], None)}, {})


def test_numbers_of_a_placeholder_may_be_written_with_exponents() -> None:
    numbers = ", ".join(f"{byte / 10}E1" for byte in DATA)
    message = f'{{"after": {{"id": 1, "large": [{numbers}]}}, "op": "u", "ts_ms": 1}}'
    decoded = decode_all([message.encode()], pa.list_(pa.float64()))
    assert (unchanged(decoded), bad(decoded)) == ({1: (["large"], None)}, {})


@pytest.mark.parametrize("policy", ["fail", "ignore", "add"])
@pytest.mark.parametrize("side", ["struct", "list of structs"])
def test_an_hstore_is_found_in_a_column_that_lacks_its_member(side: str, policy: str) -> None:
    struct = pa.struct([("a", pa.string())])
    kind = struct if side == "struct" else pa.list_(struct)
    decoded = decode({TEXT: TEXT}, kind, on_new_columns=policy)
    assert (unchanged(decoded), bad(decoded)) == ({2: (["large"], None)}, {})


@pytest.mark.parametrize("numbers", OTHER_NUMBERS)
def test_other_arrays_of_numbers_are_values(numbers: list[int]) -> None:
    decoded = decode(numbers, pa.list_(pa.int32()))
    assert (unchanged(decoded), bad(decoded)) == ({}, {})
    assert good(decoded)[1]["large"] == numbers


def test_texts_that_only_hold_the_placeholder_are_values() -> None:
    texts = [f"{TEXT}.", f'"{TEXT}', f'x "{TEXT}" y', TEXT[:-1], TEXT.upper()]
    decoded = decode_all(
        [event("u", None, {"id": n, "large": text}, 1) for n, text in enumerate(texts)],
        pa.string(),
    )
    assert (unchanged(decoded), bad(decoded)) == ({}, {})
    assert [row["large"] for row in good(decoded)] == texts


def test_arrays_of_true_for_each_byte_are_bad_messages_as_they_may_be_new() -> None:
    decoded = decode([True] * len(DATA), pa.list_(pa.bool_()))
    assert unchanged(decoded) == {}
    assert "may be an array that did not change, or a new value" in bad(decoded)["orders/3@101"]
    assert bad(decode([True] * 27, pa.list_(pa.bool_()))) == {}


@pytest.mark.parametrize(
    "kind, value",
    [
        (pa.struct([("a", pa.string())]), {"a": TEXT}),
        (pa.list_(pa.struct([("a", pa.string())])), [{"a": TEXT}]),
        (pa.list_(pa.string()), ["a", TEXT]),
    ],
    ids=["struct", "list of structs", "list"],
)
def test_a_placeholder_within_a_value_is_a_bad_message(kind: pa.DataType, value: Any) -> None:
    decoded = decode(value, kind)
    assert [row["id"] for row in good(decoded)] == [1, 3]
    assert "only whole columns are looked up" in bad(decoded)["orders/3@101"]


def test_a_delete_needs_no_values() -> None:
    decoded = decode_all([event("d", {"id": 1, "large": TEXT}, None, 1)], pa.string())
    [row] = good(decoded)
    assert (unchanged(decoded), row["_opal_deleted"], row["large"]) == ({}, True, None)


def test_the_row_before_an_update_may_lack_anything() -> None:
    values = [event("u", {"id": 1, "large": TEXT}, {"id": 1, "large": [1]}, 1)]
    decoded = decode_all(values, pa.list_(pa.int64()))
    assert (unchanged(decoded), bad(decoded)) == ({}, {})
    assert good(decoded)[0]["large"] == [1]


def test_a_key_that_did_not_change_is_a_bad_message() -> None:
    spec = new_spec(id=pa.string(), at=pa.timestamp("us", "UTC"), op=pa.string())
    options = FormatOptions(format="debezium-json", columns=COLUMNS)
    decoded = Decoder(spec, options).decode(batch([event("u", None, {"id": TEXT}, 1)]))
    assert "REPLICA IDENTITY FULL" in bad(decoded)["orders/3@100"]


def test_the_connector_may_have_another_placeholder() -> None:
    for given, value in (("~" * 8, "~" * 8), ("hex:" + "7e" * 9, "~" * 9)):
        decoded = decode(value, pa.string(), unavailable_value=given)
        assert unchanged(decoded) == {2: (["large"], None)}
        assert unchanged(decode(TEXT, pa.string(), unavailable_value=given)) == {}
    for wrong, reason in (
        ("", "is empty"),
        ("hex:7", "no hexadecimal digits"),
        ("0", "is shorter than 8 bytes, and may as well be a value; set "),
        ("hex:7e7e7e7e7e7e7e", "is shorter than 8 bytes"),
    ):
        with pytest.raises(InvalidInputError, match=reason):
            decode("a", pa.string(), unavailable_value=wrong)


def test_other_formats_have_no_placeholder() -> None:
    FormatOptions(format="debezium-json", unavailable_value="~")
    FormatOptions(format="json", unavailable_value=TEXT)
    with pytest.raises(InvalidInputError, match="not their change events; leave it out"):
        FormatOptions(format="json", unavailable_value="~")


def test_no_column_is_made_of_a_placeholder() -> None:
    values = [event("u", None, {"id": 1, "new": TEXT}, 1)]
    decoded = decode_all(values, pa.string(), on_new_columns="add")
    assert (decoded.new, [row["id"] for row in good(decoded)]) == (None, [1])


# Column, type of the table, of Avro, and what an unchanged one is
AVRO_FORMS = [
    ("text", pa.string(), ["null", "string"], TEXT),
    ("bytea", pa.binary(), ["null", "bytes"], DATA),
    ("text[]", pa.list_(pa.string()), {"type": "array", "items": ["null", "string"]}, [TEXT]),
    ("uuid[]", pa.list_(pa.string()), {"type": "array", "items": "string"}, [UUID]),
    ("bytea[]", pa.list_(pa.binary()), {"type": "array", "items": "bytes"}, [DATA]),
    ("integer[]", pa.list_(pa.int32()), {"type": "array", "items": "int"}, list(DATA)),
    ("double[]", pa.list_(pa.float64()), {"type": "array", "items": "double"}, [*map(float, DATA)]),
    (
        "date[]",
        pa.list_(pa.date32()),
        {"type": "array", "items": {"type": "int", "logicalType": "date"}},
        DAYS,
    ),
    (
        "numeric(9,2)[]",
        pa.list_(pa.decimal128(9, 2)),
        {
            "type": "array",
            "items": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
        },
        [Decimal(byte).scaleb(-2) for byte in DATA],
    ),
    (
        "hstore",
        pa.map_(pa.string(), pa.string()),
        {"type": "map", "values": "string"},
        {TEXT: TEXT},
    ),
]


@pytest.mark.parametrize(
    "kind, avro_type, value",
    [case[1:] for case in AVRO_FORMS],
    ids=[case[0] for case in AVRO_FORMS],
)
def test_every_form_in_avro_is_a_value_that_did_not_change(
    registry: Registry, kind: pa.DataType, avro_type: Any, value: Any
) -> None:
    fields = [("id", "long"), ("large", avro_type), ("note", "string")]
    row = {
        "type": "record",
        "name": "Row",
        "fields": [{"name": name, "type": entry} for name, entry in fields],
    }
    members = [("after", row), ("op", "string"), ("ts_ms", "long")]
    envelope = {
        "type": "record",
        "name": "Event",
        "fields": [{"name": name, "type": entry} for name, entry in members],
    }
    registry.register(9, envelope)
    options = FormatOptions(format="debezium-avro", registry=registry.url, columns=COLUMNS)
    after = {"id": 2, "large": value, "note": "n"}
    message = avro(9, envelope, {"after": after, "op": "u", "ts_ms": 1})
    decoded = Decoder(spec_of(kind), options).decode(batch([message]))
    assert (unchanged(decoded), bad(decoded)) == ({2: (["large"], None)}, {})
    assert [row["note"] for row in good(decoded)] == ["n"]
