"""Avro and JSON in a registry's wire format, against a registry over HTTP."""

import json
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from opal_lake.errors import InvalidInputError
from opal_stream.errors import RegistryError
from opal_stream.formats import registry as registries
from opal_stream.formats.decoder import Decoder
from opal_stream.formats.registry import SchemaRegistry
from opal_stream.formats.schemas.avro_schema import AvroSchema
from opal_stream.operations.reading import FormatOptions
from tests.fixtures_kafka import Registry
from tests.opal_stream.formats.build import FIRST, SECOND, avro, decoder, head, nested, record
from tests.opal_stream.orders import bad, batch, good, new_spec, order

MICROS = pa.timestamp("us", "UTC")
THIRD = {
    **FIRST,
    "fields": [*FIRST["fields"], {"name": "name", "type": "string", "default": "nobody"}],
}


def test_records_are_read_by_the_schema_of_their_id_which_is_asked_for_once(
    registry: Registry,
) -> None:
    registry.register(1, FIRST), registry.register(5, SECOND)
    reader = decoder(registry)
    values = [
        avro(1, FIRST, record(1)),
        avro(5, SECOND, record(2, name="b")),
        avro(1, FIRST, record(3)),
    ]
    for _ in range(2):
        assert [(row["id"], row["name"]) for row in good(reader.decode(batch(values)))] == [
            (1, None),
            (2, "b"),
            (3, None),
        ]
    assert registry.asked == [1, 5]


def test_records_of_an_older_schema_have_null_where_a_newer_one_has_a_default(
    registry: Registry,
) -> None:
    registry.register(1, FIRST), registry.register(6, THIRD)
    values = [avro(6, THIRD, record(1, name="a")), avro(1, FIRST, record(2))]
    assert [row["name"] for row in good(decoder(registry).decode(batch(values)))] == ["a", None]


@pytest.mark.parametrize(
    "value, reason",
    [
        (b"\0\0\0\0\x09rest", "no schema 9"),
        (
            b"{}",
            (
                "does not begin with a zero byte and the id of a schema: it was not written "
                "with a schema registry"
            ),
        ),
        (head(1), ""),
        (head(1) + b"\xff" * 20, ""),
    ],
)
def test_unknown_ids_and_damaged_records_are_bad_messages(
    registry: Registry, value: bytes, reason: str
) -> None:
    registry.register(1, FIRST)
    decoded = decoder(registry).decode(
        batch([avro(1, FIRST, record(1)), value, avro(1, FIRST, record(2))])
    )
    assert [row["id"] for row in good(decoded)] == [1, 2]
    assert list(bad(decoded)) == ["orders/3@101"]
    assert reason in bad(decoded)["orders/3@101"]


def test_a_value_that_does_not_fit_the_table_s_column_is_a_bad_message(registry: Registry) -> None:
    registry.register(5, SECOND)
    reader = decoder(
        registry, id=pa.int64(), op=pa.string(), at=pa.timestamp("us", "UTC"), name=pa.int64()
    )
    decoded = reader.decode(
        batch([avro(5, SECOND, record(1)), avro(5, SECOND, record(2, name="b"))])
    )
    assert [row["id"] for row in good(decoded)] == [1]
    assert "column 'name'" in bad(decoded)["orders/3@101"]


def test_json_in_the_wire_format_becomes_rows(registry: Registry) -> None:
    registry.register(3, {"type": "object"})
    values = [
        head(3) + json.dumps(order(1)).encode(),
        head(4) + b"{}",
        json.dumps(order(2)).encode(),
        head(3) + b"{",
        b"",
    ]
    decoded = decoder(registry, "json-registry").decode(batch(values))
    assert [row["id"] for row in good(decoded)] == [1]
    assert list(bad(decoded)) == ["orders/3@101", "orders/3@102", "orders/3@103", "orders/3@104"]


def test_change_events_in_avro_become_rows(registry: Registry) -> None:
    row = {
        "type": "record",
        "name": "Row",
        "fields": [{"name": "id", "type": "long"}, {"name": "name", "type": "string"}],
    }
    members = [
        {"name": "before", "type": ["null", row]},
        {"name": "after", "type": ["null", "Row"]},
    ]
    members += [{"name": "op", "type": "string"}, {"name": "ts_ms", "type": ["null", "long"]}]
    envelope = {"type": "record", "name": "Envelope", "fields": members}
    registry.register(8, envelope)
    options = FormatOptions(
        format="debezium-avro", registry=registry.url, columns={"at": "@ts_ms", "op": "@op"}
    )
    events = [
        ("c", None, {"id": 1, "name": "a"}),
        ("d", {"id": 1, "name": "a"}, None),
        ("u", {"id": 1, "name": "a"}, None),
    ]
    values = [
        avro(8, envelope, {"op": op, "before": before, "after": after, "ts_ms": 5})
        for op, before, after in events
    ]
    decoded = Decoder(new_spec(), options).decode(batch([*values, None]))
    assert [
        (actual["id"], actual["name"], actual["_opal_deleted"]) for actual in good(decoded)
    ] == [
        (1, "a", False),
        (1, "a", True),
    ]
    assert (decoded.skipped, list(bad(decoded))) == (1, ["orders/3@102"])


