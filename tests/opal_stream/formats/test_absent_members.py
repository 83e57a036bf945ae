"""Messages that lack a column's member have the column's default; a null stays null."""

from typing import Any

import pytest

from opal_lake.definition.changes.apply import changed, changes_of
from opal_lake.definition.table_spec import TableSpec
from opal_stream.formats.decoder import Decoder
from opal_stream.operations.reading import FormatOptions
from tests.fixtures_kafka import Registry
from tests.opal_stream.formats.build import FIRST, SECOND, avro, event, record
from tests.opal_stream.orders import batch, decode, good, new_spec, order

CHANGES = [
    {"add": "n", "type": "int", "default": 5},
    {"set_default": "name", "value": "'nobody'"},
]


def spec_with_defaults() -> TableSpec:
    spec, _ = changed(new_spec(), changes_of(CHANGES))
    return spec


def shown(decoded: Any) -> list[tuple[Any, Any]]:
    return [(row["name"], row["n"]) for row in good(decoded)]


def test_json_without_a_member_has_the_default() -> None:
    messages = [
        order(1) | {"n": 1, "name": "a"},
        order(2) | {"n": None, "name": None},
        {name: value for name, value in order(3).items() if name != "name"},
    ]
    rows = shown(decode(messages, FormatOptions(), spec_with_defaults()))
    assert rows == [("a", 1), (None, None), ("nobody", 5)]


@pytest.mark.parametrize("schema", [False, True])
def test_a_change_event_without_a_column_has_the_default(schema: bool) -> None:
    usual = {name: value for name, value in order(1).items() if name != "name"}
    messages = [
        event("c", None, usual, 1, schema=schema),
        event("u", usual, usual | {"name": None, "n": 1}, 2, schema=schema),
    ]
    options = FormatOptions(format="debezium-json")
    assert shown(decode(messages, options, spec_with_defaults())) == [("nobody", 5), (None, 1)]


def test_a_schema_of_avro_without_a_field_has_the_default(registry: Registry) -> None:
    first, second = 1, 2
    registry.schemas |= {first: FIRST, second: SECOND}
    decoder = Decoder(spec_with_defaults(), FormatOptions(format="avro", registry=registry.url))
    values = [
        avro(first, FIRST, record(1)),
        avro(second, SECOND, record(2, name=None)),
        avro(second, SECOND, record(3, name="c")),
    ]
    for value in values:
        decoder.learn(value)
    rows = sorted(good(decoder.decode(batch(values))), key=lambda row: row["id"])
    assert [(row["name"], row["n"]) for row in rows] == [("nobody", 5), (None, 5), ("c", 5)]
