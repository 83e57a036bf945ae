"""Types of Avro become those of a table, and null where a table has none."""

from typing import Any

import pyarrow as pa
import pytest

from opal_stream.formats.schemas.avro_types import avro_columns, avro_type

SIZE = {
    "type": "record",
    "name": "Size",
    "fields": [{"name": "w", "type": "int"}, {"name": "unit", "type": ["null", "string"]}],
}


@pytest.mark.parametrize(
    "schema, kind",
    [
        ("int", pa.int32()),
        (["null", "string"], pa.string()),
        ({"type": "long", "logicalType": "timestamp-millis"}, pa.timestamp("us", "UTC")),
        ({"type": "long", "logicalType": "local-timestamp-micros"}, pa.timestamp("us")),
        ({"type": "int", "logicalType": "date"}, pa.date32()),
        ({"type": "int", "logicalType": "time-millis"}, pa.string()),
        (
            {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2},
            pa.decimal128(10, 2),
        ),
        ({"type": "bytes", "logicalType": "decimal", "precision": 60, "scale": 2}, pa.null()),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, pa.string()),
        ({"type": "array", "items": ["null", "double"]}, pa.list_(pa.float64())),
        ({"type": "map", "values": "long"}, pa.map_(pa.string(), pa.int64())),
        (SIZE, pa.struct([("w", pa.int32()), ("unit", pa.string())])),
        (["null", "int", "string"], pa.null()),
        ({"type": "array", "items": ["int", "string"]}, pa.null()),
    ],
)
def test_types(schema: Any, kind: pa.DataType) -> None:
    assert avro_type(schema) == kind


def test_columns_of_a_change_event_are_those_of_its_row() -> None:
    row = {
        "type": "record",
        "name": "Row",
        "fields": [{"name": "id", "type": "long"}, {"name": "tag", "type": ["null", "string"]}],
    }
    members = [
        {"name": "before", "type": ["null", row]},
        {"name": "after", "type": ["null", "Row"]},
        {"name": "op", "type": "string"},
    ]
    envelope = {"type": "record", "name": "Envelope", "fields": members}
    assert avro_columns(envelope, debezium=True) == {"id": pa.int64(), "tag": pa.string()}
    assert avro_columns("string") == {}
