"""Each message of Avro is read by the schema that it was written with."""

import io
import logging
import pickle
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import fastavro
import pyarrow as pa
import pytest

from opal_lake.definition.changes.apply import changed, changes_of
from opal_stream.formats.decoder import Decoded, Decoder
from opal_stream.formats.registry import SchemaRegistry
from opal_stream.operations.reading import FormatOptions
from tests.fixtures_kafka import Registry
from tests.opal_stream.formats.build import head
from tests.opal_stream.orders import bad, batch, good, new_spec

UTC_TIME, LOCAL_TIME = pa.timestamp("us", "UTC"), pa.timestamp("us")
MILLIS = {"type": "long", "logicalType": "timestamp-millis"}
MICROS = {"type": "long", "logicalType": "timestamp-micros"}
NANOS = {"type": "long", "logicalType": "timestamp-nanos"}
DATE = {"type": "int", "logicalType": "date"}
TIME = {"type": "int", "logicalType": "time-millis"}
AMOUNT = {"type": "bytes", "logicalType": "decimal", "precision": 14, "scale": 2}
BITS = {"type": "fixed", "name": "Bits", "size": 16, "logicalType": "uuid"}
COLOUR = {"type": "enum", "name": "Colour", "symbols": ["RED"]}
VARIABLE = {
    "type": "record",
    "name": "VariableScaleDecimal",
    "namespace": "io.debezium.data",
    "fields": [{"name": "scale", "type": "int"}, {"name": "value", "type": "bytes"}],
}
MOMENT = datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)
MOMENT_MS = 1_700_000_000_000
UUID_TEXT = "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"


def connect(kind: str, name: str) -> dict[str, Any]:
    return {"type": kind, "connect.name": f"io.debezium.time.{name}"}


def schema_of(name: str = "Order", **fields: Any) -> dict[str, Any]:
    usual = {"id": "long", "op": "string", "at": MICROS}
    members = [{"name": name, "type": kind} for name, kind in (usual | fields).items()]
    return {"type": "record", "name": name, "fields": members}


def written(number: int, schema: Any, identity: int, **values: Any) -> bytes:
    body = io.BytesIO()
    record = {"id": identity, "op": "I", "at": MOMENT, **values}
    fastavro.schemaless_writer(body, fastavro.parse_schema(schema), record)
    return head(number) + body.getvalue()


def test_a_member_under_its_former_name_is_bad_in_lists_and_maps(registry: Registry) -> None:
    inner = {"type": "record", "name": "Inner", "fields": [{"name": "x", "type": "int"}]}
    schema = schema_of(m={"type": "map", "values": inner}, l={"type": "array", "items": "Inner"})
    registry.register(1, schema)
    kind = pa.struct([("x", pa.int32())])
    spec = new_spec(
        id=pa.int64(),
        op=pa.string(),
        at=UTC_TIME,
        m=pa.map_(pa.string(), kind),
        l=pa.list_(kind),
    )
    changes = [{"rename": "m.value.x", "to": "y"}, {"rename": "l.element.x", "to": "y"}]
    renamed, _ = changed(spec, changes_of(changes))
    options = FormatOptions(format="avro", registry=registry.url, on_new_columns="ignore")
    decoder = Decoder(renamed, options)
    in_map = written(1, schema, 1, m={"k": {"x": 1}}, l=[])
    in_list = written(1, schema, 2, m={}, l=[{"x": 2}])
    without = written(1, schema, 3, m={}, l=[])
    decoded = decoder.decode(batch([in_map, in_list, without]))
    assert [row["id"] for row in good(decoded)] == [3]
    assert "'m[].x', which the table calls 'y'" in decoded.bad[0].reason
    assert "'l[].x', which the table calls 'y'" in decoded.bad[1].reason


def decoder_of(registry: Registry, policy: str = "ignore", **columns: pa.DataType) -> Decoder:
    spec = new_spec(id=pa.int64(), op=pa.string(), at=UTC_TIME, **columns)
    options = FormatOptions(format="avro", registry=registry.url, on_new_columns=policy)
    return Decoder(spec, options)


