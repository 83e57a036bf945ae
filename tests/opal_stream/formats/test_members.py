"""New members of nested columns: every format reports them, or leaves them out by the policy."""

import json
from typing import Any

import pyarrow as pa
import pytest

from opal_lake.errors import InvalidInputError
from opal_stream.formats.decoder import Decoder
from opal_stream.formats.schemas.json_types import json_schema_columns
from opal_stream.operations.reading import FormatOptions
from tests.fixtures_kafka import Registry
from tests.opal_stream.formats.build import FIRST, avro, head, record
from tests.opal_stream.orders import bad, batch, decode, good, new_spec

ADDRESS = pa.struct([("city", pa.string()), ("geo", pa.struct([("lat", pa.float64())]))])
LINES = pa.list_(pa.struct([("sku", pa.string())]))
SPEC = new_spec(
    id=pa.int64(), op=pa.string(), at=pa.timestamp("us", "UTC"), address=ADDRESS, lines=LINES
)
PLAIN = {"city": "x", "geo": {"lat": 1.5}}
KNOWN = [
    {"address": PLAIN, "lines": [{"sku": "a"}, {}]},
    {"address": {**PLAIN, "zip": None, "tags": [], "more": {}}},  # nothing is lost of it
    {"address": None, "lines": None},
]
UNKNOWN: list[tuple[dict[str, Any], str]] = [
    ({"address": {"city": "x", "zip": "1"}}, "'address.zip'"),
    ({"address": {"geo": {"lat": 1, "lon": 2}}}, "'address.geo.lon'"),
    ({"lines": [{"sku": "a"}, {"sku": "b", "n": 1}, {"n": 2}]}, "'lines[].n'"),
    (
        {"address": {"zip": 1, "more": {"x": [1]}}, "lines": [{"n": {"x": 1}}]},
        "s 'address.zip', 'address.more', 'lines[].n'",
    ),
]
LACKS = "the table has no member{}, and nested columns cannot get more"


def row(number: int, more: dict[str, Any]) -> dict[str, Any]:
    return {"id": number, "op": "I", "at": 5, **more}


@pytest.mark.parametrize("form", ["json", "debezium-json", "payload"])
@pytest.mark.parametrize("policy", ["add", "quarantine", "fail", "ignore"])
def test_unknown_members_are_named_by_their_path(form: str, policy: str) -> None:
    unknown = [more for more, _ in UNKNOWN]
    members = [KNOWN[0], *unknown, *KNOWN[1:]]
    rows = [row(number, more) for number, more in enumerate(members)]
    events = [{"before": None, "after": entry, "op": "c", "ts_ms": 5} for entry in rows]
    values = {
        "json": rows,
        "debezium-json": events,
        "payload": [{"schema": None, "payload": event} for event in events],
    }[form]
    decoded = decode(
        values,
        FormatOptions(format="json" if form == "json" else "debezium-json", on_new_columns=policy),
        SPEC,
    )
    expected = {
        number: LACKS.format(paths if paths[0] == "s" else f" {paths}")
        for number, (_, paths) in enumerate(UNKNOWN, 1)
    }
    if policy in ("add", "quarantine"):
        assert bad(decoded) == {
            f"orders/3@{100 + number}": reason for number, reason in expected.items()
        }
        assert {message.has_new_columns for message in decoded.bad} == {policy == "quarantine"}
        assert decoded.new is None
        assert [entry["id"] for entry in good(decoded)] == [0, 5, 6]
    else:
        report = (
            {}
            if decoded.new is None
            else {position: decoded.new.text(position) for position in decoded.new.positions}
        )
        assert (report, bad(decoded)) == (expected if policy == "fail" else {}, {})
    if policy == "ignore":
        assert good(decoded)[3]["lines"] == [{"sku": "a"}, {"sku": "b"}, {"sku": None}]
    assert good(decoded)[0]["address"] == PLAIN


