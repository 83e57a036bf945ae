"""Schemas of Avro that refer to other schemas of the registry."""

import json
import pickle
import time
from typing import Any

import fastavro
import pyarrow as pa
import pytest

from opal_stream.errors import RegistryError
from opal_stream.formats import references
from opal_stream.formats import registry as registries
from opal_stream.formats.decoder import Decoder
from opal_stream.formats.schemas.avro_schema import AvroSchema
from opal_stream.operations.reading import FormatOptions
from tests.fixtures_kafka import Registry
from tests.opal_stream.formats.build import FIRST, avro, decoder, head, record
from tests.opal_stream.orders import SCHEMA, bad, batch, good, new_spec

ZIP = {"type": "fixed", "name": "Zip", "namespace": "shop", "size": 2}
ADDRESS = {
    "type": "record",
    "name": "Address",
    "namespace": "shop",
    "fields": [{"name": "street", "type": "string"}, {"name": "zip", "type": "Zip"}],
}
ORDER = {**FIRST, "fields": [*FIRST["fields"], {"name": "address", "type": "shop.Address"}]}
COLUMNS = {
    "id": pa.int64(),
    "op": pa.string(),
    "at": pa.timestamp("us", "UTC"),
    "address": pa.struct([("street", pa.string()), ("zip", pa.binary())]),
}
ADDRESS_OF_1 = {"street": "a", "zip": b"12"}


def register_order(registry: Registry) -> None:
    registry.register(1, ZIP, "zip")
    registry.register(2, ADDRESS, "shop/address", [("zip", 1)])
    registry.register(3, ORDER, references=[("shop/address", 1)])


def order_of(number: int) -> bytes:
    named: dict[str, Any] = {}
    for schema in (ZIP, ADDRESS):
        fastavro.parse_schema(schema, named)
    parsed = fastavro.parse_schema(ORDER, named)
    return avro(number, parsed, record(1, address=ADDRESS_OF_1))


def test_types_of_references_are_read_and_each_is_asked_for_once(registry: Registry) -> None:
    register_order(registry)
    registry.register(4, {**ORDER, "doc": "newer"}, references=[("shop/address", 1)])
    reader = decoder(registry, **COLUMNS)
    values = [order_of(3), order_of(4), order_of(3)]
    for _ in range(2):
        rows = good(reader.decode(batch(values)))
        assert [row["address"] for row in rows] == [ADDRESS_OF_1] * 3
    assert registry.paths == [
        "/schemas/ids/3",
        "/subjects/shop%2Faddress/versions/1",
        "/subjects/zip/versions/1",
        "/schemas/ids/4",
    ]


def test_the_events_of_a_union_of_references_are_rows(registry: Registry) -> None:
    """Register schemas as of a topic with events of several types."""
    registry.register(1, FIRST, "order")
    registry.register(2, {**FIRST, "name": "Note"}, "note")
    registry.register(3, ["Order", "Note"], references=[("order", 1), ("note", 1)])
    second_branch = head(3) + b"\x02" + avro(2, FIRST, record(7))[5:]
    assert [row["id"] for row in good(decoder(registry).decode(batch([second_branch])))] == [7]


def test_a_new_column_has_the_type_of_a_reference(registry: Registry) -> None:
    register_order(registry)
    options = FormatOptions(format="avro", registry=registry.url, on_new_columns="add")
    new = Decoder(new_spec(), options).decode(batch([order_of(3)])).new
    assert new is not None
    assert new.columns.field("address").type == COLUMNS["address"]


def test_a_schema_keeps_its_references_in_another_process(registry: Registry) -> None:
    """Return a decoder of a Spark task, which does not reach the registry."""
    register_order(registry)
    reader = decoder(registry, **COLUMNS)
    reader.learn(order_of(3))
    moved = pickle.loads(pickle.dumps(reader.parser))
    registry.away = True
    assert moved.parse([order_of(3)]).rows["address"].to_pylist() == [ADDRESS_OF_1]


