"""Types of Avro become those of a table, and null where a table has none."""

from typing import Any

import pyarrow as pa
import pytest

from opal_stream.formats.schemas.avro_types import avro_type, record_columns

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
        (
            {"type": "record", "name": "io.debezium.data.VariableScaleDecimal", "fields": []},
            pa.string(),
        ),
        (["null", "int", "string"], pa.null()),
        ({"type": "array", "items": ["int", "string"]}, pa.null()),
    ],
)
def test_avro_types_become_column_types(schema: Any, kind: pa.DataType) -> None:
    assert avro_type(schema) == kind


def test_columns_of_a_record_are_its_fields() -> None:
    assert record_columns(SIZE) == {"w": pa.int32(), "unit": pa.string()}
    assert record_columns({"type": "fixed", "name": "Bits", "size": 2}) == {}


@pytest.mark.parametrize(
    "schema, kind",
    [
        ({"type": "string", "logicalType": "timestamp-millis"}, pa.string()),
        ({"type": "long", "logicalType": "of-somebody"}, pa.int64()),
        ({"type": "bytes", "logicalType": "decimal"}, pa.binary()),
        ({"type": "bytes", "logicalType": "decimal", "precision": 2, "scale": 3}, pa.binary()),
        ({"type": "fixed", "name": "Bits", "size": 16, "logicalType": "uuid"}, pa.string()),
        ({"type": "fixed", "name": "Bits", "size": 8, "logicalType": "uuid"}, pa.binary()),
        ({"type": "long", "logicalType": "timestamp-nanos"}, pa.int64()),
    ],
)
def test_a_logical_type_that_does_not_fit_its_type_is_ignored(
    schema: Any, kind: pa.DataType
) -> None:
    assert avro_type(schema) == kind