def in_two_forms(
    registry: Registry, kind: pa.DataType, *pairs: tuple[Any, Any]
) -> tuple[Decoded, list[Decoded]]:
    """Check a column in some forms: in one batch in both orders, and each alone."""
    values = []
    for number, (node, value) in enumerate(pairs, 1):
        schema = schema_of(x=node)
        registry.register(number, schema)
        values.append(written(number, schema, number, x=value))
    together = decoder_of(registry, x=kind).decode(batch([*values, *reversed(values)]))
    alone = [decoder_of(registry, x=kind).decode(batch([value])) for value in values]
    return together, alone


@pytest.mark.parametrize(
    "kind, first, second, expected",
    [
        (UTC_TIME, ("string", "2023-11-14T22:13:20Z"), (MILLIS, MOMENT), MOMENT),
        (UTC_TIME, ("string", "2023-11-14T22:13:20.000000000Z"), (MILLIS, MOMENT), MOMENT),
        (UTC_TIME, ("string", "2023-11-14T22:13:20.0000000"), (MILLIS, MOMENT), MOMENT),
        (UTC_TIME, ("long", MOMENT_MS), (MILLIS, MOMENT), MOMENT),
        (UTC_TIME, (["null", "long"], MOMENT_MS), (MICROS, MOMENT), MOMENT),
        (
            UTC_TIME,
            (connect("long", "MicroTimestamp"), MOMENT_MS * 1_000),
            (MILLIS, MOMENT),
            MOMENT,
        ),
        (UTC_TIME, (NANOS, MOMENT_MS * 1_000_000), ("long", MOMENT_MS), MOMENT),
        (LOCAL_TIME, ("long", MOMENT_MS), (MILLIS, MOMENT), MOMENT.replace(tzinfo=None)),
        (LOCAL_TIME, (MILLIS, MOMENT), ("long", MOMENT_MS), MOMENT.replace(tzinfo=None)),
        (pa.date32(), ("int", 19_723), (DATE, date(2024, 1, 1)), date(2024, 1, 1)),
        (pa.date32(), ("string", "2024-01-01"), (DATE, date(2024, 1, 1)), date(2024, 1, 1)),
        (pa.date32(), (connect("int", "Date"), 19_723), ("int", 19_723), date(2024, 1, 1)),
        (
            pa.decimal128(14, 2),
            (AMOUNT, Decimal("12.30")),
            (VARIABLE, {"scale": 1, "value": b"\x7b"}),
            Decimal("12.30"),
        ),
        (
            pa.string(),
            (AMOUNT, Decimal("0.12")),
            (VARIABLE, {"scale": 2, "value": b"\x0c"}),
            "0.12",
        ),
        (pa.string(), ("string", "22:13:20"), (TIME, MOMENT.time()), "22:13:20"),
        (pa.string(), (COLOUR, "RED"), ("string", "RED"), "RED"),
        (pa.string(), ("bytes", b"RED"), (COLOUR, "RED"), "RED"),
        (
            pa.string(),
            ({"type": "string", "logicalType": "uuid"}, UUID(UUID_TEXT)),
            ("string", UUID_TEXT),
            UUID_TEXT,
        ),
        (pa.string(), (BITS, UUID(UUID_TEXT).bytes), ("string", UUID_TEXT), UUID_TEXT),
    ],
)  # fmt: skip
def test_a_column_in_two_forms_has_the_value_of_each(
    registry: Registry, kind: pa.DataType, first: Any, second: Any, expected: Any
) -> None:
    together, alone = in_two_forms(registry, kind, first, second)
    assert [row["x"] for row in good(together)] == [expected] * 4
    assert [row["x"] for entry in alone for row in good(entry)] == [expected] * 2


def test_each_branch_of_a_union_is_read_as_what_it_is(registry: Registry) -> None:
    schema = schema_of(x=["null", MILLIS, "string", DATE])
    registry.register(1, schema)
    given = [MOMENT, "2023-11-14T22:13:20Z", date(2023, 11, 14), None, "soon"]
    values = [written(1, schema, number, x=value) for number, value in enumerate(given)]
    decoded = decoder_of(registry, x=UTC_TIME).decode(batch(values))
    day = datetime(2023, 11, 14, tzinfo=UTC)
    assert [row["x"] for row in good(decoded)] == [MOMENT, MOMENT, day, None]
    assert "column 'x'" in bad(decoded)["orders/3@104"]