def test_one_type_in_two_references_is_read_where_both_are_the_same(registry: Registry) -> None:
    register_order(registry)
    registry.register(5, ADDRESS, "copy", [("zip", 1)])
    registry.register(6, ORDER, references=[("shop/address", 1), ("copy", 1)])
    [row] = good(decoder(registry, **COLUMNS).decode(batch([order_of(6)])))
    assert row["address"] == ADDRESS_OF_1


def test_types_of_one_name_may_differ_in_what_does_not_matter_to_reading(
    registry: Registry,
) -> None:
    register_order(registry)
    street = {"name": "street", "type": "string", "default": "a", "doc": "x", "aliases": ["s"]}
    address = {**ADDRESS, "doc": "x", "aliases": ["A"], "fields": [street, ADDRESS["fields"][1]]}
    registry.register(5, {**ZIP, "doc": "x", "aliases": ["Z"]}, "zip")
    registry.register(6, address, "copy", [("zip", 2)])
    registry.register(7, ORDER, references=[("shop/address", 1), ("copy", 1)])
    [row] = good(decoder(registry, **COLUMNS).decode(batch([order_of(7)])))
    assert row["address"] == ADDRESS_OF_1


@pytest.mark.parametrize(
    "other",
    [
        {**ADDRESS, "fields": [*ADDRESS["fields"], {"name": "no", "type": "int"}]},
        {**ADDRESS, "fields": ADDRESS["fields"][::-1]},
        {**ADDRESS, "fields": [{"name": "road", "type": "string"}, ADDRESS["fields"][1]]},
        {**ADDRESS, "fields": [{"name": "street", "type": "bytes"}, ADDRESS["fields"][1]]},
    ],
)
def test_types_of_one_name_with_other_fields_make_messages_bad(
    registry: Registry, other: Any
) -> None:
    register_order(registry)
    registry.register(5, other, "copy", [("zip", 1)])
    registry.register(6, ORDER, references=[("shop/address", 1), ("copy", 1)])
    assert "has two types 'shop.Address' that are not the same" in reason_of(registry, 6)


def reason_of(registry: Registry, number: int) -> str:
    decoded = decoder(registry).decode(batch([head(number) + b"\0" * 9] * 2))
    [reason, _] = bad(decoded).values()
    return str(reason)


def test_two_types_of_one_name_make_messages_bad(registry: Registry) -> None:
    register_order(registry)
    registry.register(5, {**ZIP, "size": 3}, "zip")
    registry.register(6, ORDER, references=[("shop/address", 1), ("zip", 2)])
    assert reason_of(registry, 6) == (
        "the registry's schema has two types 'shop.Zip' that are not the same: of version 1 of "
        "subject 'zip' and of version 2 of subject 'zip'; let all refer to one version of it"
    )