def test_decimals_of_avro_change_events_keep_their_values(
    registry: Registry,
) -> None:
    price = {"type": "bytes", "logicalType": "decimal", "precision": 14, "scale": 2}
    rate = {
        "type": "record",
        "name": "VariableScaleDecimal",
        "fields": [{"name": "scale", "type": "int"}, {"name": "value", "type": "bytes"}],
    }
    fields = [("id", "long"), ("price", price), ("rate", ["null", rate]), ("note", "string")]
    row = {
        "type": "record",
        "name": "Row",
        "fields": [{"name": name, "type": kind} for name, kind in fields],
    }
    event = {
        "type": "record",
        "name": "Event",
        "fields": [{"name": "after", "type": row}, {"name": "op", "type": "string"}],
    }
    registry.register(9, event)
    after = {
        "id": 1,
        "price": Decimal("-12.34"),
        "rate": {"scale": 3, "value": b"\xfa\x24"},
        "note": "n",
    }
    rows = [
        after,
        {**after, "id": 2, "rate": None},
    ]
    spec = new_spec(
        id=pa.int64(),
        at=pa.int64(),
        op=pa.string(),
        price=pa.decimal128(14, 2),
        rate=pa.decimal128(38, 9),
        note=pa.string(),
    )
    options = FormatOptions(
        format="debezium-avro", registry=registry.url, columns={"at": "@offset", "op": "@op"}
    )
    decoded = Decoder(spec, options).decode(
        batch([avro(9, event, {"after": row, "op": "u"}) for row in rows])
    )
    assert [(row["price"], row["rate"]) for row in good(decoded)] == [
        (Decimal("-12.34"), Decimal("-1.5")),
        (Decimal("-12.34"), None),
    ]


def test_unseen_returns_the_first_new_schema_until_it_is_learned(registry: Registry) -> None:
    registry.register(1, FIRST), registry.register(5, SECOND)
    reader = decoder(registry)
    messages = batch(
        [
            None,
            avro(1, FIRST, record(1)),
            avro(5, SECOND, record(2)),
            head(9),
            avro(1, FIRST, record(3)),
        ]
    )
    actual = []
    while (position := reader.unseen(messages)) is not None:
        actual.append(position)
        reader.learn(messages.values[position])
    assert actual == [1, 2, 3]