@pytest.mark.parametrize("policy", ["add", "quarantine", "fail"])
def test_an_empty_member_is_not_reported_whatever_other_messages_have(policy: str) -> None:
    empty: dict[str, Any] = {
        "address": {"more": {}, "tags": [], "deep": [{"x": {}}, None]},
        "extra": {},
        "list": [[]],
    }
    full = {
        "address": {"more": {"a": 1}, "tags": [1], "deep": [{"x": {"y": 1}}]},
        "extra": {"a": 1},
        "list": [[1]],
    }
    decoded = decode(
        [row(0, empty), row(1, full), row(2, {})], FormatOptions(on_new_columns=policy), SPEC
    )
    concerned = {message.position for message in decoded.bad} | {
        *(decoded.new.positions if decoded.new is not None else ())
    }
    assert concerned == {1}


@pytest.mark.parametrize("policy", ["add", "quarantine", "fail"])
def test_a_member_that_differs_in_case_only_makes_its_message_bad(policy: str) -> None:
    values = [
        row(0, {"address": {"City": "x"}}),
        row(1, {"lines": [{"SKU": "x", "n": 1}]}),
        row(2, {"address": {"CITY": None}}),
    ]
    decoded = decode(values, FormatOptions(on_new_columns=policy), SPEC)
    reason = "member '{}' differs from member '{}' in case only; write it as the table does"
    assert bad(decoded) == {
        "orders/3@100": reason.format("address.City", "address.city"),
        "orders/3@101": reason.format("lines[].SKU", "lines[].sku"),
    }
    assert (decoded.new, [entry["id"] for entry in good(decoded)]) == (None, [2])
    assert not any(message.has_new_columns for message in decoded.bad), (
        "no policy of new columns puts them aside"
    )


def test_a_new_column_next_to_an_unknown_member_is_reported_and_not_added() -> None:
    values = [row(0, {"address": {"zip": 1}, "size": 1}), row(1, {"colour": "red"})]
    decoded = decode(values, FormatOptions(), SPEC)
    assert decoded.new is not None
    assert (
        decoded.new.text(0)
        == f"the table has no column 'size'; {LACKS.format(' ' + repr('address.zip'))}"
    )
    decoded = decode(values, FormatOptions(on_new_columns="add"), SPEC)
    assert decoded.new is not None
    assert (decoded.new.names, decoded.new.columns, decoded.new.members) == (
        {1: ("colour",)},
        pa.schema([("colour", pa.string())]),
        {},
    )
    assert list(bad(decoded)) == ["orders/3@100"]


def test_members_of_the_row_before_a_change_are_not_asked_for() -> None:
    before = row(1, {"address": {"city": "x", "zip": "1"}})
    values = [
        {"before": before, "after": row(1, {"address": PLAIN}), "op": "u", "ts_ms": 5},
        {"before": before, "after": None, "op": "d", "ts_ms": 5},
    ]
    decoded = decode(values, FormatOptions(format="debezium-json"), SPEC)
    assert (decoded.new, bad(decoded), [entry["address"]["city"] for entry in good(decoded)]) == (
        None,
        {},
        ["x", "x"],
    )


PLACE = {"type": "record", "name": "Place", "fields": [{"name": "city", "type": "string"}]}
WIDE_PLACE = {
    **PLACE,
    "fields": [
        *PLACE["fields"],
        {"name": "zip", "type": ["null", "string", "int"], "default": None},
    ],
}


def with_places(location: Any) -> dict[str, Any]:
    fields = [
        {"name": "address", "type": ["null", location]},
        {"name": "places", "type": {"type": "map", "values": "Place"}},
        {"name": "stops", "type": {"type": "array", "items": "Place"}},
    ]
    return {**FIRST, "fields": [*FIRST["fields"], *fields]}