@pytest.mark.parametrize("column", [{}, {"name": "@key"}, {"name": "@key.id"}])
def test_a_schema_that_cannot_be_read_is_parsed_once(
    registry: Registry, column: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    registry.register(1, ZIP, "zip")
    registry.register(2, {**ZIP, "size": 3}, "zip")
    registry.register(3, ORDER, references=[("zip", 1), ("zip", 2)])
    registry.register(4, FIRST)
    value = avro(4, FIRST, record(1)) if column else head(3) + bytes(9)
    messages = batch([value] * 3, keys=[head(3) + bytes(9)] * 3)
    options = FormatOptions(format="avro", registry=registry.url, columns=column)
    reader = Decoder(new_spec(), options)
    reasons = bad(reader.decode(messages))
    assert len(reasons) == 3
    assert all("has two types 'shop.Zip'" in reason for reason in reasons.values())
    moved = pickle.loads(pickle.dumps(reader))
    texts: list[Any] = []
    parse_schema = fastavro.parse_schema

    def parsed(schema: Any, *args: Any, **options: Any) -> Any:
        texts.append(schema)
        return parse_schema(schema, *args, **options)

    monkeypatch.setattr(fastavro, "parse_schema", parsed)
    spec = new_spec(**{column.name: column.type for column in SCHEMA}, more=pa.int64())
    for known in (reader, reader.renewed(spec), moved):
        assert bad(known.decode(messages)) == reasons
    assert texts == []


def test_a_type_that_no_reference_has_makes_messages_bad(registry: Registry) -> None:
    registry.register(3, ORDER)
    assert reason_of(registry, 3).startswith("the registry's schema is not one of Avro: ")
    registry.register(4, ADDRESS, "address")
    registry.register(5, ORDER, references=[("address", 1)])
    reason = "the registry's schema (version 1 of subject 'address', which it refers to) is not one"
    assert reason_of(registry, 5).startswith(reason)


def test_a_missing_reference_makes_messages_bad_until_it_exists(registry: Registry) -> None:
    registry.register(1, ZIP, "zip")
    registry.register(3, ORDER, references=[("shop/address", 1)])
    reader = decoder(registry, **COLUMNS)
    missing = "the schema registry has no version 1 of subject 'shop/address', which schema 3"
    for _ in range(2):
        [reason] = bad(reader.decode(batch([order_of(3)]))).values()
        assert reason == f"{missing} refers to"
    assert len(registry.paths) == 2
    registry.register(2, ADDRESS, "shop/address", [("zip", 1)])
    time.sleep(1.1)  # for a second it is not asked for again
    assert len(good(reader.decode(batch([order_of(3)])))) == 1


def test_a_version_with_a_missing_reference_makes_messages_bad_until_it_exists(
    registry: Registry,
) -> None:
    """A new column's type is the widest of all versions, also of incomplete ones."""
    sizes = [
        {**schema, "fields": [*schema["fields"], {"name": "size", "type": kind}]}
        for schema, kind in ((ORDER, "long"), (FIRST, "int"))
    ]
    registry.register(1, ZIP, "zip")
    registry.register(3, sizes[0], references=[("shop/address", 1)])
    registry.register(4, sizes[1])
    options = FormatOptions(format="avro", registry=registry.url, on_new_columns="add")
    reader = Decoder(new_spec(), options)
    value = avro(4, sizes[1], record(1, size=1))
    reader.learn(value)
    messages = batch([value, b"\0"])
    missing = "the schema registry has no version 1 of subject 'shop/address', which version 1"
    for _ in range(2):
        decoded = reader.decode(messages)
        assert (good(decoded), decoded.new) == ([], None)
        assert bad(decoded)["orders/3@100"] == f"{missing} of subject 'orders-value' refers to"
        assert sorted(bad(decoded)) == ["orders/3@100", "orders/3@101"]
    registry.register(2, ADDRESS, "shop/address", [("zip", 1)])
    new = reader.decode(messages).new
    assert new is not None
    assert new.columns == pa.schema([("size", pa.int64())])


def test_references_in_a_circle_make_messages_bad(registry: Registry) -> None:
    registry.register(1, ZIP, "zip", [("shop/address", 1)])
    registry.register(2, ADDRESS, "shop/address", [("zip", 1)])
    registry.register(3, ORDER, references=[("shop/address", 1)])
    assert reason_of(registry, 3) == (
        "version 1 of subject 'zip' refers to version 1 of subject 'shop/address', which refers "
        f"back to it: register schemas without a circle (of schema 3 of {registry.url})"
    )
    assert len(registry.paths) == 3


BROKEN_ANSWERS = [
    ("/schemas/ids/3", ["a"], 'answered ["a"] for schema 3, which is not a schema'),
    ("/schemas/ids/3", {"a": 1}, 'answered {"a": 1} for schema 3, which is not a schema'),
    ("/schemas/ids/3", {"schema": 1}, 'answered {"schema": 1} for schema 3, which is not a schema'),
    ("/schemas/ids/3", {"schema": "{}", "schemaType": []}, "which is not a schema"),
    ("/subjects/zip/versions/1", {"id": 1}, "version 1 of subject 'zip', which is not a schema"),
]
BROKEN_ANSWERS += [
    ("/schemas/ids/3", {"schema": "{}", "references": references}, f"schema 3 has {reason}")
    for references, reason in [
        ([None], "a reference that is not an object: null"),
        (["a"], 'a reference that is not an object: "a"'),
        ("a", 'references that are not a list: "a"'),
        ({"a": 1}, 'references that are not a list: {"a": 1}'),
        ([{"subject": 1}], 'a reference without a subject or a fixed version: {"subject": 1}'),
    ]
]


@pytest.mark.parametrize("path, answer, reason", BROKEN_ANSWERS)
def test_a_broken_answer_makes_messages_bad(
    registry: Registry, path: str, answer: Any, reason: str
) -> None:
    register_order(registry)
    registry.broken[path] = answer
    assert reason in reason_of(registry, 3)


def test_a_broken_version_does_not_end_the_stream(registry: Registry) -> None:
    registry.register(1, FIRST)
    registry.register(2, {**FIRST, "fields": [*FIRST["fields"], {"name": "x", "type": "int"}]})
    registry.broken["/subjects/orders-value/versions/1"] = ["a"]
    value = avro(2, registry.schemas[2], record(1, x=1))
    options = FormatOptions(format="avro", registry=registry.url, on_new_columns="add")
    new = Decoder(new_spec(), options).decode(batch([value])).new
    assert new is not None
    assert new.columns == pa.schema([("x", pa.int32())])


def test_a_reference_to_the_latest_version_is_refused(registry: Registry) -> None:
    """The latest version would be another schema later."""
    registry.register(3, ORDER, references=[("shop/address", -1)])
    assert reason_of(registry, 3).startswith(
        "schema 3 has a reference without a subject or a fixed version"
    )


def test_references_are_bounded_in_number_and_in_bytes(registry: Registry) -> None:
    count = references.MAX_REFERENCES + 1
    for number in range(1, count + 1):
        following = [("chain", number + 1)] if number < count else []
        registry.register(number, {**ZIP, "name": f"Z{number}"}, "chain", following)
    registry.register(1000, ORDER, references=[("chain", 1)])
    assert "refers to more than 200 schemas" in reason_of(registry, 1000)
    registry.register(1001, ORDER, references=[("chain", 2)])
    assert "is not one of Avro" in reason_of(registry, 1001)  # 200 are read
    registry.register(1002, {**ZIP, "doc": "x" * references.MAX_REFERENCE_BYTES}, "large")
    registry.register(1003, ORDER, references=[("large", 1)])
    assert "the schemas that schema 1003 refers to have more than 8 MiB" in reason_of(
        registry, 1003
    )


def test_a_registry_that_is_away_for_a_reference_stops_the_stream(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    register_order(registry)
    monkeypatch.setattr(registries, "_FIRST_PAUSE_S", 0.001)
    registry.versions_code = 503
    with pytest.raises(RegistryError, match=r"did not give version 1 of subject 'shop/address'"):
        decoder(registry, **COLUMNS).decode(batch([order_of(3)]))
    registry.versions_code = None
    assert len(good(decoder(registry, **COLUMNS).decode(batch([order_of(3)])))) == 1


def test_a_schema_whose_references_refer_to_each_other_is_one_definition_of_each_type() -> None:
    zip_place = references.Reference(subject="zip", version=1)
    position = references.Reference(subject="address", version=1)
    texts = {zip_place: json.dumps(ZIP), position: json.dumps(ADDRESS)}
    schema = AvroSchema(json.dumps(ORDER), texts)
    address = schema.fields(schema.root)["address"]
    assert schema.fields(address)["zip"] == {"type": "fixed", "name": "shop.Zip", "size": 2}