def test_a_registry_that_is_away_stops_the_stream_and_makes_no_bad_messages(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry.register(1, FIRST)
    registry.away = True
    monkeypatch.setattr(registries, "_FIRST_PAUSE_S", 0.001)
    with pytest.raises(RegistryError, match=r"did not give schema 1: HTTP Error 503.* try again"):
        decoder(registry).decode(batch([avro(1, FIRST, record(1))]))
    registry.away = False
    assert len(good(decoder(registry).decode(batch([avro(1, FIRST, record(1))])))) == 1


def test_a_schema_that_nests_too_deep_makes_its_messages_bad(registry: Registry) -> None:
    nested: Any = {"type": "string"}
    for _ in range(100):
        nested = {"type": "object", "properties": {"a": nested}}
    registry.register(1, nested)
    decoded = decoder(registry, "json-registry").decode(batch([head(1) + b'{"id":1}']))
    reason = "the registry's schema nests 201 levels deep, more than the limit of 60"
    assert bad(decoded) == {"orders/3@100": reason}


def test_a_schema_that_is_not_json_makes_its_messages_bad(registry: Registry) -> None:
    registry.broken["/schemas/ids/1"] = {"schema": "nope", "schemaType": "JSON"}
    decoded = decoder(registry, "json-registry").decode(batch([head(1) + b'{"id":1}']))
    reason = "the registry's schema is not JSON: Expecting value: line 1 column 1 (char 0)"
    assert bad(decoded) == {"orders/3@100": reason}


def with_size(kind: Any) -> dict[str, Any]:
    return {**FIRST, "fields": [*FIRST["fields"], {"name": "size", "type": kind}]}


def test_versions_of_a_subject_are_asked_for_once_however_many_schemas_it_has(
    registry: Registry,
) -> None:
    numbers = range(1, 11)
    for number in numbers:
        registry.register(number, {**FIRST, "doc": str(number)})
    known = SchemaRegistry(registry.url)
    newest_first = [json.dumps(registry.schemas[number]) for number in reversed(numbers)]

    def texts(number: int) -> list[str]:
        return [version.text for version in known.versions(number)]

    for number in numbers:
        assert texts(number) == newest_first
    of_subject = ["/subjects/orders-value/versions"]
    of_subject += [f"/subjects/orders-value/versions/{number}" for number in numbers]
    of_ids = [f"/schemas/ids/{number}/versions" for number in numbers]
    assert sorted(registry.paths) == sorted([*of_ids, *of_subject])
    registry.paths.clear()
    registry.register(11, SECOND)
    assert texts(11) == [json.dumps(SECOND), *newest_first] == texts(1)
    assert registry.paths == [
        "/schemas/ids/11/versions",
        "/subjects/orders-value/versions",
        "/subjects/orders-value/versions/11",
    ]


@pytest.mark.parametrize("code", [401, 500])
def test_a_registry_that_refuses_versions_is_warned_of_once_and_read_by_id(
    code: int,
    registry: Registry,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(registries, "_FIRST_PAUSE_S", 0.001)
    registry.versions_code = code
    registry.register(1, with_size("int")), registry.register(2, with_size("long"))
    options = FormatOptions(format="avro", registry=registry.url, on_new_columns="add")
    reader = Decoder(new_spec(), options)
    for number, kind in ((1, pa.int32()), (2, pa.int64())):
        value = avro(number, registry.schemas[number], record(1, size=1))
        new = reader.decode(batch([value])).new
        assert new is not None
        assert new.columns.field("size").type == kind
    [message] = caplog.messages
    assert (
        f"does not give the versions of schema 1 (_NotGivenError('HTTP Error {code}'))" in message
    )


def test_a_schema_of_a_deleted_subject_is_warned_of(
    registry: Registry, caplog: pytest.LogCaptureFixture
) -> None:
    registry.register(1, FIRST)
    registry.deleted.add("orders-value")
    assert SchemaRegistry(registry.url).versions(1) == []
    [message] = caplog.messages
    assert "the versions of schema 1 (none is left, as of a deleted subject)" in message


def chain(levels: int, width: int) -> list[dict[str, Any]]:
    """Return fields of records each of which names the one before, without nesting."""
    fields, member = [], {"name": "a", "type": "int"}
    for level in range(levels):
        names = [{**member, "name": f"a{number}"} for number in range(width)]
        kind = {"type": "record", "name": f"R{level}", "fields": names}
        fields.append({"name": f"f{level}", "type": kind})
        member = {"name": "a", "type": f"R{level}"}
    return fields


def with_fields(*fields: Any) -> dict[str, Any]:
    return {**FIRST, "fields": [*FIRST["fields"], *fields]}


def reason_of(registry: Registry, schema: Any, policy: str) -> str:
    registry.register(2, schema)
    options = FormatOptions(format="avro", registry=registry.url, on_new_columns=policy)
    decoded = Decoder(new_spec(), options).decode(batch([head(2) + b"\0" * 9]))
    [reason] = bad(decoded).values()
    return str(reason)


@pytest.mark.parametrize("policy", ["add", "ignore"])
@pytest.mark.parametrize("shape, counted", [("array", 65), ("map", 65), ("record", 65)])
def test_a_schema_of_avro_that_nests_too_deep_makes_its_messages_bad(
    registry: Registry, policy: str, shape: str, counted: int
) -> None:
    schema = with_fields({"name": "name", "type": nested(64, shape)})
    reason = reason_of(registry, schema, policy)
    assert reason.startswith(
        f"the registry's schema nests {counted} types, more than the limit of 64"
    )


@pytest.mark.parametrize("levels", [400, 2000])
def test_an_avro_schema_whose_text_nests_too_deep_is_refused(
    registry: Registry, levels: int
) -> None:
    text = json.dumps(with_fields({"name": "name", "type": "int"}))
    deep = '{"type": "array", "items": ' * levels + '"int"' + "}" * levels
    schema = text.replace('"name": "name", "type": "int"', f'"name": "name", "type": {deep}')
    with pytest.raises(ValueError, match=r"nests [\d,]+ levels deep, more than the limit of 320"):
        AvroSchema(schema)


@pytest.mark.parametrize("levels", [64, 5000])
def test_definitions_that_name_each_other_count_as_within_one_another(
    registry: Registry, levels: int
) -> None:
    reason = reason_of(registry, with_fields(*chain(levels, 1)), "add")
    assert reason.startswith(
        f"the registry's schema nests {levels + 1:,} types, more than the limit of 64"
    )


def test_a_small_schema_does_not_stand_for_millions_of_types(registry: Registry) -> None:
    reason = reason_of(registry, with_fields(*chain(40, 2)), "add")
    assert (
        "types where each name stands for its definition, more than the limit of 100,000" in reason
    )


@pytest.mark.parametrize("shape", ["array", "map", "record", "union"])
def test_a_message_of_the_deepest_schema_is_read(registry: Registry, shape: str) -> None:
    """Other columns than those of the table are of no matter, however deep they are."""
    levels = 31 if shape == "union" else 63  # of a union of several types both count
    schema = with_fields({"name": "other", "type": nested(levels, shape)})
    registry.register(2, schema)
    value: Any = 1
    for level in range(levels):
        values = {"array": [value], "map": {"k": value}, "union": (f"R{level}", {"a": value})}
        value = values.get(shape, {"a": value})
    decoded = decoder(registry).decode(batch([avro(2, schema, record(7, other=value))]))
    assert [row["id"] for row in good(decoded)] == [7]


@pytest.mark.parametrize(
    "form, kind, reason",
    [
        ("avro", "PROTOBUF", "is PROTOBUF, and the stream reads AVRO; streams read Avro and JSON"),
        ("json-registry", "PROTOBUF", "is PROTOBUF, and the stream reads JSON; streams read Avro"),
        ("avro", "JSON", "is JSON, and the stream reads AVRO; read the topic with format='json"),
        (
            "json-registry",
            "AVRO",
            "is AVRO, and the stream reads JSON; read the topic with format='avro",
        ),
    ],
)
def test_a_schema_of_another_kind_is_refused_by_its_name(
    registry: Registry, form: str, kind: str, reason: str
) -> None:
    registry.register(7, FIRST)
    registry.kinds[7] = kind
    messages = [head(7) + b'{"id": 1, "op": "I", "at": 1}', avro(7, FIRST, record(1))]
    decoded = decoder(registry, form).decode(batch(messages))
    assert good(decoded) == []
    for report in bad(decoded).values():
        assert f"schema 7 of {registry.url} {reason}" in report
    assert registry.asked == [7]


@pytest.mark.parametrize("form, kind", [("avro", "AVRO"), ("json-registry", "JSON")])
def test_a_schema_of_the_kind_of_the_format_is_read(
    registry: Registry, form: str, kind: str
) -> None:
    registry.register(7, FIRST)
    registry.kinds[7] = kind
    is_avro = form == "avro"
    message = avro(7, FIRST, record(1)) if is_avro else head(7) + b'{"id": 1, "op": "I", "at": 1}'
    assert [row["id"] for row in good(decoder(registry, form).decode(batch([message])))] == [1]


@pytest.mark.parametrize(
    "key_format, key",
    [("json", b'{"id": 1}'), ("json", b"1"), ("string", b"1"), (None, head(8) + b"\x02")],
)
def test_keys_of_avro_values_may_have_their_own_format(
    registry: Registry, key_format: str | None, key: bytes
) -> None:
    registry.register(7, FIRST)
    registry.register(8, {"type": "record", "name": "K", "fields": FIRST["fields"][:1]})
    options = FormatOptions(format="avro", key_format=key_format, registry=registry.url)
    values = [avro(7, FIRST, record(1)), None]
    decoded = Decoder(new_spec(), options).decode(batch(values, keys=[key, key]))
    assert bad(decoded) == {}
    assert [(row["id"], row["_opal_deleted"]) for row in good(decoded)] == [(1, False), (1, True)]


def test_an_avro_key_of_json_values_fills_a_column(registry: Registry) -> None:
    registry.register(8, {"type": "record", "name": "K", "fields": FIRST["fields"][:1]})
    options = FormatOptions(key_format="avro", registry=registry.url, columns={"id": "@key.id"})
    decoded = Decoder(new_spec(), options).decode(batch([order(5)], keys=[head(8) + b"\x02"]))
    assert [row["id"] for row in good(decoded)] == [1]


def test_a_key_format_that_does_not_fit_is_refused() -> None:
    with pytest.raises(
        InvalidInputError, match="key_format='string' a key has no members; use @key"
    ):
        FormatOptions(key_format="string", columns={"id": "@key.id"})
    with pytest.raises(InvalidInputError, match="format 'avro' needs a schema registry"):
        Decoder(new_spec(), FormatOptions(key_format="avro"))