@pytest.mark.parametrize(
    "node, value, kind",
    [
        ("double", 1.5, pa.int64()),
        ("double", 1e300, pa.float32()),
        ("double", 1.0, UTC_TIME),
        ("boolean", True, pa.float64()),
        (AMOUNT, Decimal("12.50"), pa.int64()),
        (AMOUNT, Decimal("12.00"), pa.date32()),
        (MILLIS, MOMENT, pa.date32()),
        (NANOS, 1_001, UTC_TIME),
        (connect("long", "MicroTime"), 1_000, UTC_TIME),
        ({"type": "map", "values": "long"}, {"a": 1, "z": 2}, pa.struct([("a", pa.int64())])),
        ("bytes", b"ab", pa.list_(pa.int64())),
        ("string", "2023-11-14T22:13:20Z", LOCAL_TIME),
    ],
)
def test_a_value_that_would_become_another_one_is_a_bad_message(
    registry: Registry, node: Any, value: Any, kind: pa.DataType
) -> None:
    schema = schema_of(x=node)
    registry.register(1, schema)
    decoded = decoder_of(registry, x=kind).decode(batch([written(1, schema, 1, x=value)]))
    assert good(decoded) == []
    assert bad(decoded)["orders/3@100"].startswith("column 'x': ")


def test_a_decimal_with_more_digits_than_its_schema_says_is_not_rounded(registry: Registry) -> None:
    schema = schema_of(x={**AMOUNT, "precision": 4})
    registry.register(1, schema)
    wide = {**schema, "fields": [*schema["fields"][:-1], {"name": "x", "type": AMOUNT}]}
    value = written(1, wide, 1, x=Decimal("123456.78"))
    decoded = decoder_of(registry, x=pa.decimal128(14, 2)).decode(batch([value]))
    assert [row["x"] for row in good(decoded)] == [Decimal("123456.78")]