@pytest.mark.parametrize("debezium", [False, True])
def test_avro_schemas_name_new_members(debezium: bool, registry: Registry) -> None:
    location = pa.struct([("city", pa.string())])
    columns = {
        "address": location,
        "places": pa.map_(pa.string(), location),
        "stops": pa.list_(location),
    }
    spec = new_spec(id=pa.int64(), op=pa.string(), at=pa.timestamp("us", "UTC"), **columns)
    values = []
    for number, kind in ((1, PLACE), (2, WIDE_PLACE)):
        schema: dict[str, Any] = with_places(kind)
        value: dict[str, Any] = record(
            number, address={"city": "x"}, places={"a": {"city": "y"}}, stops=[]
        )
        if debezium:
            schema = {
                "type": "record",
                "name": "E",
                "fields": [{"name": "after", "type": schema}, {"name": "op", "type": "string"}],
            }
            value = {"after": value, "op": "c"}
        registry.register(number, schema)
        values.append(avro(number, schema, value))
    options = FormatOptions(
        format="debezium-avro" if debezium else "avro",
        registry=registry.url,
        on_new_columns="quarantine",
    )
    decoded = Decoder(spec, options).decode(batch(values))
    assert bad(decoded) == {
        "orders/3@101": LACKS.format("s 'address.zip', 'places[].zip', 'stops[].zip'")
    }
    assert [(entry["id"], entry["address"], entry["places"]) for entry in good(decoded)] == [
        (1, {"city": "x"}, [("a", {"city": "y"})])
    ]


def test_json_schemas_name_new_members_even_if_they_contain_themselves(
    registry: Registry,
) -> None:
    node: dict[str, Any] = {"type": "object", "properties": {"city": {"type": "string"}}}
    node["properties"] |= {name: {"$ref": "#/$defs/node"} for name in ("a", "b", "c", "d")}
    root = {
        "type": "object",
        "properties": {"id": {"type": "integer"}, "address": {"$ref": "#/$defs/node"}},
        "$defs": {"node": node},
    }
    registry.register(1, root)
    options = FormatOptions(
        format="json-registry", registry=registry.url, on_new_columns="quarantine"
    )
    decoded = Decoder(SPEC, options).decode(
        batch([head(1) + json.dumps(row(1, {"address": PLAIN})).encode()])
    )
    assert bad(decoded) == {
        "orders/3@100": LACKS.format("s 'address.a', 'address.b', 'address.c', 'address.d'")
    }


def test_a_schema_of_many_references_is_looked_at_once_and_one_that_is_deep_ends() -> None:
    def level(number: int, names: str, last: int) -> dict[str, Any]:
        if number == last:
            return {"type": "object", "properties": {"city": {"type": "string"}}}
        return {
            "type": "object",
            "properties": {name: {"$ref": f"#/$defs/{number + 1}"} for name in names},
        }

    for names, last in (("ab", 16), ("a", 2000)):
        parts = {str(number): level(number, names, last) for number in range(last + 1)}
        root = {
            "type": "object",
            "properties": {"id": {"type": "integer"}, "address": {"$ref": "#/$defs/0"}},
            "$defs": parts,
        }
        assert pa.types.is_struct(json_schema_columns(json.dumps(root))["address"])


@pytest.mark.parametrize("form", ["json", "debezium-json"])
@pytest.mark.parametrize(
    "kind",
    [
        pa.map_(pa.string(), pa.string()),
        pa.list_(pa.struct([("m", pa.map_(pa.string(), pa.int64()))])),
    ],
)
def test_json_for_a_table_with_a_map_is_refused_before_anything_is_read(
    kind: pa.DataType, form: str
) -> None:
    with pytest.raises(
        InvalidInputError,
        match="column 'm' is a map, or has one in it, and only streams of Avro fill maps",
    ):
        Decoder(
            new_spec(id=pa.int64(), op=pa.string(), at=pa.timestamp("us", "UTC"), m=kind),
            FormatOptions(format=form),
        )