def test_a_number_in_a_nested_column_of_times_has_the_unit_of_the_stream(
    registry: Registry,
) -> None:
    inner = {"type": "record", "name": "Inner", "fields": [{"name": "t", "type": "long"}]}
    schema = schema_of(x=inner)
    registry.register(1, schema)
    value = written(1, schema, 1, x={"t": MOMENT_MS // 1000})
    spec = new_spec(id=pa.int64(), op=pa.string(), at=UTC_TIME, x=pa.struct([("t", UTC_TIME)]))
    options = FormatOptions(format="avro", registry=registry.url, time_unit="s")
    decoded = Decoder(spec, options).decode(batch([value]))
    assert [row["x"] for row in good(decoded)] == [{"t": MOMENT}]


def test_a_field_that_the_newest_schema_lacks_keeps_its_value(registry: Registry) -> None:
    first, second = schema_of(x="string"), schema_of()
    registry.register(1, first), registry.register(2, second)
    values = [written(1, first, 1, x="a"), written(2, second, 2), written(1, first, 3, x="c")]
    decoded = decoder_of(registry, x=pa.string()).decode(batch(values))
    assert [row["x"] for row in good(decoded)] == ["a", None, "c"]


def test_records_that_differ_in_namespace_only_are_read_each_as_its_own(registry: Registry) -> None:
    first, second = schema_of("a.Order", x="string", y="long"), schema_of("b.Order", y="long")
    registry.register(1, first), registry.register(2, second)
    values = [written(2, second, 1, y=5), written(1, first, 2, x="a", y=6)]
    for order in (values, values[::-1]):
        rows = good(decoder_of(registry, x=pa.string(), y=pa.int64()).decode(batch(order)))
        assert sorted((row["id"], row["x"], row["y"]) for row in rows) == [
            (1, None, 5),
            (2, "a", 6),
        ]


def test_records_of_a_union_that_differ_in_namespace_only_are_read_each_as_its_own(
    registry: Registry,
) -> None:
    def inner(name: str, kind: Any) -> Any:
        return {"type": "record", "name": name, "fields": [{"name": "v", "type": kind}]}

    schema = schema_of("Order", x=["null", inner("a.Inner", "long"), inner("b.Inner", MILLIS)])
    registry.register(1, schema)
    values = [
        written(1, schema, 1, x=("a.Inner", {"v": 5})),
        written(1, schema, 2, x=("b.Inner", {"v": MOMENT})),
    ]
    decoded = decoder_of(registry, x=pa.struct([("v", UTC_TIME)])).decode(batch(values))
    five = datetime(1970, 1, 1, microsecond=5_000, tzinfo=UTC)
    assert [row["x"] for row in good(decoded)] == [{"v": five}, {"v": MOMENT}]


def test_a_topic_may_hold_a_union_of_records_each_with_its_own_columns(registry: Registry) -> None:
    first, second = schema_of("a.Order", x="string"), schema_of("b.Order", y="long")
    registry.register(1, [first, second])
    values = [
        written_in_union(registry, number, name, row)
        for number, name, row in ((1, "a.Order", {"x": "a"}), (2, "b.Order", {"y": 7}))
    ]
    decoded = decoder_of(registry, "fail", x=pa.string()).decode(batch(values))
    assert decoded.new is not None
    assert decoded.new.names == {1: ("y",)}


def written_in_union(registry: Registry, identity: int, name: str, row: Any) -> bytes:
    body = io.BytesIO()
    record = {"id": identity, "op": "I", "at": MOMENT, **row}
    parsed = fastavro.parse_schema(registry.schemas[1])
    fastavro.schemaless_writer(body, parsed, (name, record))
    return head(1) + body.getvalue()


def test_new_members_in_any_branch_of_a_union_are_reported(registry: Registry) -> None:
    inner = {"type": "record", "name": "Inner", "fields": [{"name": "zip", "type": "string"}]}
    schema = schema_of(x=["null", "string", inner])
    registry.register(1, schema)
    value = written(1, schema, 1, x={"zip": "1"})
    decoded = decoder_of(registry, "fail", x=pa.struct([("city", pa.string())])).decode(
        batch([value])
    )
    assert decoded.new is not None
    assert decoded.new.paths(0) == ("x.zip",)


def test_a_message_of_any_depth_is_a_bad_one_and_not_the_end_of_the_process(
    registry: Registry,
) -> None:
    node = {
        "type": "record",
        "name": "Node",
        "fields": [{"name": "next", "type": ["null", "Node"]}],
    }
    schema = schema_of(x=node)
    registry.register(1, schema)
    value = written(1, schema, 1, x={"next": None})
    deep = value[:-1] + b"\2" * 200_000 + b"\0"
    decoded = decoder_of(registry).decode(batch([value, deep, value]))
    assert len(good(decoded)) == 2
    assert list(bad(decoded)) == ["orders/3@101"]


def test_a_decimal_of_a_scale_of_billions_is_a_bad_message(registry: Registry) -> None:
    schema = schema_of(x=VARIABLE)
    registry.register(1, schema)
    value = written(1, schema, 1, x={"scale": -(2**31), "value": b"\1"})
    decoded = decoder_of(registry, x=pa.string()).decode(batch([value]))
    assert "a decimal has more than 1,000 digits" in bad(decoded)["orders/3@100"]


@pytest.mark.parametrize("kind", [UTC_TIME, LOCAL_TIME])
def test_a_text_of_digits_beyond_microseconds_is_a_bad_message(
    registry: Registry, kind: pa.DataType
) -> None:
    schema = schema_of(x="string")
    registry.register(1, schema)
    texts = ["2023-11-14T22:13:20.123456000", "2023-11-14T22:13:20.123456001"]
    values = [written(1, schema, number, x=text) for number, text in enumerate(texts)]
    decoded = decoder_of(registry, x=kind).decode(batch(values))
    [row] = good(decoded)
    assert row["x"].replace(tzinfo=None) == datetime(2023, 11, 14, 22, 13, 20, 123456)
    assert "has nanoseconds, but a table stores only microseconds" in bad(decoded)["orders/3@101"]


@pytest.mark.parametrize(
    "scale, value, given",
    [
        ("int", {"type": "array", "items": "int"}, {"scale": 2, "value": [100, 200]}),
        ("int", "string", {"scale": 2, "value": "a"}),
        ("boolean", "bytes", {"scale": True, "value": b"a"}),
        ("int", {**AMOUNT, "scale": 1}, {"scale": 2, "value": Decimal(1)}),
    ],
)
def test_a_variable_scale_decimal_with_fields_of_other_types_is_refused(
    registry: Registry, scale: Any, value: Any, given: Any
) -> None:
    fields = [{"name": "scale", "type": scale}, {"name": "value", "type": value}]
    schema = schema_of(x={**VARIABLE, "fields": fields})
    registry.register(1, schema)
    message = written(1, schema, 1, x=given)
    decoded = decoder_of(registry, x=pa.decimal128(14, 2)).decode(batch([message]))
    assert "does not fit a column" in bad(decoded)["orders/3@100"]


@pytest.mark.parametrize("schema", [{"type": "object"}, {"type": "record"}, 5, {"type": "fixed"}])
def test_a_schema_that_is_not_one_of_avro_makes_bad_messages(
    registry: Registry, schema: Any
) -> None:
    registry.register(1, schema)
    decoded = decoder_of(registry).decode(batch([head(1) + b"abc"]))
    assert "the registry's schema is not one of Avro" in bad(decoded)["orders/3@100"]


def test_a_time_of_an_event_beyond_all_timestamps_is_a_bad_message(registry: Registry) -> None:
    members = [
        {"name": "after", "type": schema_of()},
        {"name": "op", "type": "string"},
        {"name": "ts_ms", "type": "long"},
    ]
    event = {"type": "record", "name": "Event", "fields": members}
    registry.register(1, event)
    values = []
    for number, ts_ms in enumerate((5, 2**62, 7)):
        row = {"id": number, "op": "c", "at": MOMENT}
        body = io.BytesIO()
        record = {"after": row, "op": "c", "ts_ms": ts_ms}
        fastavro.schemaless_writer(body, fastavro.parse_schema(event), record)
        values.append(head(1) + body.getvalue())
    options = FormatOptions(
        format="debezium-avro", registry=registry.url, columns={"at": "@ts_ms", "op": "@op"}
    )
    spec = new_spec(id=pa.int64(), op=pa.string(), at=UTC_TIME)
    decoded = Decoder(spec, options).decode(batch(values))
    assert [row["id"] for row in good(decoded)] == [0, 2]
    assert bad(decoded)["orders/3@101"].startswith("@ts_ms: ")


def added(registry: Registry, value: bytes, policy: str = "add") -> pa.Schema:
    decoded = decoder_of(registry, policy).decode(batch([value]))
    assert decoded.new is not None
    return decoded.new.columns


def test_a_new_column_has_the_widest_type_of_the_subject_s_versions(registry: Registry) -> None:
    first, second, third = schema_of(x="int"), schema_of(x="long"), schema_of()
    registry.register(7, first), registry.register(3, second), registry.register(5, third)
    registry.register(9, schema_of(x="double"), "other-value")
    value = written(7, first, 1, x=1)
    assert added(registry, value) == pa.schema([("x", pa.int64())])


def test_of_types_that_do_not_go_together_a_new_column_has_that_of_the_newest_version(
    registry: Registry,
) -> None:
    first, second = schema_of(x="int"), schema_of(x="string")
    registry.register(9, first), registry.register(2, second)
    for number, schema, given in ((9, first, 1), (2, second, "a")):
        value = written(number, schema, 1, x=given)
        assert added(registry, value) == pa.schema([("x", pa.string())])


def test_without_the_versions_of_a_registry_the_schema_of_the_message_counts_and_a_line_says_so(
    registry: Registry, caplog: pytest.LogCaptureFixture
) -> None:
    first = schema_of(x="int")
    registry.register(1, first), registry.register(2, schema_of(x="long"))
    registry.has_versions = False
    with caplog.at_level(logging.WARNING):
        assert added(registry, written(1, first, 1, x=1)) == pa.schema([("x", pa.int32())])
    assert "does not give the versions of schema 1" in caplog.text


def test_another_process_reads_learned_schemas_without_the_registry(registry: Registry) -> None:
    first = schema_of(x="int")
    registry.register(1, first), registry.register(2, schema_of(x="long"))
    decoder = decoder_of(registry, "add")
    value = written(1, first, 1, x=1)
    decoder.learn(value[:5])
    copy = pickle.loads(pickle.dumps(decoder))
    registry.away = True
    decoded = copy.decode(batch([value]))
    assert decoded.new.columns == pa.schema([("x", pa.int64())])


def test_of_subjects_with_special_names_the_versions_are_found(registry: Registry) -> None:
    registry.register(1, schema_of(x="int"), "shop/orders 1-value")
    assert len(SchemaRegistry(registry.url).versions(1)) == 1
